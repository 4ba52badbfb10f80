"""Software of published runs: the shipped stack of each engine and version (``software.toml``)."""

from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any, Final

from profiles.parsing import parse_toml
from profiles.software.stacks import Stack, load_stack

SOFTWARE: Final = Path(__file__).with_name("software.toml")


@cache
def _engines() -> dict[str, dict[str, Any]]:
    return parse_toml(SOFTWARE.read_text(encoding="utf-8"))


@cache
def stack_of(engine: str) -> Stack:
    """The stack of an engine and its version, named by the flags that ask for it."""
    flags = dict(_engines()[engine])
    flags.pop("source", "")
    stack = load_stack(flags.pop("stack"))
    name = " ".join([stack.name, *(f"--{flag} {value}" for flag, value in flags.items())])
    return replace(stack.changed(flags.get("attention"), flags.get("encoder-precision")), name=name)
