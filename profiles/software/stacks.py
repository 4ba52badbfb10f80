"""Stacks: how software turns the layers of a model into work of the host and kernels of the GPU.

Shipped ones go by name; a stack of one's own is a file of the same keys. A stack says what it changes about the
kernels that a layer is made of; how long these take on a device is said by its laws (``profiles.machines.laws``).
"""

from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import Final

from profiles.checks import (
    check_choice,
    check_distinct,
    check_numbers,
    check_positive,
)
from profiles.errors import InputError
from profiles.files import Table, naming_file
from profiles.names import file_of
from profiles.units import MICROSECOND

STACKS: Final = Path(__file__).parents[1] / "stacks"
DEFAULT_STACK: Final = "eager"
"""The stack where none is named."""
ATTENTIONS: Final = ("flash", "packed", "math")
NORMS: Final = ("half", "float32")
ENCODERS: Final = (*NORMS, "autocast")
OPTIMIZERS: Final = ("loop", "foreach", "fused")
FLAGS: Final = ("channels_last", "cast_weights")
OPERATORS: Final = ("forward_operator_s", "backward_operator_s")
MAX_OPERATOR_S: Final = 1.0
"""Longest time that a host may take over an operator."""
CHOICES: Final = {
    "attention": ATTENTIONS,
    "norms": NORMS,
    "encoders": ENCODERS,
    "optimizer": OPTIMIZERS,
}


@dataclass(frozen=True, slots=True)
class Shares:
    """Shares of the device's laws that kernels reach, above 0 and up to 1, by class of kernels."""

    matmul: float = 1.0
    conv: float = 1.0
    attention: float = 1.0
    memory: float = 1.0

    def __post_init__(self) -> None:
        check_positive("rates", most=1.0, **{key: getattr(self, key) for key in RATES})

    def scaled(self, factor: float) -> "Shares":
        """All shares multiplied."""
        return Shares(**{key: factor * getattr(self, key) for key in RATES})


@dataclass(frozen=True, slots=True)
class Fusion:
    """What fusion leaves of the memory-bound kernels of each kind; shares between 0 and 1.

    Where a kind loses its traffic, its neighbours read and write for it.
    """

    pointwise: float = 1.0
    group_norm: float = 1.0
    layer_norm: float = 1.0
    softmax: float = 1.0
    copy: float = 1.0

    def __post_init__(self) -> None:
        for kind in FUSED:
            share = getattr(self, kind)
            check_numbers("fusion", **{kind: share})
            if share > 1:
                raise InputError(f"fusion: {kind} is {share}, must be at most 1")


FUSED: Final = ("pointwise", "group_norm", "layer_norm", "softmax", "copy")
"""Kinds of memory-bound kernels, each with a share in ``Fusion``."""
RATES: Final = ("matmul", "conv", "attention", "memory")
"""Classes of kernels, each with a share in ``Shares``."""


@dataclass(frozen=True, slots=True)
class Stack:
    """A software stack.

    Attributes:
        name: by which a shipped stack is asked for.
        summary: a line about it.
        source: where its numbers are from.
        forward_operator_s: seconds of the host for each operator that it dispatches in a forward pass; 0 where a
            graph of the whole pass is launched at once.
        backward_operator_s: the same in a backward pass, whose operators the autograd engine dispatches.
        attention: ``flash``; ``packed``, fused too, but heads are laid out anew for it; or ``math``, for which heads
            are laid out anew, and scores are written and read by kernels of their own.
        channels_last: whether activations lie as convolution kernels want them; else they are laid out anew.
        norms: precision in which training runs normalisations: ``half``, or ``float32`` as autocast has it.
        encoders: precision in which training runs frozen components; ``float32`` with products in TF32, ``autocast``
            as the trained ones.
        cast_weights: whether training casts float32 weights to half precision in every forward pass, where these lie
            whole on each GPU.
        optimizer: ``loop`` over the parameters' tensors, ``foreach`` operation over all of them, or ``fused``.
        traffic: shares of the memory traffic that fusion leaves.
        launches: shares of the launches that fusion leaves.
        rates: shares of the device's laws that the stack's kernels reach.
        device_rates: the same, by name of a device on which they differ.
    """

    name: str
    summary: str
    source: str
    forward_operator_s: float
    backward_operator_s: float
    attention: str
    channels_last: bool
    norms: str
    encoders: str
    cast_weights: bool
    optimizer: str
    traffic: Fusion = Fusion()
    launches: Fusion = Fusion()
    rates: Shares = Shares()
    device_rates: tuple[tuple[str, Shares], ...] = ()

    def __post_init__(self) -> None:
        owner = f"stack {self.name}"
        seconds = {key: getattr(self, key) for key in OPERATORS}
        check_numbers(owner, **seconds)
        for key, value in seconds.items():
            if value > MAX_OPERATOR_S:
                raise InputError(f"{owner}: {key} is {value}, must be at most {MAX_OPERATOR_S:g}")
        for key, choices in CHOICES.items():
            check_choice(owner, key, getattr(self, key), choices)
        for key in FLAGS:
            if not isinstance(getattr(self, key), bool):
                raise InputError(f"{owner}: {key} is {getattr(self, key)!r}, must be true or false")
        for key, kind in (("traffic", Fusion), ("launches", Fusion), ("rates", Shares)):
            if not isinstance(getattr(self, key), kind):
                raise InputError(f"{owner}: {key} is {getattr(self, key)!r}, must be {kind.__name__}")

        check_distinct(owner, "device_rates", [name for name, _ in self.device_rates])

    def on(self, device: str) -> "Stack":
        """The stack with the rates that it reaches on a device."""
        return replace(self, rates=dict(self.device_rates).get(device, self.rates), device_rates=())

    def slowed(self, slowness: float) -> "Stack":
        """The stack on a host that takes ``slowness`` times as long over an operator."""
        seconds = {key: slowness * getattr(self, key) for key in OPERATORS}
        return replace(self, **{key: min(value, MAX_OPERATOR_S) for key, value in seconds.items()})

    def __repr__(self) -> str:
        return f"<Stack {self.name}: {self.summary}>"


def stack_names() -> list[str]:
    """The names of the shipped stacks."""
    return sorted(path.stem for path in STACKS.glob("*.toml"))


def load_stack(name: str = DEFAULT_STACK) -> Stack:
    """A shipped stack by name, or any by the path of its file.

    Raises:
        InputError: there is none, or its file breaks a rule.
    """
    path = file_of("stack", name, STACKS)
    return (_shipped if path.parent == STACKS else read_stack)(path)


@cache
def _shipped(path: Path) -> Stack:
    return read_stack(path)


@naming_file
def read_stack(path: Path) -> Stack:
    """Read a stack file.

    Raises:
        InputError: the file breaks a rule.
    """
    table = Table.read(path)
    operators, on = table.table("operator_us"), table.table("rates_on", {})
    rates = _rates(table.table("rates", {}), Shares())
    stack = Stack(
        name=table.line("name"),
        summary=table.text("summary"),
        source=table.text("source"),
        forward_operator_s=operators.number("forward") * MICROSECOND,
        backward_operator_s=operators.number("backward") * MICROSECOND,
        attention=table.choice("attention", ATTENTIONS),
        channels_last=table.flag("channels_last"),
        norms=table.choice("norms", NORMS),
        encoders=table.choice("encoders", ENCODERS),
        cast_weights=table.flag("cast_weights"),
        optimizer=table.choice("optimizer", OPTIMIZERS),
        traffic=Fusion(**_shares(table.table("traffic", {}), FUSED)),
        launches=Fusion(**_shares(table.table("launches", {}), FUSED)),
        rates=rates,
        device_rates=tuple((name, _rates(on.table(name), rates)) for name in sorted(on.values())),
    )
    on.finish()
    operators.finish()
    _check_sources(table.table("sources"), devices=bool(stack.device_rates))
    table.finish()
    return stack


def _shares(table: Table, keys: tuple[str, ...]) -> dict[str, float]:
    shares = {key: table.number(key, 1.0, maximum=1.0) for key in keys}
    table.finish()
    return shares


def _rates(table: Table, otherwise: Shares) -> Shares:
    """Shares of the device's laws; one above 1 would exceed the device's best."""
    shares = {key: table.positive(key, getattr(otherwise, key)) for key in RATES}
    for key, share in shares.items():
        if share > 1:
            raise table.fail(key, share, "must be at most 1, the peak: what the device's law reaches")
    table.finish()
    return Shares(**shares)


def _check_sources(sources: Table, *, devices: bool) -> None:
    """Refuse a stack that lacks the source of a claim."""
    keys = (*CHOICES, *FLAGS, "operator_us", "traffic", "launches", "rates")
    for key in (*keys, "rates_on") if devices else keys:
        sources.text(key)
    sources.finish()
