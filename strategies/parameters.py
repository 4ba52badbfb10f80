"""Parameters: what a strategy's fields may hold, and how they are described to a user."""

from collections.abc import Mapping, Sequence
from dataclasses import field, fields, replace
from typing import Any, TypeVar

from profiles.errors import InputError

S = TypeVar("S")


def parameter(
    default: Any, help: str, *, minimum: int = 1, choices: Sequence[str] = (), same_as: str | None = None
) -> Any:
    """Return a dataclass field that describes itself.

    Args:
        default: its value where none is given; its type is the field's, None an integer's.
        help: one line.
        minimum: smallest integer allowed.
        choices: strings allowed.
        same_as: field whose value it takes when it is None.
    """
    metadata = {"help": help, "minimum": minimum, "choices": tuple(choices), "same_as": same_as}
    return field(default=default, metadata=metadata)


def pipeline_degree(default: int = 2) -> Any:
    """Return the field for the positions of one pipeline."""
    return parameter(default, "positions (devices in line) of one pipeline")


def micro_batches(default: int = 4) -> Any:
    """Return the field for the number of micro-batches."""
    return parameter(default, "pieces into which the batch of one pipeline group is cut")


def group_size() -> Any:
    """Return the field for the GPUs of one pipeline group."""
    return parameter(
        None, "GPUs of one pipeline group (default: the pipeline degree)", same_as="pipeline_degree"
    )


def partition(default: str) -> Any:
    """Return the field for how the backbone is cut."""
    return parameter(
        default, "how the backbone is cut: equal blocks, or optimal", choices=("blocks", "optimal")
    )


def p2p() -> Any:
    """Return the field for how messages and compute overlap."""
    return parameter(
        "overlapped", "whether devices wait for their messages", choices=("overlapped", "blocking")
    )


def skip_route() -> Any:
    """Return the field for how skips travel."""
    return parameter(
        "relay", "how skips travel: with the hidden state, or not at all", choices=("relay", "local")
    )


def warmup_steps() -> Any:
    """Return the field for the synchronous steps that a run of a sampler begins with."""
    return parameter(2, "synchronous steps before stale activations are used", minimum=0)


def patches() -> Any:
    """Return the field for the patches of a pipeline of patches."""
    return parameter(None, "patches that the image is cut into (default: the pipeline degree)")


def keys_values(default: str = "kept") -> Any:
    """Return the field for what sequence parallelism does with the keys and values of a layer."""
    return parameter(
        default,
        "keys and values of all layers: kept whole on every device, as in PipeFusion's first release and its"
        " Figure 7, or freed after each layer",
        choices=("kept", "freed"),
    )


def degree(what: str, default: int | None = 1) -> Any:
    """Return the field for one degree of parallelism of a sampler."""
    return parameter(default, f"GPUs {what}")


def integers(help: str) -> Any:
    """Return the field for a list of integers."""
    metadata = {"help": help, "minimum": 0, "choices": (), "same_as": None, "list": True}
    return field(default=None, metadata=metadata)


def check_parameters(strategy: S) -> S:
    """Return a strategy with its dependent defaults filled in.

    Raises:
        InputError: a field breaks its rule.
    """
    filled: dict[str, Any] = {}
    for item in fields(strategy):  # type: ignore[arg-type]
        value = getattr(strategy, item.name)
        if value is None and item.metadata.get("same_as"):
            value = filled[item.name] = getattr(strategy, item.metadata["same_as"])
        _check(item.name, value, item.metadata)
    return replace(strategy, **filled) if filled else strategy  # type: ignore[type-var]


def _check(name: str, value: Any, rules: Mapping[str, Any]) -> None:
    flag = "--" + name.replace("_", "-")
    if rules.get("choices") and value not in rules["choices"]:
        raise InputError(f"{flag} is '{value}', must be one of {', '.join(rules['choices'])}")
    if isinstance(value, tuple):
        for item in value:
            _check(name, item, rules)
    if isinstance(value, int) and value < rules.get("minimum", value):
        raise InputError(f"{flag} is {value}, must be at least {rules['minimum']}")
