"""Hosts: the seconds in which the host of a box hands operators, collectives and messages to the GPU.

The host runs ahead of the GPU, so what a call costs it counts only where the GPU waits for the host: between two points
where the device waits, a run takes the longer of the two. A graph of a whole pass leaves no calls.
"""

from dataclasses import dataclass
from typing import Final, NamedTuple

from profiles.checks import check_fields
from profiles.errors import InputError
from profiles.files import Table

CALLS_S: Final = {
    "all_reduce": 500e-6,
    "all_gather": 150e-6,
    "reduce_scatter": 500e-6,
    "all_to_all": 300e-6,
    "send_recv": 500e-6,
}
"""Seconds of the host for one call, with the software around it, by operation. Source: released rows of small
images on A100s (PipeFusion v1, Fig. 9) leave about this much beside 10 us per operator. Estimates: scatters as sums;
gathers 44 us for NCCL called from Python (measured on A100: aic, vllm) and ten operators for the list of tensors that
each fills."""
MESSAGE_S: Final = CALLS_S["send_recv"] / 2
"""Seconds of the host for one end of a message: a round of a ring posts a send and a receive."""
STEP_OPERATORS: Final = 30
"""Operators of a denoising step beside the backbone, in seconds of the host: guidance, and the solver's step. Source:
counted and timed with diffusers 0.42: DPM-Solver++ takes 64 operators, most of them on numbers, in the time of 12 of a
backbone's, and about 15 launches on the GPU come on top."""
PATCH_OPERATORS: Final = 12
"""Operators before the first layer of a transformer that embed the image's patches, and a text that passes through the
layers. Source: counted in PixArt (10), SD3 (13) and FLUX (8) of diffusers 0.42; xDiT runs these on the first stage of a
pipeline, and all that embeds the time step and PixArt's text on every stage."""
CACHE_OPERATORS: Final = 4
"""Operators that put a patch's keys and values beside those of the others. Source: PipeFusion's first release: two
slices, a copy and a split for each self-attention."""
AHEAD: Final = 1024
"""Operators by which the host may be ahead of the GPU: CUDA queues as many launches, then a launch waits. Observed in
programs; NVIDIA's documents do not state it."""


@dataclass(frozen=True, slots=True)
class Host:
    """The host of a box.

    Attributes:
        slowness: ratio of its seconds to those of a stack's operators and of ``CALLS_S``; ``pace`` in files.
        low: the least that ``slowness`` may be.
        high: the most that it may be.
    """

    slowness: float
    low: float
    high: float

    def __post_init__(self) -> None:
        check_fields("host", self)
        if not self.low <= self.slowness <= self.high:
            raise InputError(
                f"host: pace is {self.slowness:g}, must be from low, {self.low:g}, to high, {self.high:g}"
            )


BOX: Final = Host(0.8, 0.57, 1.02)
"""A box of which nothing is known: the middle of those of which something is, and their range. Source: ``python -m
validate hosts``: 8 A100 over NVLink 1.02, 8 L40 over PCIe 0.57."""
FREE: Final = Host(0.0, 0.0, 0.0)
"""A host that takes no time."""


def read_host(table: Table) -> Host:
    """The table ``host`` of a cluster file."""
    host = table.made(Host, slowness=table.number("pace"))
    table.text("source")
    table.finish()
    return host


class Calls(NamedTuple):
    """Costs of the calls of collectives and messages to the host of a run, beside the operators that it dispatches.

    Attributes:
        slowness: ratio of the seconds of a call to those it takes; 0 where a graph leaves no calls.
        ahead_s: seconds of dispatching by which the host may be ahead of the GPU.
        call_s: seconds that any call takes; ``None``: by ``CALLS_S``.
    """

    slowness: float = 0.0
    ahead_s: float = 0.0
    call_s: float | None = None

    def collective_s(self, operation: str, calls: int) -> float:
        """Seconds of the host for ``calls`` calls of an operation."""
        return self.slowness * calls * (CALLS_S[operation] if self.call_s is None else self.call_s)

    @property
    def message_s(self) -> float:
        """Seconds of the host for one end of a message."""
        return self.slowness * (MESSAGE_S if self.call_s is None else self.call_s / 2)


NO_CALLS: Final = Calls()
