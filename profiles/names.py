"""Names of models, clusters, devices, stacks and strategies, and which of them was meant.

Aliases stand in ``aliases.toml``. Whoever uses one is told so, and none hides a name or a path.
"""

import re
from collections.abc import Iterable
from functools import cache
from pathlib import Path
from typing import Final

from profiles.checks import check_name
from profiles.errors import DiffusimNote, InputError, near, shown, warn_caller
from profiles.files import load_toml, path_kind

STRATEGY: Final = "strategy"
"""The one kind that is not read from files."""
MODEL: Final = "model"
REPOSITORY: Final = re.compile(r"[\w.-]*\w[\w.-]*/([\w.-]+?)(?:-diffusers)?", re.ASCII | re.IGNORECASE)
"""A model's name on Hugging Face: its owner, the name, and what the owner adds to one in another format."""
ALIASES: Final = Path(__file__).parent / "aliases.toml"


@cache
def aliases(kind: str) -> dict[str, str]:
    """The aliases of a kind, ``model`` to ``strategy``, with the names that they stand for."""
    by_kind: dict[str, dict[str, str]] = load_toml(ALIASES)
    return by_kind[kind]


def known_name(kind: str, name: str, known: Iterable[str], *, silent: bool = False) -> str | None:
    """The known name that is meant: ``name`` itself, or the name or alias of its letters and digits; None without one.

    A path that exists comes before the latter. Of a model's ``OWNER/NAME``, as on Hugging Face, the owner is left out.
    Unless ``silent``, a note says that another name was meant.
    """
    there = list(known)
    if name in there:
        return name
    letters = {_letters(other): meant for other, meant in aliases(kind).items() if meant in there}
    letters |= {_letters(other): other for other in there}
    hub = REPOSITORY.fullmatch(name) if kind == MODEL else None
    meant = letters.get(_letters(hub[1] if hub else name), "")
    if not meant or (kind != STRATEGY and path_kind(Path(name)) != "nothing"):
        return None
    if not silent:
        warn_caller(f"{kind} {name} is {meant}", DiffusimNote)
    return meant


def _letters(name: str) -> str:
    """The letters and digits of a name, in lower case."""
    return re.sub(r"[\W_]", "", name.casefold())


def having(word: str, names: Iterable[str]) -> list[str]:
    """The names in which a word stands, by letters and digits alone."""
    return [name for name in names if _letters(word) in _letters(name)]


def unknown_name(kind: str, name: str, known: Iterable[str], otherwise: str = "") -> InputError:
    """The error about a name that nothing has; ``otherwise`` says what else it could be."""
    names = list(known)
    several = (
        [other for other in names if _letters(other).startswith(_letters(name))] if len(name) > 2 else []
    )
    if len(several) > 1:
        return InputError(f"{kind} {shown(name)} stands for several: {', '.join(several)}; choose one")
    if kind == MODEL and REPOSITORY.fullmatch(name):
        return InputError(
            f"model {shown(name)} is no path, and none that is shipped (sim models); count it from its config.json:"
            " --model config.json, or the folder that sim measure count --config config.json --output FOLDER writes"
        )
    others = {other: meant for other, meant in aliases(kind).items() if meant in names}
    meant = near(name.casefold(), names) or near(name.casefold(), others)
    return InputError(f"unknown {kind} {shown(name)}; {meant}choose from {', '.join(names)}{otherwise}")


def names_in(folder: Path) -> list[str]:
    """The names of the files of a folder."""
    return sorted(path.stem for path in folder.glob("*.toml"))


def file_of(kind: str, name: str, folder: Path) -> Path:
    """The file of what is shipped in a folder by its name, or any by its path."""
    check_name(kind, name)
    names = names_in(folder)
    if (known := known_name(kind, name, names)) is not None:
        return folder / f"{known}.toml"
    path = Path(name)
    if path.suffix == ".toml" or path_kind(path) != "nothing":
        return path
    raise unknown_name(kind, name, names, ", or pass a .toml file")
