"""Closed forms of training: seconds of an iteration, its idle share, activations held and bytes sent.

P positions, M micro-batches, f and b seconds of the forward and the backward of one stage on one micro-batch
(b = 2 f: B of the input part and W of the weight part), v chunks per position; equal stages, free links. In a wave
stages are half as long, and f and b are those of one of them. In PULSE's volumes: D devices, K blocks of which block i
hands its output to block K - 1 - i, a bytes of a hidden state.
"""

from collections.abc import Iterator
from functools import cache
from itertools import product
from typing import Final

from profiles.architectures.synthetic import equal_layers_model
from sim.replay.memory import peak_memory_bytes, resident_bytes
from sim.replay.metrics import idle_s
from strategies.plans.traces import Trace
from validate.closed_forms.forms import Form, form, letter_text
from validate.equal_blocks import equal_blocks_transformer
from validate.points import forward_bytes, replayed, scenario

DEGREES: Final = (2, 4, 8)
GRIDS: Final = {
    "gpipe": ((1, 2, 4), (1,)),
    "1f1b": ((1, 2, 4), (1,)),
    "interleaved": ((1, 2, 4), (2, 4)),
    "zero-bubble": ((1, 2, 4), (1,)),
    "bidirectional": ((1, 2, 3), (1,)),
    "wave": ((1,), (2,)),
    "pulse": ((1,), (2,)),
}
"""Micro-batches over positions and stages per position, by strategy."""
SECONDS: Final = {"f": 1.0, "b": 2.0, "B": 1.0, "W": 1.0}
RATIO: Final = "1 - M * v * (f + b) / seconds"
ROWS: Final = 16
HIDDEN: Final = 64
HIDDEN_BYTES: Final = 2.0 * ROWS**2 * HIDDEN


@cache
def _replayed(strategy: str, degree: int, count: int, chunks: int) -> Trace:
    """The replay of a pipeline whose stages are one layer each, on free links."""
    model = equal_layers_model(degree * chunks, SECONDS["f"], saved_bytes=1.0)
    parameters = {"chunks": chunks} if strategy == "interleaved" else {}
    point = scenario(model, "ideal", degree, count, self_conditioning=0.0)
    return replayed(strategy, point, pipeline_degree=degree, micro_batches=count, **parameters)


def pipelines() -> Iterator[Form]:
    """Seconds, bubble ratio and activations of each named order."""
    for strategy, (rounds, chunks) in GRIDS.items():
        for degree, times, of in product(DEGREES, rounds, chunks):
            yield from pipeline(strategy, {"P": degree, "M": times * degree, "v": of})


def pipeline(strategy: str, letters: dict[str, int]) -> Iterator[Form]:
    """Seconds, bubble ratio and activations of one pipeline; for PULSE no activations, as its order is a wave's."""
    trace = _replayed(strategy, *letters.values())
    values = {**letters, **SECONDS}
    setting = letter_text({key: letters[key] for key in letters if key != "v" or strategy == "interleaved"})
    seconds = form(f"{strategy}: seconds", strategy, trace.end_s, values, setting)
    yield seconds
    idle = 1 - letters["M"] * letters["v"] * (SECONDS["f"] + SECONDS["b"]) / seconds.expected
    ratio = idle_s(trace) / trace.end_s
    yield Form(f"{strategy}: bubble ratio", setting, RATIO, idle, ratio, seconds.source)
    if strategy != "pulse":
        held = float((peak_memory_bytes(trace) - resident_bytes(trace)).max())
        yield form(f"{strategy}: activations held", strategy, held, values, setting)


def skips() -> Iterator[Form]:
    """Bytes of 1F1B, whose stages relay the skips, and of PULSE, whose devices keep them."""
    relayed = {"skip_route": "relay", "partition": "blocks"}
    for degree, waves in product(DEGREES, (1, 2)):
        blocks = 2 * degree * waves
        model = equal_blocks_transformer(blocks, rows=ROWS, hidden_size=HIDDEN, skips=True)
        point = scenario(model, "ideal", degree, degree, self_conditioning=0.0)
        letters = {"D": degree, "K": blocks, "a": HIDDEN_BYTES}
        for name, parameters in (("1f1b, relayed", relayed), ("pulse", {})):
            strategy = name.partition(",")[0]
            trace = replayed(strategy, point, pipeline_degree=degree, micro_batches=degree, **parameters)
            yield form("PULSE: bytes of one sample forwards", name, forward_bytes(trace) / degree, letters)
