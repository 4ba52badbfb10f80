"""Frozen phases: text encoders before the first denoising step, and the VAE's decoder after the last.

Every device runs the text encoders on the prompts of its own predictions; ``decoding`` says who decodes.
"""

from itertools import chain

from profiles.checks import sum_in_order
from profiles.software.recipes import FROZEN_WEIGHT_BYTES
from strategies.patching.builder import SamplingBuilder
from strategies.patching.decoding import decode, least_decoding_s
from strategies.patching.footprint import between_phases
from strategies.patching.grid import Grid
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
    plan = phases[0].plan
    encoders, decoders = scenario.included(scenario.encoders), scenario.included(scenario.decoders)
    before = (Phase("encode", _encode(scenario, plan, encoders, guidance_groups), 1, 0),) if encoders else ()
    last = (Phase("decode", decode(scenario, plan, decoders), 1, 0),) if decoders else ()
    return (*before, *phases, *last)


def least_frozen_s(scenario: SamplingScenario, grid: Grid) -> float:
    """Seconds that the frozen components of a run take at least on the devices of a grid: exchanges are left out."""

    def make() -> float:
        images, prompts = grid.images(scenario), grid.batch(scenario)
        encoders, decoders = scenario.included(scenario.encoders), scenario.included(scenario.decoders)
        layers_s = (_layers_s(scenario, component, prompts) for component in encoders)
        encoding_s = sum_in_order(chain.from_iterable(layers_s))
        return encoding_s + least_decoding_s(scenario, decoders, grid.positions, images)

    return scenario.remember(("frozen", grid.data, grid.guidance, grid.positions), make)


def _encode(scenario: SamplingScenario, plan: Plan, components: list[int], guidance_groups: int) -> Plan:
    """The encoders one after another; one that is offloaded comes before its first layer and goes after its last.

    Both copies hold the GPU's stream and are of pageable memory, as those of accelerate's ``cpu_offload_with_hook``, by
    which diffusers moves whole components; all GPUs of a node copy at once.
    """
    builder = SamplingBuilder(plan.placement)
    images = scenario.workload.batch_size // plan.placement.num_groups
    prompts = images * scenario.workload.predictions // guidance_groups
    for component in components:
        for layer, seconds in enumerate(_layers_s(scenario, component, prompts)):
            for device in range(plan.num_devices):
                builder.compute(device, FrozenAction(component, layer, prompts), seconds)
    return builder.build((), _resident(scenario, plan, components))


def _layers_s(scenario: SamplingScenario, component: int, prompts: int) -> list[float]:
    """Seconds of the layers of an encoder on some prompts; its weights come with the first and go with the last."""
    layers_s = [float(seconds) for seconds in scenario.costs.forward_s(component, prompts)]
    moved_s = _moved_s(scenario, component)
    layers_s[0] += moved_s
    layers_s[-1] += moved_s
    return layers_s


def _moved_s(scenario: SamplingScenario, component: int) -> float:
    """Seconds of an offloaded encoder's weights between the host's memory and the card's, one way."""
    if scenario.workload.encoders == "resident":
        return 0.0
    size = scenario.model.components[component].parameters * FROZEN_WEIGHT_BYTES
    return scenario.host_side.copied_s(size, pageable=True)


def _resident(scenario: SamplingScenario, plan: Plan, components: list[int]) -> list[tuple[Buffer, ...]]:
    """Bytes that lie on each device while encoders run: of those that are offloaded, the largest."""
    kept = between_phases(plan)
    if scenario.workload.encoders == "resident":
        return kept
    largest = max(scenario.model.components[i].parameters for i in components)
    here = Buffer("text encoder", largest * FROZEN_WEIGHT_BYTES)
    return [(*row, here) for row in kept]
