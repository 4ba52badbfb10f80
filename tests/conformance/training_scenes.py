"""Scenes of training: small models on small clusters, each under a workload that brings something out."""

# Models: seconds per sample and layer; a second is long enough for every bubble to be worth filling.

UNEVEN_S = [0.11, 0.32, 0.27, 0.18, 0.41, 0.09, 0.23, 0.36]


def plain(make, **rest):
    return make.model(
        make.component("unet", UNEVEN_S, output_bytes=3e6, saved_bytes=5e6, parameters=10**6, **rest)
    )


def with_skips(make, **rest):
    skips = [(i, 7 - i) for i in range(4)]
    return plain(make, skips=skips, carried_bytes=1e6, fixed_s=0.02, **rest)


def conditioned(make, parameters=10**6, **rest):
    """One frozen component, and a backbone whose locked layers only pass gradients through."""
    encoder = make.component(
        "encoder", [0.05, 0.31, 0.02, 0.12], trainable=False, output_bytes=2e6, parameters=10**5
    )
    unet = make.component(
        "unet", UNEVEN_S, inputs=["encoder"], output_bytes=3e6, saved_bytes=5e6, parameters=parameters,
        skips=[(1, 6), (2, 5)], locked=(4, 5), **rest,
    )  # fmt: skip
    return make.model(encoder, unet)


def chained(make, **rest):
    """Two frozen components one after the other, the first one's output read by the backbone too."""
    text = make.component(
        "text", [0.07, 0.16], trainable=False, output_bytes=1e6, parameters=10**5, fixed_s=0.01
    )
    image = make.component(
        "image", [0.2, 0.05, 0.11], trainable=False, inputs=["text"], output_bytes=2e6, parameters=10**5
    )
    unet = make.component(
        "unet", UNEVEN_S[:6], inputs=["text", "image"], output_bytes=3e6, saved_bytes=5e6, parameters=10**6,
        blocks=[0, 0, 1, 2, 2, 3], **rest,
    )  # fmt: skip
    return make.model(image, text, unet)


def lopsided(make, **rest):
    """A backbone whose last layer outweighs all others, and a frozen part whose samples do not divide evenly."""
    encoder = make.component("encoder", [0.4, 0.3], trainable=False, output_bytes=1e6, parameters=10**5)
    unet = make.component(
        "unet",
        [0.01, 0.01, 0.01, 0.9],
        inputs=["encoder"],
        output_bytes=1e3,
        saved_bytes=1e3,
        parameters=10**5,
        **rest,
    )
    return make.model(encoder, unet)


def top_heavy(make, **rest):
    """A backbone of which only the last layer is trained: its optimizer step outweighs everything else."""
    encoder = make.component("encoder", [1.0], trainable=False)
    unet = make.component("unet", [0.001] * 2, inputs=["encoder"], parameters=10**8, locked=(0,), **rest)
    return make.model(encoder, unet)


def cascade(make, **rest):
    """Two unequal backbones, which one frozen encoder feeds; few of their layers are light."""
    encoder = make.component("encoder", [0.12, 0.2], trainable=False, output_bytes=1e6, parameters=10**5)
    small = make.component(
        "small", UNEVEN_S[:4], inputs=["encoder"], output_bytes=1e6, saved_bytes=2e6, parameters=3 * 10**7,
        **rest,
    )  # fmt: skip
    large = make.component(
        "large", UNEVEN_S, inputs=["encoder"], output_bytes=3e6, saved_bytes=5e6, parameters=6 * 10**7,
        skips=[(0, 7), (2, 5)], carried_bytes=1e5, **rest,
    )  # fmt: skip
    return make.model(small, encoder, large)


def twins(make, **rest):
    """Two backbones alike, without anything frozen."""
    alike = (
        make.component(
            name, UNEVEN_S[:6], output_bytes=3e6, saved_bytes=5e6, parameters=10**6, fixed_s=0.01, **rest
        )
        for name in ("first", "second")
    )
    return make.model(*alike)


def locked_first(make, **rest):
    """A backbone whose first layers only pass gradients through: the last gradients are complete before the end."""
    locked = {"parameters": 10**7, "locked": (0, 1, 2)}
    return make.model(make.component("unet", UNEVEN_S, output_bytes=3e6, saved_bytes=5e6, **locked, **rest))


# Clusters.


def free(make):
    return make.cluster()


def node(make):
    return make.cluster(
        make.link("nvswitch", 1e8, 0.01, 0.02), devices_per_node=8, slowdown=1.6, call_s=0.03, efficiency=0.7,
        memory_bytes_per_s=1e9,
    )  # fmt: skip


def nodes(make):
    return make.cluster(
        make.link("nvswitch", 1e9, 0.001), make.link("nic", 2e7, 0.05, 0.01), devices_per_node=2, slowdown=1.3,
        memory_bytes_per_s=1e9,
    )  # fmt: skip


def pcie(make):
    above = {"switch_bandwidth_bytes_per_s": 4e7, "host_bandwidth_bytes_per_s": 3e7}
    link = make.link("pcie", 5e7, 0.01, 0.01, switch_size=2, **above)
    return make.cluster(link, devices_per_node=8, slowdown=1.2, memory_bytes_per_s=1e9)


SCENES = {
    "plain, free links": (plain, free, {"num_gpus": 4, "batch_size": 8}),
    "skips, one node": (with_skips, node, {"num_gpus": 4, "batch_size": 16}),
    "skips, checkpointing, small nodes": (
        with_skips, nodes, {"num_gpus": 4, "batch_size": 8, "checkpointing": "full"},
    ),
    "one frozen, free links": (conditioned, free, {"num_gpus": 4, "batch_size": 24}),
    "one frozen, self-conditioning, one node": (
        conditioned, node, {"num_gpus": 4, "batch_size": 16, "self_conditioning": 0.5},
    ),
    "one frozen, data inner, small nodes": (
        conditioned, nodes, {"num_gpus": 8, "batch_size": 16, "placement": "data-inner"},
    ),
    "two frozen in a chain, one node": (chained, node, {"num_gpus": 4, "batch_size": 32}),
    "two frozen in a chain, uneven batch": (chained, nodes, {"num_gpus": 4, "batch_size": 12}),
    "two frozen, always self-conditioned, pcie": (
        chained, pcie, {"num_gpus": 8, "batch_size": 16, "self_conditioning": 1.0},
    ),
    "two frozen, drawn by rank, small nodes": (
        chained, nodes,
        {"num_gpus": 4, "batch_size": 8, "self_conditioning": 0.3, "self_conditioning_draw": "rank",
         "checkpointing": "block", "memory_recipe": "fp32"},
    ),
    "lopsided, odd batch": (lopsided, free, {"num_gpus": 2, "batch_size": 3}),
    "lopsided, odd shares": (lopsided, node, {"num_gpus": 4, "batch_size": 6}),
    "top-heavy, odd batch": (top_heavy, node, {"num_gpus": 2, "batch_size": 3}),
    "locked first layers, one node": (locked_first, node, {"num_gpus": 4, "batch_size": 8}),
    "one gpu": (conditioned, free, {"num_gpus": 1, "batch_size": 4}),
    "two backbones alike, one node": (twins, node, {"num_gpus": 4, "batch_size": 16}),
    "two backbones alike, self-conditioning, small nodes": (
        twins, nodes, {"num_gpus": 4, "batch_size": 8, "self_conditioning": 0.5},
    ),
    "cascade, free links": (cascade, free, {"num_gpus": 2, "batch_size": 8}),
    "cascade, self-conditioning, one node": (
        cascade, node, {"num_gpus": 4, "batch_size": 16, "self_conditioning": 0.3},
    ),
    "cascade, drawn by rank, checkpointing, small nodes": (
        cascade, nodes,
        {"num_gpus": 8, "batch_size": 16, "self_conditioning": 0.5, "self_conditioning_draw": "rank",
         "checkpointing": "block"},
    ),
}  # fmt: skip


def build(make, name):
    """The scenario of a scene, with nothing kept from an earlier use."""
    build_model, build_cluster, workload = SCENES[name]
    return make.scenario(build_model(make), build_cluster(make), **workload)
