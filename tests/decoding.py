"""Decoding: PixArt's own decoder, its rows divided over real ranks, beside the same in one process.

Weights follow from a seed. Up to its attention every rank computes all rows; then each computes its own, gets a row
from each neighbour before every convolution with a window, and sums the statistics of every group norm with the others.
What each rank sends is counted, and held against the plan of ``strategies.patching.frozen``.
"""

from collections import Counter
from typing import Final, NamedTuple

import torch
from torch import Tensor, nn
from torch import distributed as dist
from torch.nn.functional import conv2d

from profiles.architectures.models import load_model
from profiles.machines.clusters import load_cluster
from profiles.measuring.counting.component import build
from profiles.measuring.counting.zoo import architecture
from profiles.measuring.launching import launch
from strategies.patching.frozen import with_frozen
from strategies.plans.workloads import SamplingWorkload
from strategies.registry import make_sampler
from strategies.sampling_scenario import SamplingScenario
from validate.running.rank import joined
from validate.running.sampling.settings import WIDENING

MODEL: Final = "pixart"
DECODER: Final = "vae_decoder"
SEED: Final = 0
UP: Final = 1  # tags of rows, by the way they go
DOWN: Final = 2


class Decoded(NamedTuple):
    """What a rank ended with: the image, and the bytes that it sent of rows, sums and its part of the image."""

    image: Tensor
    sent: Counter[str]


class Rows:
    """The band of rows of one of several ranks; ``halos`` is False where a fault lets it see no others."""

    def __init__(self, latent_rows: int, *, halos: bool = True) -> None:
        self.rank, self.size, self.halos = dist.get_rank(), dist.get_world_size(), halos
        self.of = [len(band) for band in torch.arange(latent_rows).tensor_split(self.size)]
        self.sent: Counter[str] = Counter()

    def band(self, hidden: Tensor) -> Tensor:
        """The own rows of a hidden state that every rank has."""
        return hidden.narrow(2, sum(self.of[: self.rank]), self.of[self.rank])

    @property
    def share(self) -> float:
        """The share of all rows in one's own, at any level."""
        return self.of[self.rank] / sum(self.of)

    def with_neighbours(self, hidden: Tensor) -> Tensor:
        """The own rows between the last one above and the first one below; zeros beyond the image."""
        above, below = torch.zeros_like(hidden[:, :, :1]), torch.zeros_like(hidden[:, :, :1])
        works = []
        ends = (
            (self.rank - 1, hidden[:, :, :1].contiguous(), above, (UP, DOWN)),
            (self.rank + 1, hidden[:, :, -1:].contiguous(), below, (DOWN, UP)),
        )
        for other, row, arriving, (leaves, comes) in ends:
            if 0 <= other < self.size and self.halos:
                works += [dist.isend(row, other, tag=leaves), dist.irecv(arriving, other, tag=comes)]
                self.sent["send_recv"] += row.nbytes
        for work in works:
            assert work is not None
            work.wait()
        return torch.cat([above, hidden, below], dim=2)

    def summed(self, values: Tensor) -> Tensor:
        """The sum of all ranks' values."""
        dist.all_reduce(values)
        self.sent["all_reduce"] += values.nbytes
        return values

    def whole(self, band: Tensor) -> Tensor:
        """The rows of all ranks, on all ranks."""
        scale = band.shape[2] // self.of[self.rank]
        bands = [band.new_empty(*band.shape[:2], scale * rows, band.shape[3]) for rows in self.of]
        bands[self.rank] = band.contiguous()
        for rank, part in enumerate(bands):
            dist.broadcast(part, rank)
        self.sent["all_gather"] += band.nbytes
        return torch.cat(bands, dim=2)


class HaloConvolution(nn.Module):
    """A convolution with a window of 3 x 3 on a band of rows."""

    def __init__(self, whole: nn.Conv2d, rows: Rows) -> None:
        super().__init__()
        self.whole, self.rows = whole, rows

    def forward(self, hidden: Tensor) -> Tensor:
        """The own rows of its output."""
        return conv2d(self.rows.with_neighbours(hidden), self.whole.weight, self.whole.bias, padding=(0, 1))


class SummedNorm(nn.Module):
    """A group norm on a band of rows, whose mean and variance are of all rows."""

    def __init__(self, whole: nn.GroupNorm, rows: Rows) -> None:
        super().__init__()
        self.whole, self.rows = whole, rows

    def forward(self, hidden: Tensor) -> Tensor:
        """The own rows of its output."""
        groups = hidden.reshape(len(hidden), self.whole.num_groups, -1)
        count = groups.shape[-1] / self.rows.share
        mean = self.rows.summed(groups.sum(-1, keepdim=True)) / count
        variance = self.rows.summed(((groups - mean) ** 2).sum(-1, keepdim=True)) / count
        normed = ((groups - mean) / torch.sqrt(variance + self.whole.eps)).reshape(hidden.shape)
        return normed * self.whole.weight[:, None, None] + self.whole.bias[:, None, None]


def _divide(decoder: nn.Module, rows: Rows) -> None:
    """Let the convolutions and norms of a decoder behind its attention see the rows of others."""
    middle = decoder.get_submodule("mid_block.resnets.1")
    kept = {
        id(module) for part in ("conv_in", "mid_block") for module in decoder.get_submodule(part).modules()
    }
    kept -= {id(module) for module in middle.modules()}
    for path, module in list(decoder.named_modules()):
        if isinstance(module, nn.Conv2d) and id(module) not in kept and module.kernel_size == (3, 3):
            decoder.set_submodule(path, HaloConvolution(module, rows))
        elif isinstance(module, nn.GroupNorm) and id(module) not in kept:
            decoder.set_submodule(path, SummedNorm(module, rows))


def _halves() -> tuple[nn.Module, nn.Module]:
    """What comes before the decoder, and the decoder, with random weights."""
    torch.manual_seed(SEED)
    spec = next(spec for spec in architecture(MODEL).components if spec.name == DECODER)
    both = build(spec, torch.float32, "cpu")
    return both.get_submodule("post_quant_conv"), both.get_submodule("decoder")


def _latents(pixels: int) -> Tensor:
    generator = torch.Generator().manual_seed(SEED)
    return torch.randn(1, 4, pixels // 8, pixels // 8, generator=generator)


def undivided(pixels: int) -> Tensor:
    """The image that one process decodes."""
    with torch.no_grad():
        before, decoder = _halves()
        image: Tensor = decoder(before(_latents(pixels)))
        return image


def divided(ranks: int, pixels: int) -> list[tuple[Decoded, Decoded]]:
    """What each of several ranks ends with that decode together, and what if none saw the rows of others."""
    return launch(ranks, on_rank, pixels)


def on_rank(pixels: int) -> tuple[Decoded, Decoded]:
    """What this process, one of the ranks, ends with."""
    with joined(), torch.no_grad():
        return _decoded(pixels, halos=True), _decoded(pixels, halos=False)


def _decoded(pixels: int, *, halos: bool) -> Decoded:
    (before, decoder), latents = _halves(), _latents(pixels)
    rows = Rows(latents.shape[2], halos=halos)
    hidden = decoder.get_submodule("conv_in")(before(latents))
    for path in ("mid_block.resnets.0", "mid_block.attentions.0"):
        hidden = decoder.get_submodule(path)(hidden, temb=None)
    _divide(decoder, rows)
    hidden = decoder.get_submodule("mid_block.resnets.1")(rows.band(hidden), None)
    ups = [f"up_blocks.{level}" for level in range(4)]
    for path in (*ups, "conv_norm_out", "conv_act", "conv_out"):
        hidden = decoder.get_submodule(path)(hidden)
    return Decoded(rows.whole(hidden), rows.sent)


def planned_bytes(ranks: int, pixels: int) -> dict[str, float]:
    """What the plan lets a rank between two others send of rows and sums, and the image, as wide as in the run."""
    workload = SamplingWorkload(ranks, pixels, pixels, 1, "none", include=(DECODER,), vae_parallel=ranks)
    scenario = SamplingScenario(load_model(MODEL), load_cluster("p4de"), workload)
    plan = with_frozen(scenario, make_sampler("ring", {}).phases(scenario), 1)[-1].plan
    found: Counter[str] = Counter()
    for collective in plan.collectives:
        widened = (
            1 if collective.operation == "all_reduce" else WIDENING
        )  # sums are in single precision anyway
        found[collective.operation] += int(widened * collective.size_bytes)
    return dict(found)
