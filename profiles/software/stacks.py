"""Stacks: how software turns the layers of a model into work of the host and kernels of the GPU.

Shipped ones go by name; a stack of one's own is a file of the same keys, or of those in which it differs from the
shipped one that it is ``like``. A stack says what it changes about the kernels that a layer is made of; how long these
take on a device is said by its laws (``profiles.machines.laws``), and ``attention.toml`` says which share of these each
generation of attention's kernels reaches.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import Any, Final, NamedTuple, TypeVar

from profiles.checks import PositiveShare, Proportion, check_choice, check_fields
from profiles.files import Table, load_toml
from profiles.names import file_of, names_in
from profiles.units import MICROSECOND

T = TypeVar("T")
STACKS: Final = Path(__file__).parents[1] / "stacks"
GENERATIONS: Final = STACKS.with_name("attention.toml")
DEFAULT_STACK: Final = "eager"
"""The stack where none is named; of sampling, ``SERVED``."""
SERVED: Final = "fused"
"""The stack of today's servers."""
FLAGS: Final = ("channels_last", "cast_weights", "autocast")
OPERATORS: Final = ("forward_operator_s", "backward_operator_s")
MAX_ITERATION_US: Final = 10**8
"""Longest time that a host may take beside the operators of an iteration."""
UNFUSED: Final = "unfused"
"""Attention of separate products and a softmax."""
FUSED: Final = ("pointwise", "group_norm", "layer_norm", "softmax", "copy")
"""Kinds of memory-bound kernels, each with a share in ``Fusion``."""
RATES: Final = ("matmul", "conv", "attention", "memory")
"""Classes of kernels, each with a share in ``Shares``."""
TABLES: Final = ("operator_us", "traffic", "launches", "rates")
SOURCED: Final = {"iteration_us", "frozen", "chains", "call_us"}
"""Keys with a source where a file has them."""
CHOICES: Final[dict[str, tuple[str, ...]]] = {
    "attention": (UNFUSED, "flash-1", "packed", "flash-2", "newest"),
    "norms": ("half", "float32"),
    "encoders": ("half", "float32", "autocast"),
    "optimizer": ("loop", "foreach", "fused"),
}


@dataclass(frozen=True, slots=True)
class Shares:
    """Shares of the device's laws that kernels reach, above 0 and up to 1, by class of kernels."""

    matmul: PositiveShare = 1.0
    conv: PositiveShare = 1.0
    attention: PositiveShare = 1.0
    memory: PositiveShare = 1.0

    def __post_init__(self) -> None:
        check_fields("rates", self)

    def scaled(self, factor: float) -> "Shares":
        """All shares multiplied."""
        return Shares(**{key: factor * getattr(self, key) for key in RATES})


@dataclass(frozen=True, slots=True)
class Fusion:
    """Shares, between 0 and 1, that fusion leaves of the memory-bound kernels of each kind.

    Where a kind loses its traffic, its neighbours read and write for it.
    """

    pointwise: Proportion = 1.0
    group_norm: Proportion = 1.0
    layer_norm: Proportion = 1.0
    softmax: Proportion = 1.0
    copy: Proportion = 1.0

    def __post_init__(self) -> None:
        check_fields("fusion", self)


@dataclass(frozen=True, slots=True)
class Stack:
    """A software stack.

    Attributes:
        name: by which a shipped stack is asked for.
        summary: a line about it.
        forward_operator_s: seconds of the host for each operator that it dispatches in a forward pass; 0 where a
            graph of the whole pass is launched at once.
        backward_operator_s: the same in a backward pass, whose operators the autograd engine dispatches.
        call_s: seconds of the host for a call of any collective; ``None``: as ``machines.hosts.CALLS_S``.
        attention: generation of its kernels (``attention.toml``); with ``unfused`` scores are written and read by
            kernels of their own.
        channels_last: whether activations lie as convolution kernels want them; else they are laid out anew.
        norms: precision in which training runs normalisations: ``half``, or ``float32`` as autocast has it.
        encoders: precision in which training runs frozen components; ``float32`` with products in TF32, ``autocast``
            as the trained ones.
        cast_weights: whether training casts float32 weights to half precision in every forward pass, where these lie
            whole on each GPU.
        autocast: whether training lets autocast choose precisions, that of softmax among others; else all is in half.
        optimizer: ``loop`` over the parameters' tensors, ``foreach`` operation over all of them, or ``fused``.
        traffic: shares of the memory traffic that fusion leaves.
        launches: shares of the launches that fusion leaves.
        forward_chains: memory traffic of a layer's chains of pointwise kernels, copies and layer norms, at most, over
            that of the operands and results of its products: a fused chain reads what products wrote, and writes what
            others read; ``None``: whatever the kernels move.
        backward_chains: the same of a backward pass, over that of the products of the forward pass.
        counted_chains: both of the backbones of models whose blocks were counted, by name.
        rates: shares of the device's laws that the stack's kernels reach.
        iteration_s: seconds of the host in a training iteration on all weights that nothing hides: loops over tensors
            of parameters, waits for the loss's scale.
        frozen: stack of text encoders and decoders where a sampler compiles or captures its backbone alone; ``None``:
            this one.
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
    autocast: bool
    optimizer: str
    traffic: Fusion = Fusion()
    launches: Fusion = Fusion()
    forward_chains: float | None = None
    backward_chains: float | None = None
    counted_chains: tuple[tuple[str, float, float], ...] = ()
    rates: Shares = Shares()
    iteration_s: float = 0.0
    call_s: float | None = None
    frozen: "Stack | None" = None

    def __post_init__(self) -> None:
        owner = f"stack {self.name}"
        check_fields(owner, self)
        for key, choices in CHOICES.items():
            check_choice(owner, key, getattr(self, key), choices)

    @property
    def generation(self) -> "Generation":
        """The generation of attention's kernels."""
        return generations()[self.attention]

    def rates_on(self, device: str) -> Shares:
        """The shares of a device's laws that its kernels reach, attention's by their generation."""
        generation = self.generation
        share = generation.share_of_newer if device in generation.newer_on else generation.share
        return replace(self.rates, attention=self.rates.attention * share)

    def on_blocks_of(self, model: str) -> "Stack":
        """The stack as it fuses the backbones of a model."""
        found = next((shares for name, *shares in self.counted_chains if name == model), None)
        return replace(self, forward_chains=found[0], backward_chains=found[1]) if found else self

    def slowed(self, slowness: float) -> "Stack":
        """The stack on a host that takes ``slowness`` times as long over an operator."""
        seconds: dict[str, Any] = {key: slowness * getattr(self, key) for key in OPERATORS}
        return replace(self, **seconds, frozen=self.frozen and self.frozen.slowed(slowness))

    @property
    def of_frozen(self) -> "Stack":
        """The stack of a sampler's frozen components."""
        return self.frozen or self

    def changed(
        self, attention: str | None, encoders: str | None = None, iteration_us: int | None = None
    ) -> "Stack":
        """The stack with other values where these are given."""
        iteration_s = self.iteration_s if iteration_us is None else iteration_us * MICROSECOND
        values = {"attention": attention or self.attention, "encoders": encoders or self.encoders}
        return replace(self, **values, iteration_s=iteration_s)  # type: ignore[arg-type]  # choices are texts

    def __repr__(self) -> str:
        return f"<Stack {self.name}: {self.summary}>"


class Generation(NamedTuple):
    """Kernels of attention of one generation.

    Attributes:
        share: of a law that was measured on FlashAttention-2.
        share_of_newer: of a law that was measured on newer kernels.
        copies: that lay out heads for them.
        newer_on: devices with such laws.
    """

    share: float
    share_of_newer: float
    copies: int
    newer_on: tuple[str, ...]


@cache
def generations() -> Mapping[str, Generation]:
    """The generations in ``attention.toml``, by name."""
    rows = load_toml(GENERATIONS)
    newer = tuple(rows.pop("newer_kernels_on"))
    return {
        name: Generation(row["share"], row["share_of_newer"], row["copies"], newer)
        for name, row in rows.items()
    }


def stack_names() -> list[str]:
    """The names of the shipped stacks."""
    return names_in(STACKS)


def in_graphs(name: str) -> str:
    """The shipped stack that is nearest to one of a name and has no host."""
    return "fused-graphs" if name.startswith(SERVED) else "compiled"


def load_stack(name: str = DEFAULT_STACK) -> Stack:
    """A shipped stack by name, or any by the path of its file."""
    path = file_of("stack", name, STACKS)
    return (_shipped if path.parent == STACKS else read_stack)(path)


def read_stack(path: Path) -> Stack:
    """Read a stack file."""
    table = Table(path, _completed(Table.read(path)))
    operators = table.table("operator_us")
    stack = table.made(
        Stack,
        forward_operator_s=operators.number("forward") * MICROSECOND,
        backward_operator_s=operators.number("backward") * MICROSECOND,
        traffic=_shares(table, "traffic", Fusion),
        launches=_shares(table, "launches", Fusion),
        **_chains(table),
        rates=_shares(table, "rates", Shares),
        frozen=load_stack(table.choice("frozen", stack_names())) if "frozen" in table else None,
    )
    operators.finish()
    sources = table.table("sources")
    for key in (*CHOICES, *FLAGS, *TABLES, *SOURCED & table.values().keys()):
        sources.text(key)
    sources.finish()
    table.finish()
    return stack


_shipped = cache(read_stack)


def _chains(table: Table) -> dict[str, Any]:
    """The most that fused chains move, and of the models counted; nothing of a stack that fuses none."""
    if "chains" not in table:
        return {}
    chains = table.table("chains")
    models = chains.table("models", {})
    counted = tuple((name, *_passes(models.table(name))) for name in models.values())
    keys = ("forward_chains", "backward_chains", "counted_chains")
    return dict(zip(keys, (*_passes(chains), counted), strict=True))


def _passes(table: Table) -> list[float]:
    values = [table.positive(key) for key in ("forward", "backward")]
    table.finish()
    return values


def _completed(table: Table) -> dict[str, Any]:
    """The values of a stack file, and where it leaves them out those of the shipped stack that it is like."""
    values = dict(table.values())
    if "like" not in values:
        return values
    shipped = _completed(Table.read(file_of("stack", table.text("like"), STACKS)))
    del values["like"]
    tables = {key: rows | values.get(key, {}) for key, rows in shipped.items() if isinstance(rows, dict)}
    return shipped | values | tables


def _shares(table: Table, name: str, kind: type[T]) -> T:
    """The shares in a table of a stack file; 1 where they are left out."""
    inner = table.table(name, {})
    shares = inner.made(kind)
    inner.finish()
    return shares
