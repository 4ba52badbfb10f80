"""Layerings: a component's layers, in execution order, and the blocks that hold them.

Layers are what a partitioner may separate; blocks are the coarser units that published baselines count.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace

from torch import nn

Named = list[tuple[str, nn.Module]]
"""Modules of one block in execution order, by the names of the layers that end with them."""


@dataclass(frozen=True, slots=True)
class LayerSpec:
    """A layer by the module at whose return it ends; see ``validate.tally`` for what it then holds.

    The first ``streams`` tensors that the module returns are the hidden state.
    """

    name: str
    block: int
    end: nn.Module
    streams: int = 1


def chain(prefix: str, blocks: Sequence[nn.Module], last: nn.Module, *, streams: int = 1) -> list[LayerSpec]:
    """List equal blocks in a row; the first holds what runs before it, the last ends with module ``last``."""
    ends = [*blocks[:-1], last]
    return [LayerSpec(f"{prefix}{i}", i, end, 1 if end is last else streams) for i, end in enumerate(ends)]


def clip_layers(encoder: nn.Module, root: str = "") -> list[LayerSpec]:
    """List a CLIP encoder's layers: embeddings in the first, final norm (and projection) in the last."""
    norm = encoder.get_submodule(f"{root}final_layer_norm")
    return chain("layer", children(encoder, f"{root}encoder.layers"), norm)


def bert_layers(encoder: nn.Module) -> list[LayerSpec]:
    """List a BERT's layers: embeddings in the first."""
    blocks = children(encoder, "encoder.layer")
    return chain("layer", blocks, blocks[-1])


def t5_layers(encoder: nn.Module) -> list[LayerSpec]:
    """List a T5 encoder's layers: embeddings in the first, final norm in the last."""
    norm = encoder.get_submodule("encoder.final_layer_norm")
    return chain("layer", children(encoder, "encoder.block"), norm)


def pixart_layers(transformer: nn.Module) -> list[LayerSpec]:
    """List PixArt's blocks: embeddings in the first, the output's norm and projection in the last."""
    blocks = children(transformer, "transformer_blocks")
    return chain("block", blocks, transformer.get_submodule("proj_out"))


def hunyuan_layers(transformer: nn.Module) -> list[LayerSpec]:
    """List Hunyuan-DiT's blocks: embeddings in the first, the output's norm and projection in the last."""
    return chain("block", children(transformer, "blocks"), transformer.get_submodule("proj_out"))


def uvit_layers(transformer: nn.Module) -> list[LayerSpec]:
    """List a U-ViT's blocks: embeddings in the first, prediction and last convolution in the last."""
    return chain("block", children(transformer, "blocks"), transformer.get_submodule("conv_out"))


def sd3_layers(transformer: nn.Module) -> list[LayerSpec]:
    """List Stable Diffusion 3's (or CogVideoX's) blocks, whose hidden state is a stream of text and one of image."""
    blocks = children(transformer, "transformer_blocks")
    return chain("block", blocks, transformer.get_submodule("proj_out"), streams=2)


def flux_layers(transformer: nn.Module) -> list[LayerSpec]:
    """List FLUX's double and single blocks, whose hidden state is a stream of text and one of image."""
    double = children(transformer, "transformer_blocks")
    single = children(transformer, "single_transformer_blocks")
    layers = chain("block", [*double, *single], transformer.get_submodule("proj_out"), streams=2)
    names = [f"double{i}" for i in range(len(double))] + [f"single{i}" for i in range(len(single))]
    return [replace(layer, name=name) for layer, name in zip(layers, names, strict=True)]


def vae_layers(vae: nn.Module) -> list[LayerSpec]:
    """List an encoder's convolutions, ResNets, resamplings and attention, each a block of its own.

    The last norm is part of ``conv_out``; not every encoder has a ``quant_conv``.
    """
    named = [("conv_in", vae.get_submodule("encoder.conv_in"))]
    for level, down in enumerate(children(vae, "encoder.down_blocks")):
        named += [(f"down{level}.resnet{i}", resnet) for i, resnet in enumerate(children(down, "resnets"))]
        named += [(f"down{level}.downsample", sampler) for sampler in children(down, "downsamplers")]
    named += middle_layers(vae.get_submodule("encoder.mid_block"))
    named += [("conv_out", vae.get_submodule("encoder.conv_out"))]
    named += [("quant_conv", module) for name, module in vae.named_children() if name == "quant_conv"]
    return [LayerSpec(name, block, module) for block, (name, module) in enumerate(named)]


def decoder_layers(vae: nn.Module) -> list[LayerSpec]:
    """List an autoencoder's decoder as ``vae_layers`` lists its encoder; not every one has attention."""
    named = [
        ("post_quant_conv", module) for name, module in vae.named_children() if name == "post_quant_conv"
    ]
    named += [("conv_in", vae.get_submodule("decoder.conv_in"))]
    if children(vae, "decoder.mid_block.attentions"):
        named += middle_layers(vae.get_submodule("decoder.mid_block"))
    else:
        resnets = children(vae, "decoder.mid_block.resnets")
        named += [(f"middle.resnet{i}", resnet) for i, resnet in enumerate(resnets)]
    for level, up in enumerate(children(vae, "decoder.up_blocks")):
        named += [(f"up{level}.resnet{i}", resnet) for i, resnet in enumerate(children(up, "resnets"))]
        named += [(f"up{level}.upsample", sampler) for sampler in children(up, "upsamplers")]
    named += [("conv_out", vae.get_submodule("decoder.conv_out"))]
    return [LayerSpec(name, block, module) for block, (name, module) in enumerate(named)]


def unet_layers(net: nn.Module) -> list[LayerSpec]:
    """List a U-Net's ResNets, attentions, resamplings and outer convolutions.

    Blocks are those whose outputs the input half hands to the output half: each ResNet with its attention,
    and each downsampling. An upsampling belongs to the block before it, ``conv_out`` (with its norm) to the
    last. The time embedding is part of ``conv_in``, joining a skip part of the ResNet that reads it.
    """
    return layers_of([*encoder_blocks(net), *decoder_blocks(net)])


def locked_encoder_layers(encoder: nn.Module) -> list[LayerSpec]:
    """List the input half and the middle of a U-Net."""
    return layers_of(encoder_blocks(encoder))


def controlled_layers(net: nn.Module) -> list[LayerSpec]:
    """List a controlled U-Net: the trained copy, the locked encoder if it is part of it, the locked decoder.

    A block of the copy ends with the convolution that turns its output into the residual for the decoder.
    """
    copy = net.get_submodule("copy")
    residuals = [*children(copy, "controlnet_down_blocks"), copy.get_submodule("controlnet_mid_block")]
    blocks = [
        [(f"copy.{name}", module) for name, module in [*block[:-1], (block[-1][0], residual)]]
        for block, residual in zip(encoder_blocks(copy), residuals, strict=True)
    ]
    named = dict(net.named_children())
    if "encoder" in named:
        blocks += [
            [(f"locked.{name}", module) for name, module in block]
            for block in encoder_blocks(named["encoder"])
        ]
    return layers_of([*blocks, *decoder_blocks(named["decoder"])])


def layers_of(blocks: list[Named]) -> list[LayerSpec]:
    """Return the layers of blocks, each of which lists its modules by name."""
    return [LayerSpec(name, i, module) for i, block in enumerate(blocks) for name, module in block]


def encoder_blocks(net: nn.Module) -> list[Named]:
    """Return the blocks of a U-Net's input half, and its middle."""
    blocks: list[Named] = [[("conv_in", net.get_submodule("conv_in"))]]
    for level, down in enumerate(children(net, "down_blocks")):
        blocks += resnet_blocks(f"down{level}", down)
        blocks += [[(f"down{level}.downsample", sampler)] for sampler in children(down, "downsamplers")]
    return [*blocks, middle_layers(net.get_submodule("mid_block"))]


def decoder_blocks(net: nn.Module) -> list[Named]:
    """Return the blocks of a U-Net's output half."""
    blocks: list[Named] = []
    for level, up in enumerate(children(net, "up_blocks")):
        blocks += resnet_blocks(f"up{level}", up)
        blocks[-1] += [(f"up{level}.upsample", sampler) for sampler in children(up, "upsamplers")]
    blocks[-1] += [("conv_out", net.get_submodule("conv_out"))]
    return blocks


def resnet_blocks(prefix: str, level: nn.Module) -> list[Named]:
    """Return one block per ResNet of a level, with the attention after it where there is one."""
    blocks: list[Named] = [
        [(f"{prefix}.resnet{i}", resnet)] for i, resnet in enumerate(children(level, "resnets"))
    ]
    for i, attention in enumerate(children(level, "attentions")):
        blocks[i].append((f"{prefix}.attention{i}", attention))
    return blocks


def middle_layers(middle: nn.Module) -> Named:
    """Return the layers between the halves: ResNet, attention, ResNet."""
    first, second = children(middle, "resnets")
    (attention,) = children(middle, "attentions")
    return [("middle.resnet0", first), ("middle.attention", attention), ("middle.resnet1", second)]


def children(module: nn.Module, path: str) -> list[nn.Module]:
    """Return the modules of the list at a path; empty where there is no such list."""
    named = dict(module.named_modules())
    return [*named[path].children()] if path in named else []
