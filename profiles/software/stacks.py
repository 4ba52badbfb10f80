"""Stacks: how software turns the layers of a model into work of the host and kernels of the GPU.

Shipped ones go by name; a stack of one's own is a file of the same keys. A stack says what it changes about the
kernels that a layer is made of; how long these take on a device is said by its laws (``profiles.machines.laws``).
"""

from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import Any, Final

from profiles.checks import POSITIVE_SHARE, SHARE, check_fields
from profiles.files import Table, naming_file
from profiles.names import file_of
from profiles.units import MICROSECOND

STACKS: Final = Path(__file__).parents[1] / "stacks"
DEFAULT_STACK: Final = "eager"
"""The stack where none is named."""
FLAGS: Final = ("channels_last", "cast_weights")
OPERATORS: Final = ("forward_operator_s", "backward_operator_s")
MAX_OPERATOR_US: Final = 1e6
"""Longest time that a host may take over an operator."""
FUSED: Final = ("pointwise", "group_norm", "layer_norm", "softmax", "copy")
"""Kinds of memory-bound kernels, each with a share in ``Fusion``."""
RATES: Final = ("matmul", "conv", "attention", "memory")
"""Classes of kernels, each with a share in ``Shares``."""
CHOICES: Final[dict[str, tuple[str, ...]]] = {
    "attention": ("flash", "packed", "math"),
    "norms": ("half", "float32"),
    "encoders": ("half", "float32", "autocast"),
    "optimizer": ("loop", "foreach", "fused"),
}


@dataclass(frozen=True, slots=True)
class Shares:
    """Shares of the device's laws that kernels reach, above 0 and up to 1, by class of kernels."""

    matmul: float = 1.0
    conv: float = 1.0
    attention: float = 1.0
    memory: float = 1.0

    def __post_init__(self) -> None:
        check_fields("rates", self, **dict.fromkeys(RATES, POSITIVE_SHARE))

    def scaled(self, factor: float) -> "Shares":
        """All shares multiplied."""
        return Shares(**{key: factor * getattr(self, key) for key in RATES})


@dataclass(frozen=True, slots=True)
class Fusion:
    """Shares, between 0 and 1, that fusion leaves of the memory-bound kernels of each kind.

    Where a kind loses its traffic, its neighbours read and write for it.
    """

    pointwise: float = 1.0
    group_norm: float = 1.0
    layer_norm: float = 1.0
    softmax: float = 1.0
    copy: float = 1.0

    def __post_init__(self) -> None:
        check_fields("fusion", self, **dict.fromkeys(FUSED, SHARE))


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
        check_fields(f"stack {self.name}", self)

    def on(self, device: str) -> "Stack":
        """The stack with the rates that it reaches on a device."""
        return replace(self, rates=dict(self.device_rates).get(device, self.rates), device_rates=())

    def slowed(self, slowness: float) -> "Stack":
        """The stack on a host that takes ``slowness`` times as long over an operator."""
        seconds = {key: slowness * getattr(self, key) for key in OPERATORS}
        return replace(self, **seconds)

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
    """Read a stack file."""
    table = Table.read(path)
    operators, on = table.table("operator_us"), table.table("rates_on", {})
    rates = _rates(table.table("rates", {}), Shares())
    choices: dict[str, Any] = {key: table.choice(key, of) for key, of in CHOICES.items()}
    flags: dict[str, Any] = {key: table.flag(key) for key in FLAGS}
    stack = Stack(
        name=table.text("name"),
        summary=table.text("summary"),
        source=table.text("source"),
        forward_operator_s=operators.number("forward", maximum=MAX_OPERATOR_US) * MICROSECOND,
        backward_operator_s=operators.number("backward", maximum=MAX_OPERATOR_US) * MICROSECOND,
        **choices,
        **flags,
        traffic=_fusion(table.table("traffic", {})),
        launches=_fusion(table.table("launches", {})),
        rates=rates,
        device_rates=tuple((name, _rates(on.table(name), rates)) for name in sorted(on.values())),
    )
    on.finish()
    operators.finish()
    sources = table.table("sources")
    claims = (*CHOICES, *FLAGS, "operator_us", "traffic", "launches", "rates")
    for key in (*claims, *(("rates_on",) if stack.device_rates else ())):
        sources.text(key)
    sources.finish()
    table.finish()
    return stack


def _fusion(table: Table) -> Fusion:
    shares = {key: table.number(key, 1.0, maximum=1.0) for key in FUSED}
    table.finish()
    return Fusion(**shares)


def _rates(table: Table, otherwise: Shares) -> Shares:
    shares = {key: table.positive(key, getattr(otherwise, key), maximum=1.0) for key in RATES}
    table.finish()
    return Shares(**shares)
