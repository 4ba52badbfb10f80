"""Networks that neither diffusers nor transformers has: U-ViT, ControlNet 1.0 on Stable Diffusion 1.5, HunyuanImage-3.

U-ViT is a vision transformer on patches, time and class as tokens, with skips from its first half to its second (Bao et
al., All are Worth Words: a ViT Backbone for Diffusion Models, CVPR 2023, and its published code).

ControlNet is a trained copy of a U-Net's encoder that steers the locked U-Net. The chain that gradients pass through is
the copy, whose blocks each end with the convolution that makes a residual of their output, and after it the locked
decoder, which adds the residuals to the locked encoder's skips.
"""

from collections.abc import Iterator
from typing import Any, ClassVar, Final

import torch
from diffusers.models.controlnets.controlnet import ControlNetModel
from diffusers.models.embeddings import TimestepEmbedding, get_timestep_embedding
from diffusers.models.resnet import ResnetBlock2D
from diffusers.models.unets.unet_2d_condition import UNet2DConditionModel
from torch import Tensor, nn
from torch.nn.functional import pixel_shuffle, scaled_dot_product_attention

from profiles.measuring.counting.specs import plain

EXTRA_TOKENS: Final = 2  # time and class
NUM_CLASSES: Final = 1001  # the last one stands for none
HEAD_CHANNELS: Final = 64
TIME: Final = 256  # waves that embed a time


class Block(nn.Module):
    """A transformer block; some have fewer heads of keys and values than of queries, or join a skip first."""

    def __init__(
        self,
        norm: type[nn.Module],
        feed: nn.Module,
        width: int,
        heads: tuple[int, int],
        *,
        joins: bool = False,
    ) -> None:
        super().__init__()
        channels, few = width // heads[0], heads[1] < heads[0]
        self.heads, self.feed = (heads[0], heads[1], heads[1]), feed
        self.join = nn.Linear(2 * width, width) if joins else None
        self.norm1, self.norm2 = norm(width), norm(width)
        self.query_norm, self.key_norm = (norm(channels) if few else nn.Identity() for _ in range(2))
        self.query_key_value = nn.Linear(width, sum(self.heads) * channels, bias=False)
        self.projection = nn.Linear(width, width, bias=not few)

    def forward(self, tokens: Tensor, skip: Tensor | None = None) -> Tensor:
        """The tokens after attention and feed-forward."""
        if self.join is not None and skip is not None:
            tokens = self.join(torch.cat([tokens, skip], dim=-1))
        heads = self.query_key_value(self.norm1(tokens)).unflatten(-1, (sum(self.heads), -1)).transpose(1, 2)
        query, key, value = heads.split(self.heads, dim=1)
        key, copies = self.key_norm(key), self.heads[0] // self.heads[1]
        if copies > 1:
            key, value = (tensor.repeat_interleave(copies, dim=1) for tensor in (key, value))
        attended = scaled_dot_product_attention(self.query_norm(query), key, value).transpose(1, 2).flatten(2)
        tokens = tokens + self.projection(attended)
        result: Tensor = tokens + self.feed(self.norm2(tokens))
        return result


class UVit(nn.Module):
    """A U-ViT of ``depth`` blocks and one in the middle, with positions for square latents of ``sample_size``."""

    def __init__(
        self, width: int, depth: int, in_channels: int, sample_size: int = 32, patch_size: int = 2
    ) -> None:
        super().__init__()
        heads, num_patches = (width // HEAD_CHANNELS,) * 2, (sample_size // patch_size) ** 2
        self.patch_size = patch_size
        self.embedding = nn.Conv2d(in_channels, width, patch_size, stride=patch_size)
        self.classes = nn.Embedding(NUM_CLASSES, width)
        self.positions = nn.Parameter(torch.empty(1, EXTRA_TOKENS + num_patches, width))
        feeds = (
            (nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width)) for _ in range(depth + 1)
        )
        self.blocks = nn.ModuleList(
            Block(nn.LayerNorm, nn.Sequential(*feed), width, heads, joins=i > depth // 2)
            for i, feed in enumerate(feeds)
        )
        self.norm = nn.LayerNorm(width)
        self.prediction = nn.Linear(width, patch_size**2 * in_channels)
        self.conv_out = nn.Conv2d(in_channels, in_channels, 3, padding=1)

    def forward(self, sample: Tensor, timestep: Tensor, label: Tensor) -> Tensor:
        """The predicted noise."""
        patches = self.embedding(sample)
        time = get_timestep_embedding(timestep, patches.shape[1]).to(sample.dtype)
        tokens = [time.unsqueeze(1), self.classes(label).unsqueeze(1), patches.flatten(2).transpose(1, 2)]
        hidden = torch.cat(tokens, dim=1)
        hidden = hidden + self.positions[:, : hidden.shape[1]]
        skips: list[Tensor] = []
        for i, block in enumerate(self.blocks):
            hidden = block(hidden, skips.pop()) if i > len(self.blocks) // 2 else block(hidden)
            if i < len(self.blocks) // 2:
                skips.append(hidden)
        predicted = self.prediction(self.norm(hidden))[:, EXTRA_TOKENS:].transpose(1, 2)
        grid = predicted.unflatten(-1, patches.shape[2:])
        image: Tensor = self.conv_out(pixel_shuffle(grid, self.patch_size))
        return image


class Experts(nn.Module):
    """A gated feed-forward that every token passes, and those of many that routing chooses for it.

    Tokens are taken to spread evenly over these: the weights of all are read, the work is that of the chosen ones.
    """

    def __init__(self, width: int, inner: int, experts: int, chosen: int) -> None:
        super().__init__()
        self.chosen, self.gate = chosen, nn.Linear(width, experts, bias=False)
        self.first, self.second = nn.Linear(width, 2 * inner, bias=False), nn.Linear(inner, width, bias=False)
        self.routed_first = nn.Parameter(torch.empty(experts, width, 2 * inner))
        self.routed_second = nn.Parameter(torch.empty(experts, inner, width))

    def forward(self, tokens: Tensor) -> Tensor:
        """The sum of both, the experts weighted by the gate."""
        weights = self.gate(tokens).softmax(-1).topk(self.chosen)[0]
        routed = tokens.repeat_interleave(self.chosen, dim=1).reshape(
            len(self.routed_first), -1, tokens.shape[-1]
        )
        routed = glu(routed @ self.routed_first) @ self.routed_second
        mixed = (routed.reshape(*weights.shape, -1) * weights.unsqueeze(-1)).sum(2)
        result: Tensor = mixed + self.second(glu(self.first(tokens)))
        return result


class HunyuanImage3(nn.Module):
    """A language model of routed experts that denoises the latents after its text and the time.

    Source: SGLang 0.5.23, configs/models/dits/hunyuan_image3.py, and vllm-omni 0.30.0, diffusion/models/hunyuan_image3.
    """

    def __init__(
        self, *, width: int, num_layers: int, heads: tuple[int, int], inner: int, routing: tuple[int, int],
        vocabulary: int, in_channels: int, hidden_channels: int,
    ) -> None:  # fmt: skip
        super().__init__()
        self.words = nn.Embedding(vocabulary, width)
        self.time_in, self.time_token, self.time_out = (TimestepEmbedding(TIME, width) for _ in range(3))
        outer = {"temb_channels": width, "time_embedding_norm": "scale_shift"}
        self.latents = nn.Conv2d(in_channels, hidden_channels, 3, padding=1)
        self.widened = ResnetBlock2D(in_channels=hidden_channels, out_channels=width, **outer)
        self.blocks = nn.ModuleList(
            Block(nn.RMSNorm, Experts(width, inner, *routing), width, heads) for _ in range(num_layers)
        )
        self.norm = nn.RMSNorm(width)
        self.narrowed = ResnetBlock2D(in_channels=width, out_channels=hidden_channels, **outer)
        self.prediction = nn.Sequential(
            nn.GroupNorm(32, hidden_channels),
            nn.SiLU(),
            nn.Conv2d(hidden_channels, in_channels, 3, padding=1),
        )

    def forward(self, sample: Tensor, timestep: Tensor, input_ids: Tensor) -> Tensor:
        """The predicted velocity."""
        time = get_timestep_embedding(timestep, TIME).to(sample.dtype)
        image = self.widened(self.latents(sample), self.time_in(time))
        words, pixels = self.words(input_ids), image.flatten(2).transpose(1, 2)
        hidden = torch.cat([words, self.time_token(time).unsqueeze(1), pixels], dim=1)
        for block in self.blocks:
            hidden = block(hidden)
        drawn = self.norm(hidden)[:, -pixels.shape[1] :].transpose(1, 2).unflatten(-1, image.shape[2:])
        velocity: Tensor = self.prediction(self.narrowed(drawn, self.time_out(time)))
        return velocity


def glu(tokens: Tensor) -> Tensor:
    """Half of the channels times the SiLU of the others."""
    gate, up = tokens.chunk(2, dim=-1)
    return nn.functional.silu(gate) * up


LAST: Final = (*(("attentions.0", "attentions.1", "downsamplers.0"),) * 3, ("resnets.0", "resnets.1"))
"""Modules that end the blocks of each level of the copy's input half."""
BLOCKS: Final = ("conv_in", *(f"down_blocks.{i}.{end}" for i, ends in enumerate(LAST) for end in ends))
"""The modules that end the blocks of the copy's input half."""


class LockedEncoder(UNet2DConditionModel):  # type: ignore[misc]  # its types are not read
    """The input half and the middle of the locked U-Net."""

    ends: ClassVar = {"mid_block.resnets.1": "mid_block"}

    def __init__(self) -> None:
        super().__init__(**plain("sd15_unet"))
        del self.up_blocks, self.conv_norm_out, self.conv_out

    def forward(
        self, sample: Tensor, timestep: Tensor, encoder_hidden_states: Tensor
    ) -> tuple[list[Tensor], Tensor]:
        """The skips with the output of the middle as the last, and the time embedding."""
        time = self.time_embedding(self.time_proj(timestep).to(sample.dtype))
        return [*encode(self, self.conv_in(sample), time, encoder_hidden_states)], time


class LockedDecoder(UNet2DConditionModel):  # type: ignore[misc]  # as above
    """The output half of the locked U-Net."""

    def __init__(self) -> None:
        super().__init__(**plain("sd15_unet"))
        del self.conv_in, self.time_embedding, self.down_blocks, self.mid_block

    def forward(self, skips: list[Tensor], residuals: list[Tensor], time: Tensor, text: Tensor) -> Tensor:
        """The predicted noise; what is added last to ``skips`` and ``residuals`` is used first."""
        hidden = skips.pop() + residuals.pop()
        for up in self.up_blocks:
            for i, resnet in enumerate(up.resnets):
                joined = torch.cat([hidden, skips.pop() + residuals.pop()], dim=1)
                hidden = attend(up, i, resnet(joined, time), text)
            for sampler in up.upsamplers or ():
                hidden = sampler(hidden)
        noise: Tensor = self.conv_out(nn.functional.silu(self.conv_norm_out(hidden)))
        return noise


class ControlledUNet(nn.Module):
    """The trained copy and the locked decoder; the locked encoder is a component of its own."""

    ends: ClassVar = {
        **{f"copy.{block}": f"copy.controlnet_down_blocks.{i}" for i, block in enumerate(BLOCKS)},
        "copy.mid_block.resnets.1": "copy.controlnet_mid_block",
    }
    """A block of the copy ends with the convolution that makes a residual of its output."""

    def __init__(self) -> None:
        super().__init__()
        self.copy = ControlNetModel(**plain("controlnet"))
        self.decoder = LockedDecoder()

    def forward(
        self,
        sample: Tensor,
        timestep: Tensor,
        encoder_hidden_states: Tensor,
        hint: Tensor,
        *,
        skips: list[Tensor],
        locked_time: Tensor,
    ) -> Tensor:
        """The predicted noise; ``skips`` and ``locked_time`` are what the locked encoder hands over."""
        copy, text = self.copy, encoder_hidden_states
        time = copy.time_embedding(copy.time_proj(timestep).to(sample.dtype))
        hidden = copy.conv_in(sample) + copy.controlnet_cond_embedding(hint)
        convolutions = [*copy.controlnet_down_blocks, copy.controlnet_mid_block]
        outputs = encode(copy, hidden, time, text)
        residuals = [convolution(output) for convolution, output in zip(convolutions, outputs, strict=True)]
        noise: Tensor = self.decoder([*skips], residuals, locked_time, text)
        return noise


def handed_over(sample: dict[str, Any]) -> dict[str, Any]:
    """Return the arguments that the locked encoder makes of the others."""
    with torch.device("meta"), torch.no_grad():
        skips, time = LockedEncoder()(**{key: value for key, value in sample.items() if key != "hint"})
    return {"skips": skips, "locked_time": time}


def encode(net: Any, hidden: Tensor, time: Tensor, text: Tensor) -> Iterator[Tensor]:  # noqa: ANN401  any class
    """Yield the outputs of the blocks of a U-Net's input half, then that of its middle."""
    yield hidden
    for down in net.down_blocks:
        for i, resnet in enumerate(down.resnets):
            hidden = attend(down, i, resnet(hidden, time), text)
            yield hidden
        for sampler in down.downsamplers or ():
            hidden = sampler(hidden)
            yield hidden
    yield net.mid_block(hidden, time, encoder_hidden_states=text)


def attend(level: Any, index: int, hidden: Tensor, text: Tensor) -> Tensor:  # noqa: ANN401  a level of any class
    """The output of a ResNet after the attention that follows it; unchanged on a level without attention."""
    attended: Tensor = hidden
    if hasattr(level, "attentions"):
        attended = level.attentions[index](hidden, text, return_dict=False)[0]
    return attended
