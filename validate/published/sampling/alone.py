"""Alone: a step of Wan on one H100 by kind of kernel, under its stack and by the laws of kernels measured alone.

Both are compared with the fastest published engine. The last column assumes no engine's code: it has the passes over
the hidden state in a block of Wan whose norms, rotations, sums and activation are one kernel each, none fused with
another.
"""

from dataclasses import replace
from typing import Final

from profiles.architectures.shares import WHOLE
from profiles.checks import sum_in_order
from profiles.software.stacks import FUSED, Fusion, Shares, Stack
from strategies.plans.workloads import SamplingWorkload
from strategies.sampling_scenario import SamplingScenario
from validate.points import cluster_of, model_of
from validate.published.clusters import changed_stack
from validate.published.ledger import Ledger
from validate.tables import Section, signed

MODEL, CLUSTER, ENGINE = "wan2.1-14b", "h100-nvlink-8", "LightX2V"
HEIGHT, WIDTH, FRAMES = 480, 832, 81
WIDE: Final = 13_824 / 5_120
"""Channels inside the feed-forward over those of the hidden state."""
SEPARATE_PASSES: Final = {
    "both norms that are modulated": 2 * 2,
    "norms and rotations of queries and keys": 2 * 2,
    "the norm before cross-attention, and that of its queries": 2 * 2,
    "the sums with attention, cross-attention and the feed-forward": 3 * 3,
    "the activation inside the feed-forward": 2 * WIDE,
}
"""Times that a block reads or writes all of the hidden state beside products and attention, where each is one kernel
and none is fused with another. Source: diffusers, WanTransformerBlock and WanAttnProcessor."""
NOTHING: Final = Fusion(**dict.fromkeys(FUSED, 0.0))


def kernels_alone(ledger: Ledger) -> list[Section]:
    """The seconds of a step by kind of kernel, compared with the published engine's."""
    published_s = next(one.row.value for one in ledger.records if one.row.method_config == ENGINE)
    simulated = changed_stack("compiled", "newest-attention")
    measured = replace(simulated, rates=Shares(), device_rates=())
    alone = _parts_s(measured)
    columns = [_parts_s(simulated), alone, [*alone[:2], _separate_passes_s(measured)]]
    kinds = ("products, and attention to the text", "self-attention", "passes through memory")
    seconds = [[kind, *(f"{of[row]:.2f} s" for of in columns)] for row, kind in enumerate(kinds)]
    totals = [sum_in_order(of) for of in columns]
    together = ["together", *(f"{total_s:.2f} s" for total_s in totals)]
    beside = [f"over the {published_s:g} s of {ENGINE}", *(signed(of / published_s - 1) for of in totals)]
    header = ("kernels", simulated.name, "as measured alone", "and passes of one kernel each")
    return [Section("A step of Wan on one H100", header, [*seconds, together, beside])]


def _parts_s(stack: Stack) -> list[float]:
    """Seconds of a step's products, of its self-attention, and of all memory-bound kernels."""
    none = replace(stack, traffic=NOTHING, launches=NOTHING)
    whole_s, bare_s = (_step_s(of) for of in (stack, none))
    attention_s = _step_s(stack, attention=True)
    return [bare_s - attention_s, attention_s, whole_s - bare_s]


def _step_s(stack: Stack, *, attention: bool = False) -> float:
    """Seconds of the GPU in a step, or of its self-attention."""
    scenario = _scenario(stack)
    seconds = scenario.costs.attention_s if attention else scenario.costs.gpu_s
    return float(seconds(scenario.backbone_index, scenario.workload.predictions, WHOLE).sum())


def _scenario(stack: Stack) -> SamplingScenario:
    model = model_of(MODEL)
    workload = SamplingWorkload(1, HEIGHT, WIDTH, 1, guidance=model.guidance, frames=FRAMES)
    return SamplingScenario(model, cluster_of(CLUSTER), workload, stack=stack)


def _separate_passes_s(stack: Stack) -> float:
    """Seconds of the passes of kernels that are not fused with one another, at the rate of arrays beyond any cache."""
    scenario = _scenario(stack)
    layers = len(scenario.backbone.layers)
    hidden_bytes = scenario.workload.predictions * scenario.hidden_bytes(layers // 2)
    passes = layers * sum_in_order(SEPARATE_PASSES.values())
    return float(scenario.costs.copied_s(scenario.backbone_index, passes * hidden_bytes, 0))
