"""Frozen phases: text encoders before the first denoising step, and the VAE's decoder after the last.

Every device runs the text encoders on the prompts of its own predictions; the last stage's first device of each
data-parallel group decodes the group's images, band by band of rows where it is told to.
"""

from profiles.shares import Share
from strategies.patching.builder import SamplingBuilder
from strategies.patching.footprint import PASSING, decoding_bytes
from strategies.plans.actions import FrozenAction
from strategies.plans.plan import Buffer, Plan
from strategies.sampling_scenario import SamplingScenario
from strategies.strategy import Phase


def with_frozen(
    scenario: SamplingScenario, phases: tuple[Phase, ...], guidance_groups: int
) -> tuple[Phase, ...]:
    """The phases of a run with those of the frozen components that the workload includes.

    Args:
        scenario: model and workload.
        phases: of the denoising steps.
        guidance_groups: groups of devices that each do one of an image's predictions; 1 where none is divided.
    """
    if not scenario.workload.include:
        return phases
    model, plan = scenario.model, phases[0].plan
    included = [i for i in model.order if model.components[i].name in scenario.workload.include]
    after = set(_after_backbone(scenario))
    encoders = [i for i in included if i not in after]
    decoders = [i for i in included if i in after]
    before = (Phase("encode", _encode(scenario, plan, encoders, guidance_groups), 1, 0),) if encoders else ()
    last = (Phase("decode", _decode(scenario, plan, decoders), 1, 0),) if decoders else ()
    return (*before, *phases, *last)


def _after_backbone(scenario: SamplingScenario) -> list[int]:
    """The components that need a backbone's output."""
    model = scenario.model
    reached = set(model.backbones)
    for index in model.order:
        if reached.intersection(model.inputs_of(index)):
            reached.add(index)
    return sorted(reached.difference(model.backbones))


def _encode(scenario: SamplingScenario, plan: Plan, components: list[int], guidance_groups: int) -> Plan:
    builder = SamplingBuilder(plan.placement)
    prompts = _images(scenario, plan) * scenario.workload.predictions // guidance_groups
    for component in components:
        for layer, seconds in enumerate(scenario.costs.forward_s(component, prompts)):
            for device in range(plan.num_devices):
                builder.compute(device, FrozenAction(component, layer, prompts), float(seconds))
    return builder.build((), _weights(plan))


def _decode(scenario: SamplingScenario, plan: Plan, components: list[int]) -> Plan:
    builder = SamplingBuilder(plan.placement)
    images, chunks = _images(scenario, plan), scenario.workload.decode_chunks
    device = plan.stages[-1].position
    held = 0.0
    for component in components:
        extent = scenario.costs.extents[component]
        layers_s = scenario.costs.forward_s(component, images, Share(1 / chunks, 1 / chunks))
        for _ in range(chunks):
            for layer, seconds in enumerate(layers_s):
                builder.compute(device, FrozenAction(component, layer, images), float(seconds))
        held = max(held, images * decoding_bytes(scenario.model.components[component], extent, chunks))
    resident = _weights(plan)
    resident[device] = (*resident[device], Buffer("decoded rows", held))
    return builder.build((), resident)


def _images(scenario: SamplingScenario, plan: Plan) -> int:
    """The images of one data-parallel group."""
    return scenario.workload.batch_size // plan.placement.num_groups


def _weights(plan: Plan) -> list[tuple[Buffer, ...]]:
    """Bytes that stay on each device between the phases."""
    return [tuple(buffer for buffer in row if buffer.name not in PASSING) for row in plan.resident]
