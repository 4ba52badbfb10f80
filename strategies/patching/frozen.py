"""Frozen phases: text encoders before the first denoising step, and the VAE's decoder after the last.

Every device runs the text encoders on the prompts of its own predictions. Where an image or a video is given, to edit
or to make a video of (``include`` names the VAE's encoder), it encodes one for each that is drawn. The last stage's
first device of each data-parallel group decodes the group's images: as they are, band by band of rows, or tile by tile.
Tiles overlap and are blended there, as diffusers' ``enable_tiling`` has it; bands do not.

Or several devices divide the rows of an image, as DistVAE does for xDiT: all compute what the decoder does until its
attention, on the latents; then each computes its rows, gets a row from each neighbour before every convolution, and
sums the statistics of every group norm with the others. The images are gathered at the end.
"""

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import chain
from math import ceil
from typing import Final, NamedTuple

from profiles.architectures.components import Component
from profiles.architectures.shares import HALF_BYTES, WHOLE, Share
from profiles.software.recipes import FROZEN_WEIGHT_BYTES
from strategies.patching.builder import SamplingBuilder
from strategies.patching.footprint import WEIGHTS, between_phases, decoding_bytes
from strategies.patching.grid import Grid
from strategies.plans.actions import FrozenAction
from strategies.plans.plan import Buffer, Plan
from strategies.sampling_scenario import SamplingScenario
from strategies.strategy import Phase


def with_frozen(
    scenario: SamplingScenario, phases: tuple[Phase, ...], guidance_groups: int
) -> tuple[Phase, ...]:
    """The phases of a run with those of the frozen components that the workload includes.

    ``guidance_groups`` of devices each do one of an image's predictions; 1 where none is divided. Where whole
    components are moved, the backbone comes before the first step and goes after the last.
    """
    plan = phases[0].plan
    encoders, decoders = scenario.included(scenario.encoders), scenario.included(scenario.decoders)
    before = (Phase("encode", _encode(scenario, plan, encoders, guidance_groups), 1, 0),) if encoders else ()
    last = (Phase("decode", decode(scenario, plan, decoders), 1, 0),) if decoders else ()
    whole = scenario.workload.moved and not scenario.workload.streamed
    moves = (Phase("denoise", _move(scenario, plan), 1, 0),) if whole else ()
    return (*before, *moves, *phases, *moves, *last)


def _move(scenario: SamplingScenario, plan: Plan) -> Plan:
    """The backbone's weights on their way to the devices of a plan, or back; each expert's in its turn."""
    builder = SamplingBuilder(plan.placement)
    for device, buffers in enumerate(plan.resident):
        size = scenario.backbone.experts * sum(
            buffer.size_bytes for buffer in buffers if buffer.name == WEIGHTS
        )
        action = FrozenAction(scenario.backbone_index, 0, 0)
        builder.compute(device, action, scenario.host_side.copied_s(size, pageable=True))
    return builder.build((), plan.resident)


def least_frozen_s(scenario: SamplingScenario, grid: Grid) -> float:
    """Seconds that the frozen components of a run take at least on the devices of a grid: exchanges are left out."""
    images = grid.images(scenario)
    prompts = images * scenario.workload.prompts // grid.guidance
    encoders, decoders = scenario.included(scenario.encoders), scenario.included(scenario.decoders)
    encoding = (_layers_s(scenario, index, _given(scenario, index, images, prompts)) for index in encoders)
    decoding = (_Decoding(scenario, component, images).layers_s(grid.positions) for component in decoders)
    return sum(chain.from_iterable(encoding)) + sum(chain.from_iterable(decoding))


def _encode(scenario: SamplingScenario, plan: Plan, components: list[int], guidance_groups: int) -> Plan:
    """The encoders one after another; one that is moved comes before its first layer and goes after its last.

    Both copies hold the GPU's stream and are of pageable memory, as those of accelerate's ``cpu_offload_with_hook``, by
    which diffusers moves whole components; all GPUs of a node copy at once.
    """
    builder = SamplingBuilder(plan.placement)
    images = scenario.workload.batch_size // plan.placement.num_groups
    prompts = images * scenario.workload.prompts // guidance_groups
    for component in components:
        count = _given(scenario, component, images, prompts)
        for layer, seconds in enumerate(_layers_s(scenario, component, count)):
            action = FrozenAction(component, layer, count)
            builder.compute_together(range(plan.num_devices), action, seconds)
    return builder.build((), _encoding(scenario, plan.resident, components, images))


def _given(scenario: SamplingScenario, component: int, images: int, prompts: int) -> int:
    """What an encoder encodes: an image for each that is drawn, which all its predictions share, or prompts."""
    return prompts if scenario.task in scenario.model.components[component].tasks else images


def _layers_s(scenario: SamplingScenario, component: int, prompts: int) -> list[float]:
    """Seconds of an encoder's layers on some prompts; offloaded weights come with the first and go with the last."""
    layers_s = [float(seconds) for seconds in scenario.costs.forward_s(component, prompts)]
    copies_s = _copies_s(scenario, component) if scenario.workload.encoders_moved else [0.0] * len(layers_s)
    return [layer_s + copied_s for layer_s, copied_s in zip(layers_s, copies_s, strict=True)]


def _copies_s(scenario: SamplingScenario, component: int) -> list[float]:
    """Seconds of copies beside each layer of a component: its own weights, or all with the first and the last."""
    sizes: list[float] = [
        layer.parameters * FROZEN_WEIGHT_BYTES for layer in scenario.model.components[component].layers
    ]
    if not scenario.workload.streamed:
        whole, sizes = sum(sizes), [0.0] * len(sizes)
        sizes[0] += whole
        sizes[-1] += whole
    return [scenario.host_side.copied_s(size, pageable=True) for size in sizes]


def _held_bytes(scenario: SamplingScenario, component: int) -> float:
    """The weights of a component that runs without staying: all, or the largest layer's."""
    held = [layer.parameters for layer in scenario.model.components[component].layers]
    return FROZEN_WEIGHT_BYTES * (max(held) if scenario.workload.streamed else sum(held))


def least_frozen_bytes(
    scenario: SamplingScenario, grid: Grid, resident: Sequence[tuple[Buffer, ...]]
) -> float:
    """Bytes that lie on the fullest device while encoders run, beside what stays of its denoising steps."""
    encoders = scenario.included(scenario.encoders)
    rows = _encoding(scenario, resident, encoders, grid.images(scenario)) if encoders else ()
    return max((float(sum(buffer.size_bytes for buffer in row)) for row in rows), default=0.0)


def _encoding(
    scenario: SamplingScenario, resident: Sequence[tuple[Buffer, ...]], components: list[int], images: int
) -> list[tuple[Buffer, ...]]:
    """Bytes that lie on each device while encoders run: activations of given images, the largest that is offloaded."""
    extents, model = scenario.costs.extents, scenario.model.components
    given = [i for i in components if scenario.task not in model[i].tasks]
    sizes = [images * decoding_bytes(model[i], extents[i], 1.0) for i in given]
    encoded = tuple(Buffer("encoded image", size) for size in sizes)
    kept = [(*row, *encoded) for row in between_phases(scenario, resident)]
    if not scenario.workload.encoders_moved:
        return kept
    here = Buffer("text encoder", max(_held_bytes(scenario, i) for i in components))
    return [(*row, here) for row in kept]


OVERLAP: Final = 0.25
"""Share of a tile's side that the next one repeats. Source: diffusers, ``tile_overlap_factor`` of AutoencoderKL."""
SPATIAL: Final = 3.0
"""Uses of each input element by one filter above which a convolution sees neighbouring rows: a window in time alone has
at most three positions, the smallest in space nine."""
GROUP_SUMS: Final = 2
"""All-reduces of a group norm: of the sums and the number of rows, then of the squares about the mean (DistVAE 0.1.0,
PatchGroupNorm)."""
GROUPS: Final = 32
"""Groups of a norm. Source: diffusers, AutoencoderKL and AutoencoderKLCogVideoX."""
SUM_BYTES: Final = 4.0
"""Bytes of a group's sum."""


class Seam(NamedTuple):
    """The exchanges of devices that divide a layer's rows, per image.

    Attributes:
        halos: convolutions that need neighbouring rows.
        row_bytes: of one row of the inputs of all of these.
    """

    halos: int
    row_bytes: float
    norms: int


def decode(scenario: SamplingScenario, plan: Plan, components: Sequence[int]) -> Plan:
    """The plan of decoding the results of a plan of denoising steps."""
    builder, resident = (
        SamplingBuilder(plan.placement, scenario.frozen_calls),
        between_phases(scenario, plan.resident),
    )
    images = scenario.workload.batch_size // plan.placement.num_groups
    first, gpus, held = plan.stages[-1].position, plan.num_devices, dict[int, float]()
    for component in components:
        decoding = _Decoding(scenario, component, images)
        devices = sorted((first + number) % gpus for number in range(decoding.divided(gpus)))
        size = 0.0
        if scenario.workload.moved:
            size = _held_bytes(scenario, component)
            copied_s = sum(_copies_s(scenario, component))
            builder.compute_together(devices, FrozenAction(component, 0, 0), copied_s)
        size += decoding.together(builder, devices) if len(devices) > 1 else decoding.alone(builder, first)
        held |= {device: max(held.get(device, 0.0), size) for device in devices}
    for device, size in held.items():
        resident[device] = (*resident[device], Buffer("decoded rows", size))
    return builder.build((), resident)


def _reference_rows(scenario: SamplingScenario, component: int) -> float:
    """Rows of a decoder's latents at the reference."""
    decoder, model = scenario.model.components[component], scenario.model
    return float((decoder.image_tokens / decoder.frames * model.height / model.width) ** 0.5)


@dataclass(frozen=True, slots=True)
class _Decoding:
    """How one component decodes some images."""

    scenario: SamplingScenario
    component: int
    images: int

    @property
    def of(self) -> Component:
        """The component."""
        return self.scenario.model.components[self.component]

    @property
    def rows(self) -> int:
        """Rows of the latents that it begins with."""
        scenario = self.scenario
        growth = scenario.workload.height / scenario.model.height
        return max(1, round(_reference_rows(scenario, self.component) * growth))

    def divided(self, gpus: int) -> int:
        """Devices that divide the rows: by the workload, but no more than GPUs or rows."""
        return min(self.scenario.workload.vae_parallel, gpus, self.rows)

    def layers_s(self, gpus: int) -> Iterable[float]:
        """The seconds of each layer on one of the devices that decode."""
        count = self.divided(gpus)
        return self.together_s(count) if count > 1 else chain.from_iterable(self.alone_s())

    def alone_s(self) -> Iterator[list[float]]:
        """The seconds of each layer where one device decodes, piece by piece."""
        for share, count in self._pieces().items():
            layers_s = self.scenario.costs.forward_s(self.component, self.images, Share(share, share))
            yield from [[float(seconds) for seconds in layers_s]] * count

    def _pieces(self) -> Counter[float]:
        """Pieces of an image by the share of its pixels that they have."""
        workload = self.scenario.workload
        if workload.vae_tile is None:
            return Counter({1 / workload.decode_chunks: workload.decode_chunks})
        return Counter(tile_shares(workload.height, workload.width, workload.vae_tile))

    def together_s(self, count: int) -> list[float]:
        """The seconds of each layer on each of several devices that divide the rows."""
        whole, most = whole_layers(self.of), self._most(count)
        costs = self.scenario.costs.components[self.component]
        all_s, rows_s = (costs.gpu_s(self.images, share) for share in (WHOLE, Share(most, most)))
        return [*map(float, all_s[:whole]), *map(float, rows_s[whole:])]

    def _most(self, count: int) -> float:
        """Share of the rows on the device that has most of them."""
        return ceil(self.rows / count) / self.rows

    def alone(self, builder: SamplingBuilder, device: int) -> float:
        """Let one device decode; the bytes that it holds meanwhile."""
        shares, extent = self._pieces(), self.scenario.costs.extents[self.component]
        for layers_s in self.alone_s():
            for layer, seconds in enumerate(layers_s):
                builder.compute(device, FrozenAction(self.component, layer, self.images), seconds)
        held = self.images * decoding_bytes(self.of, extent, max(shares))
        covered = sum(share * count for share, count in shares.items())
        return held + (covered * self._image_bytes if self.scenario.workload.vae_tile else 0.0)

    @property
    def _image_bytes(self) -> float:
        """Bytes of the decoded images; of a video those of all passes over its frames."""
        extent = self.scenario.costs.extents[self.component]
        return self.images * self.of.passes * (self.of.layers[-1].output_bytes * extent.tokens * extent.bytes)

    def together(self, builder: SamplingBuilder, devices: Sequence[int]) -> float:
        """Let several devices divide the rows; the bytes that each holds meanwhile."""
        whole, halos = whole_layers(self.of), seams(self.scenario, self.component)
        hosts_s = self.scenario.costs.components[self.component].host_s
        for layer, seconds in enumerate(self.together_s(len(devices))):
            if layer >= whole:
                self._exchange(builder, devices, halos[layer])
            action = FrozenAction(self.component, layer, self.images)
            builder.compute_together(devices, action, seconds, float(hosts_s[layer]))
        builder.collective("all_gather", devices, self._image_bytes, held_bytes=self._image_bytes)
        extent = self.scenario.costs.extents[self.component]
        return self.images * decoding_bytes(self.of, extent, self._most(len(devices)), whole)

    def _exchange(self, builder: SamplingBuilder, devices: Sequence[int], seam: Seam) -> None:
        """Append the exchanges of a layer; a device between two others sends a row to each."""
        if seam.halos:
            size = min(2, len(devices) - 1) * self.images * seam.row_bytes
            builder.collective("send_recv", devices, size, calls=seam.halos)
        if seam.norms:
            size = GROUP_SUMS * seam.norms * self.images * GROUPS * SUM_BYTES
            builder.collective("all_reduce", devices, size, calls=GROUP_SUMS * seam.norms)


def tile_shares(height: int, width: int, side: int) -> Iterator[float]:
    """Shares of an image's pixels in the tiles that cover it, row by row; those at the far borders are smaller."""
    for down in _lengths(height, side):
        for along in _lengths(width, side):
            yield down * along / (height * width)


def _lengths(pixels: int, side: int) -> list[int]:
    """Pixels of the tiles along one side; neighbours overlap."""
    if pixels <= side:
        return [pixels]
    return [min(side, pixels - start) for start in range(0, pixels, int(side * (1 - OVERLAP)))]


def whole_layers(component: Component) -> int:
    """Layers of a decoder that every device computes whole: all up to its last attention, which sees all rows.

    Source: DistVAE's DecoderAdapter, for images. What decodes videos divides these layers too; they are few, and stay
    whole here.
    """
    attending = [number for number, layer in enumerate(component.layers) if layer.attention_flop]
    return max(attending, default=-1) + 1


def seams(scenario: SamplingScenario, component: int) -> list[Seam]:
    """Return the exchanges of each layer of a decoder, from its kernels at this resolution.

    A convolution with a window of 3 x 3 needs one row of its input above and one below. Where convolutions have twice
    as many positions as before, or more, a level has begun: it has twice the rows, and of a video perhaps more frames.
    """
    decoder, extent = scenario.model.components[component], scenario.costs.extents[component]
    layers, rows, before = [], _reference_rows(scenario, component), 0
    for kernels in decoder.half_kernels:
        spatial = [k for k in kernels if k.kind == "conv" and HALF_BYTES * k.m * k.k > SPATIAL * k.read_bytes]
        positions = max((kernel.m for kernel in spatial), default=0)
        rows *= 2 if 0 < 2 * before <= positions else 1
        before = max(before, positions)
        row_bytes = sum(kernel.count * kernel.read_bytes for kernel in spatial) / rows * extent.width
        norms = sum(kernel.count for kernel in kernels if kernel.kind == "group_norm")
        layers.append(Seam(sum(kernel.count for kernel in spatial), row_bytes, norms))
    return layers
