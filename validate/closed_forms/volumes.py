"""Closed forms of PULSE's volumes: bytes of one sample's messages, forwards.

D devices, K blocks of which block i hands its output to block K - 1 - i, a bytes of a hidden state.
"""

from collections.abc import Iterator
from typing import Final

from profiles.clusters import load_cluster
from profiles.models import load_model
from profiles.synthetic import equal_blocks_transformer
from profiles.units import MIB
from sim.runs import replay
from strategies.plans.traces import Trace
from strategies.registry import make_strategy
from strategies.scenario import Scenario, TrainingWorkload
from validate.closed_forms.forms import Form, trained

ROWS: Final = 16
HIDDEN: Final = 64
HIDDEN_BYTES: Final = 2.0 * ROWS**2 * HIDDEN
DEGREES: Final = (2, 4, 8)
WAVES: Final = (1, 2)
SOURCE: Final = "PULSE, section IV and Table III"
UVIT_BYTES: Final = 258 * 2048 * 4
"""Hidden state of U-ViT 2.7 B: 258 tokens, width 2048, single precision."""
UVIT: Final = (
    ("pulse", 4, "both ways", "2 * 2 (D - 1) a", 12, 24.19),
    ("pulse", 8, "forwards", "2 (D - 1) a", 14, 28.22),
    ("1f1b", 4, "forwards", "((K + 4) D / 4 - 1) a, K = 48", 51, 102.80),
)
"""Strategy, degree, way, formula, how many hidden states, and the MiB that Table III prints."""
PRINTED: Final = 0.005
"""MiB that rounding leaves."""


def _forwards(trace: Trace) -> float:
    """Return the bytes of messages that are no gradients."""
    tensors = trace.plan.tensors
    sent = (transfer for transfer in trace.wiring.transfers if transfer is not None)
    return sum(one.size_bytes for one in sent if "gradient" not in tensors[one.tensor].role)


def skips() -> Iterator[Form]:
    """Yield the bytes of 1F1B, whose stages relay the skips, and of PULSE, whose devices keep them."""
    for degree in DEGREES:
        for waves in WAVES:
            blocks = 2 * degree * waves
            model = equal_blocks_transformer(blocks, rows=ROWS, hidden_size=HIDDEN, skips=True)
            setting = f"D = {degree}, K = {blocks}"
            for name, formula, expected, asked in (
                ("1f1b, relayed", "((K + 4) D / 4 - 1) a", (blocks + 4) * degree / 4 - 1, "relay"),
                ("pulse", "2 (D - 1) a", 2 * (degree - 1), None),
            ):
                route: dict[str, int | str] = (
                    {} if asked is None else {"skip_route": asked, "partition": "blocks"}
                )
                strategy = name.partition(",")[0]
                trace = trained(model, strategy, degree, degree, micro_batches=degree, **route)
                yield Form(
                    "PULSE: bytes of one sample forwards",
                    f"{name}, {setting}",
                    formula,
                    expected * HIDDEN_BYTES,
                    _forwards(trace) / degree,
                    SOURCE,
                )


def uvit() -> Iterator[Form]:
    """Yield what U-ViT 2.7 B sends, beside hidden states of its own size; the paper prints the same."""
    for strategy, degree, way, formula, states, printed in UVIT:
        workload = TrainingWorkload(degree, degree, self_conditioning=0.0)
        scenario = Scenario(load_model("uvit-2.7b"), load_cluster("p4de"), workload)
        trace = replay(
            make_strategy(strategy, {"pipeline_degree": degree, "micro_batches": degree}), scenario
        )
        sent = trace.p2p_bytes if way == "both ways" else _forwards(trace)
        expected = states * UVIT_BYTES / MIB
        setting = f"{strategy}, D = {degree}, {way}"
        family = "PULSE: MiB of U-ViT 2.7 B per sample"
        yield Form(family, setting, formula, expected, sent / degree / MIB, SOURCE)
        yield Form(
            family, setting, "as printed", printed, sent / degree / MIB, SOURCE, tolerance=PRINTED / printed
        )
