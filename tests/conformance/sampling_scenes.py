"""Scenes of sampling: small models on small clusters, each under a workload that brings something out."""

from dataclasses import replace

from profiles.architectures.components import Exchange
from validate.equal_blocks import equal_blocks_transformer

UNEVEN_S = [0.11, 0.32, 0.27, 0.18, 0.41, 0.09, 0.23, 0.36]


# Models: seconds per sample and layer.


def plain(make):
    return equal_blocks_transformer(7, 0.1, parameters=10**6, saved_bytes=1e6)


def with_text(make):
    return equal_blocks_transformer(6, 0.2, text_tokens=64, heads=4)


def with_skips(make):
    return equal_blocks_transformer(8, 0.1, text_tokens=16, skips=True)


def launched(make):
    """Costs by the rates of a device: every class of work, and launches."""
    model = equal_blocks_transformer(5, text_tokens=32)
    (transformer,) = model.components
    work = {"matmul_flop": 3e11, "attention_flop": 2e11, "moved_bytes": 1e8, "kernels": 10}
    layers = tuple(replace(layer, **work) for layer in transformer.layers)
    return replace(model, components=(replace(transformer, layers=layers, times=()),))


def convolved(make):
    """A U-Net of two levels, whose patches need rows, statistics, keys and values of one another."""
    names = ["conv_in", "resnet", "downsample", "attention", "upsample", "resnet", "attention", "conv_out"]
    kinds = {
        "resnet": [("statistics", 64), ("halo", 512), ("reduce", 4096)],
        "attention": [("key_value", 2048), ("reduce", 1024), ("reduce", 1024)],
        "downsample": [("halo", 512), ("reduce", 1024)],
        "upsample": [("halo", 256), ("reduce", 4096)],
    }
    component = make.component("unet", UNEVEN_S, output_bytes=8192.0, parameters=10**6)
    return make.model(
        replace(
            component,
            image_tokens=256,
            layers=tuple(replace(layer, name=n) for layer, n in zip(component.layers, names, strict=True)),
            exchanges=tuple(
                Exchange(i, kind, elements, 8 if kind == "key_value" else 0)
                for i, name in enumerate(names)
                for kind, elements in kinds.get(name, ())
            ),
        )
    )


# Clusters.


def free(make):
    return make.cluster()


def latency_only(make):
    """No port is ever shared, and nothing slows compute down: the worklist evaluator tells the same."""
    return make.cluster(make.link("nvswitch", float("inf"), 0.01, 0.02), devices_per_node=8, call_s=0.03)


def node(make):
    return make.cluster(
        make.link("nvswitch", 1e6, 0.01, 0.02), devices_per_node=8, slowdown=1.6, call_s=0.03, efficiency=0.7
    )


def nodes(make):
    return make.cluster(
        make.link("nvswitch", 1e7, 0.001), make.link("nic", 2e5, 0.05, 0.01), devices_per_node=2, slowdown=1.3
    )


def pcie(make):
    above = {"switch_bandwidth_bytes_per_s": 4e5, "host_bandwidth_bytes_per_s": 3e5}
    link = make.link("pcie", 5e5, 0.01, 0.01, switch_size=2, **above)
    return make.cluster(link, devices_per_node=8, slowdown=1.2)


def rated(make):
    return make.cluster(make.link("nvswitch", 1e9, 1e-5, 1e-5), devices_per_node=8, memory_bytes_per_s=1e9)


SCENES = {
    "one gpu": (plain, free, {"num_gpus": 1, "steps": 3, "guidance": "batch"}),
    "one step": (plain, free, {"num_gpus": 4, "steps": 1}),
    "one step fewer than the warm-up of most": (with_text, node, {"num_gpus": 2, "steps": 2}),
    "free links": (plain, free, {"num_gpus": 4, "steps": 4}),
    "guidance in the batch, latency only": (
        with_text, latency_only, {"num_gpus": 4, "steps": 5, "guidance": "batch"},
    ),
    "guidance in parallel, latency only": (
        plain, latency_only, {"num_gpus": 8, "steps": 4, "guidance": "parallel"},
    ),
    "text, guidance in parallel, one node": (
        with_text, node, {"num_gpus": 4, "steps": 5, "guidance": "parallel"},
    ),
    "skips, one node": (with_skips, node, {"num_gpus": 4, "steps": 3, "guidance": "batch"}),
    "skips, two images, small nodes": (with_skips, nodes, {"num_gpus": 8, "steps": 4, "batch_size": 2}),
    "two images, guidance in parallel, pcie": (
        plain, pcie, {"num_gpus": 8, "steps": 3, "batch_size": 2, "guidance": "parallel"},
    ),
    "twice as wide as high, pcie": (with_text, pcie, {"num_gpus": 2, "steps": 4, "width": 512}),
    "costs by rates": (launched, rated, {"num_gpus": 4, "steps": 5, "guidance": "batch"}),
    "one prediction after the other, one node": (
        with_text, node, {"num_gpus": 4, "steps": 3, "guidance": "sequential"},
    ),
    "u-net, one prediction after the other": (
        convolved, latency_only, {"num_gpus": 2, "steps": 3, "guidance": "sequential"},
    ),
    "u-net, free links": (convolved, free, {"num_gpus": 2, "steps": 4}),
    "u-net, one node": (convolved, node, {"num_gpus": 4, "steps": 4, "guidance": "batch"}),
    "u-net, guidance in parallel, latency only": (
        convolved, latency_only, {"num_gpus": 4, "steps": 5, "guidance": "parallel"},
    ),
}  # fmt: skip


def build(make, name, **changed):
    """The scenario of a scene, with nothing kept from an earlier use; its workload as told."""
    build_model, build_cluster, workload = SCENES[name]
    return make.sampling(build_model(make), build_cluster(make), **{**workload, **changed})
