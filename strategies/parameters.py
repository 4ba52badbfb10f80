"""Parameters: the fields of strategies, with their rules and descriptions."""

from collections.abc import Callable, Sequence
from dataclasses import Field, field, fields, replace
from functools import cache, partial
from math import inf
from typing import Any, Final, TypeVar

from profiles.checks import is_one_of, plain_value
from profiles.errors import shown, wrong

S = TypeVar("S")

MAX_PARAMETER: Final = 65536
"""The largest integer that a parameter may be; a plan of so many parts would take minutes."""
MAX_INTEGER: Final = 10**12
"""The largest that any other integer may be; orders of more positions or micro-batches would take hours."""
QUALITY: Final = "quality not modelled"
"""The words of titles for levers that change the images."""
RECEIVES: Final = ("before", "after")
"""Times to post the receive of the next patch: before the present one is computed, or after."""

KINDS: Final = {float: "a number", bool: "True or False", str: "a word", tuple: "integers, as a tuple"}


def parameter(
    default: Any,
    help: str,
    *,
    minimum: int = 1,
    choices: Sequence[str] = (),
    same_as: str | None = None,
    kind: type[Any] | None = None,
) -> Any:
    """Return a dataclass field that describes itself, and that its class checks whenever one is made.

    Args:
        default: its value where none is given.
        help: one line.
        minimum: smallest integer allowed.
        choices: strings allowed.
        same_as: field whose value it takes when it is None.
        kind: type of its value; by default that of the default, of None an integer's.
    """
    kind = kind or (int if default is None else type(default))
    rules = {"help": help, "kind": kind, "choices": tuple(choices), "least": minimum, "most": MAX_PARAMETER}
    return field(default=default, metadata=rules | {"same_as": same_as})


def option(
    default: Any,
    help: str,
    *,
    kind: type[Any] = str,
    choices: Sequence[str] = (),
    least: int = 1,
    most: int = MAX_INTEGER,
    key: str = "changed",
    title: str | Callable[[Any], str] = "",
    alters_images: bool = False,
    **flag: Any,
) -> Any:
    """The dataclass field of an option of a workload, from which its flag, check, help, key and title follow.

    Args:
        default: its value where none is given.
        help: one line; the default is added.
        kind: of its value: a word, an integer, a number, or a tuple of names.
        choices: words allowed.
        least: smallest integer allowed.
        most: largest integer allowed.
        key: whether results name it ``always``, where it is ``changed``, or elsewhere (``apart``).
        title: what titles say of another value than the default: a format of the value, or of the workload.
        alters_images: whether what is drawn is no longer the same.
        flag: further settings of its flag, as ``argparse`` takes them.
    """
    rules = {"help": help, "kind": kind, "choices": tuple(choices), "least": least, "most": most}
    uses = {"option": True, "key": key, "title": title, "alters": alters_images, "flag": flag}
    return field(default=default, metadata=rules | uses)


def options_of(workload: Any) -> tuple[Field[Any], ...]:
    """The options that a workload, or its class, declares."""
    return tuple(item for item in fields(workload) if "option" in item.metadata)


def check_options(workload: Any) -> None:
    """Refuse words and integers that break the rules that their options were declared with."""
    for item in options_of(workload):
        if item.metadata["choices"] or item.metadata["kind"] is int:
            _check(item, getattr(workload, item.name))


def named_options(workload: Any) -> dict[str, Any]:
    """The options by which results name a workload: those always named, and those that differ from their defaults."""
    values = [(item, getattr(workload, item.name)) for item in options_of(workload)]
    always = {item.name: value for item, value in values if item.metadata["key"] == "always"}
    changed = [(item, value) for item, value in values if value != item.default]
    return always | {item.name: value for item, value in changed if item.metadata["key"] == "changed"}


def titles(workload: Any) -> dict[str, str]:
    """Return the words of titles for options that differ from their defaults; last those that alter images."""
    declared = sorted(options_of(workload), key=lambda item: bool(item.metadata["alters"]))
    changed = [item for item in declared if getattr(workload, item.name) != item.default]
    words: dict[str, str] = {}
    for item in changed:
        title, value = item.metadata["title"], getattr(workload, item.name)
        if title:
            words[item.name] = title(workload) if callable(title) else title.format(value)
    if any(item.metadata["alters"] for item in changed):
        words["quality"] = QUALITY
    return words


pipeline_degree: Final = partial(parameter, 2, "positions (devices in line) of one pipeline")
micro_batches: Final = partial(parameter, 4, "pieces into which the batch of one pipeline group is cut")
group_size: Final = partial(
    parameter, None, "GPUs of one pipeline group (default: the pipeline degree)", same_as="pipeline_degree"
)
p2p: Final = partial(
    parameter, "overlapped", "whether devices wait for their messages", choices=("overlapped", "blocking")
)
warmup_steps: Final = partial(parameter, 2, "synchronous steps before stale activations are used", minimum=0)
patches: Final = partial(parameter, None, "patches that the image is cut into (default: the pipeline degree)")
receive: Final = partial(
    parameter, "before", "when the next patch is asked for: before or after computing", choices=RECEIVES
)
layers: Final = partial(
    parameter, None, "layers of each stage, with commas (default: even)", minimum=0, kind=tuple
)
optimizer: Final = partial(
    parameter,
    "replicated",
    "states and step of the optimizer: all on every replica of a stage, or a part on each (sharded, as Megatron's"
    " distributed optimizer)",
    choices=("replicated", "sharded"),
)
keys_values: Final = partial(
    parameter,
    "freed",
    "keys and values of all layers: freed after each layer, as runtimes do, or kept whole on every device, as in"
    " PipeFusion's first release and its Figure 7",
    choices=("freed", "kept"),
)
"""Makers of the fields that several strategies have."""


def degree(what: str, default: int | None = 1) -> Any:
    """The field for one degree of parallelism of a sampler."""
    return parameter(default, f"GPUs {what}")


def completed(strategy: S) -> S:
    """Return a strategy with the fields filled in that were left out and are by default those of others."""
    same_as = {item.name: item.metadata.get("same_as") for item in fields_in(type(strategy))}  # type: ignore[arg-type]
    filled = {
        name: getattr(strategy, other)
        for name, other in same_as.items()
        if other is not None and getattr(strategy, name) is None
    }
    return replace(strategy, **filled) if filled else strategy  # type: ignore[type-var]


@cache
def fields_in(strategy: type[Any]) -> tuple[Field[Any], ...]:
    """Return the fields of a class of strategies; a sweep asks for them at each of its points."""
    return fields(strategy)


def check_integer(name: str, value: object, *, minimum: int = 1, most: int = MAX_INTEGER) -> None:
    """Refuse what is no integer, or one out of range."""
    if isinstance(value, bool) or not isinstance(value, int):
        raise wrong(name, f"is {shown(value)}, must be an integer")
    if value < minimum:
        raise wrong(name, f"is {shown(value)}, must be at least {minimum}")
    if value > most:
        raise wrong(name, f"is {shown(value)}, must be at most {most}")


def check_option(name: str, value: object, choices: Sequence[str]) -> None:
    """Refuse a word that is none of those an option or a field may have."""
    if not is_one_of(value, *choices):
        raise wrong(name, f"is {shown(value)}, must be one of {', '.join(choices)}")


def check_parameters(strategy: Any) -> None:
    """Refuse values that break the rules of the fields of a strategy, or a policy; make those of NumPy plain."""
    for item in fields_in(type(strategy)):  # type: ignore[arg-type]
        value = plain_value(getattr(strategy, item.name))
        if item.metadata and value is not item.default:
            object.__setattr__(strategy, item.name, value)
            _check(item, value)


def _check(item: Field[Any], value: Any) -> None:
    """Refuse a value that breaks the rules of its field; an integer is a number, True is none."""
    name, rules = item.name, item.metadata
    kind = rules["kind"]
    if value is None and item.default is None:
        return
    if rules["choices"]:
        check_option(name, value, rules["choices"])
    elif kind is not int and (
        not isinstance(value, (int, float) if kind is float else kind) or (kind is float and value is True)
    ):
        raise wrong(name, f"is {shown(value)}, must be {KINDS.get(kind, kind.__name__)}")
    elif kind is float and not 0 < value < inf:
        raise wrong(name, f"is {value}, must be positive and finite")
    elif kind in (int, tuple):
        for number in value if kind is tuple else (value,):
            check_integer(name, number, minimum=rules["least"], most=rules["most"])
