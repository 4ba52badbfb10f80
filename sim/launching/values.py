"""Values of a launch: what the flags and templates of runtimes are filled with, by the name of the gap.

A true value fills its gap with nothing, and a false one is as none: what has the gap is left out. ``NAME_json`` and
``NAME_python`` are ``true`` and ``True``.
"""

from functools import partial
from math import ceil, prod
from pprint import pformat
from string import Template
from typing import Any, Final

from profiles.software.levers import FP8, HALF
from profiles.software.recipes import RECIPES
from profiles.software.runtimes import Runtime
from sim.outcomes.results import Result
from sim.outcomes.schedules import written
from strategies.orders.whole import order_of
from strategies.training.replicas import Zero2

COMPILED: Final = ("compiled", "inductor")
"""Stacks of torch.compile."""
PROMPT: Final = "a photo of an astronaut"


def values_of(result: Result, runtime: Runtime) -> dict[str, Any]:
    """Return the values that a launch of a result in a runtime is filled with."""
    assert result.source is not None
    strategy, scenario = result.source.strategy, result.source.scenario
    gpus, name = result.num_gpus, scenario.model.name
    nodes = ceil(gpus / scenario.cluster.devices_per_node)
    several = (
        f"--nnodes {nodes} --nproc-per-node {gpus // nodes} --node-rank $NODE_RANK --master-addr $MASTER_ADDR"
    )
    values: dict[str, Any] = dict.fromkeys(key for row in runtime.values.values() for key in row)
    values |= {
        "always": True,
        "model": (runtime.models or {}).get(name),
        "gpus": gpus,
        "nodes": nodes,
        "gpus_per_node": gpus // nodes,
        "one_node": nodes == 1,
        "several_nodes": nodes > 1,
        "torchrun": f"torchrun {several if nodes > 1 else f'--nproc-per-node {gpus}'}",
        "batch_size": result.batch_size,
        "frames": scenario.frames.get("frames"),
        "compiled": scenario.stack.name in COMPILED,
    }
    if scenario.task == "sample":
        values |= _sampling_values(strategy, scenario, one_scale=name in runtime.one_scale)
    else:
        values |= _training_values(result, strategy, scenario)
    values |= {**runtime.values.get(name, {}), **runtime.values.get(strategy.name, {})}
    flags = {key: value for key, value in values.items() if isinstance(value, bool)}
    return values | {f"{key}_json": str(value).lower() for key, value in flags.items()} | {
        f"{key}_python": str(value) for key, value in flags.items()
    }  # fmt: skip


def _sampling_values(strategy: Any, scenario: Any, *, one_scale: bool) -> dict[str, Any]:  # noqa: ANN401
    workload, grid = scenario.workload, strategy.layout(scenario).grid
    swapped, batch_size = workload.swapped, workload.batch_size
    resident = len({layer.block for layer in scenario.backbone.layers}) - swapped if swapped else None
    one_scale = one_scale and workload.guidance == "none"
    frames = scenario.frames.get("frames")
    piped, sequence = grid.pipeline > 1, grid.ulysses * grid.ring
    warmup = getattr(strategy, "warmup_steps", None)
    images = f", num_{'videos' if frames else 'images'}_per_prompt={batch_size}"
    return {
        "prompt": PROMPT,
        "height": workload.height,
        "width": workload.width,
        "steps": workload.steps,
        "image": not frames,
        "frames_argument": f"num_frames={frames}, " if frames else "",
        "batch_argument": images if batch_size > 1 else "",
        "scale_argument": ", guidance_scale=1.0" if one_scale else "",
        "several_images": _over_one(batch_size),
        "guidance": grid.guidance,
        "guided": workload.guidance != "none",
        "split_guidance": grid.guidance > 1,
        "one_scale": one_scale,
        "scale_or_split": one_scale or grid.guidance > 1,
        "ulysses": grid.ulysses,
        "ring": grid.ring,
        "tensor": grid.tensor,
        "sequence": sequence,
        "one_gpu": sequence == 1,
        "several_gpus": sequence > 1,
        "several_ulysses": _over_one(grid.ulysses),
        "several_rings": _over_one(grid.ring),
        "several_stages": _over_one(grid.pipeline),
        "several_groups": _over_one(grid.data),
        "patches": (strategy.patches or grid.pipeline) if piped else None,
        "layers": strategy.layers if piped else None,
        "warmup_steps": warmup if piped else None,
        "warmup_after_first": None if warmup is None else warmup - 1,  # these run one more than given
        "gather_layers": getattr(strategy, "gather_layers", None),
        "offloaded": resident is not None,
        "all_offloaded": resident == 0,
        "resident_blocks": resident or None,
        "encoders_offloaded": workload.encoders == "offloaded",
        "fp8_products": workload.precision == FP8,
        "fp8_exchanges": workload.all_to_all != HALF,
    }


def _over_one(value: int) -> int | None:
    """Return a degree, or None where it divides nothing."""
    return value if value > 1 else None


def _training_values(result: Result, strategy: Any, scenario: Any) -> dict[str, Any]:  # noqa: ANN401
    workload, model = scenario.workload, scenario.model
    gpus, count = result.num_gpus, strategy.micro_batches
    context, stages = getattr(strategy, "context_degree", 1), getattr(strategy, "pipeline_degree", None)
    sharing = prod(getattr(strategy, f"{axis}_degree", 1) for axis in ("pipeline", "context", "tensor"))
    each = workload.batch_size * sharing // (gpus * count)
    whose = "GPU" if sharing == 1 else f"{sharing} GPUs that share them"
    shards = (getattr(strategy, "shard_size", None) or gpus // context) * context
    half = RECIPES[workload.memory_recipe].gradient_bytes != 4
    values = {
        "height": model.height,
        "width": model.width,
        "square": model.height == model.width,
        "latent_frames": model.components[scenario.backbone_index].frames,
        "micro_batch_size": each,
        "micro_batches": count,
        "several_micro_batches": _over_one(count),
        "step_words": f"{count} x {each} samples per {whose} between two steps of the optimizer",
        "context_degree": context,
        "pipeline_degree": stages,
        "several_pipelines": _over_one(gpus // stages) if stages else None,
        "replicas": gpus // shards,
        "shards": shards,
        "replicated": gpus > shards,
        "sharded_alone": gpus == shards,
        "reshard": getattr(strategy, "reshard", "") == "true",
        "bucket_MB": getattr(strategy, "bucket_MB", None),
        "bucket_elements": _bucket_elements(strategy, workload.recipe.gradient_bytes),
        "overlapped": getattr(strategy, "overlap", "") == "buckets",
        "recomputed": workload.checkpointing != "none",
        "blocks_recomputed": workload.checkpointing == "block",
        "selective": workload.checkpointing == "selective",
        "half_gradients": half,
        "float_gradients": not half,
        "reduced": "bfloat16" if half else "float32",
        "optimizer_offloaded": workload.offload == "optimizer",
        "cached": workload.frozen == "cached",
    }
    return values | (_stage_values(result, strategy, scenario) if stages else {})


def _bucket_elements(strategy: Any, gradient_bytes: float) -> int | None:  # noqa: ANN401
    """Return the gradients that ZeRO-2 scatters at once."""
    return strategy.bucket_elements(gradient_bytes) if isinstance(strategy, Zero2) else None


def _stage_values(result: Result, strategy: Any, scenario: Any) -> dict[str, Any]:  # noqa: ANN401
    """Return the stages of a pipeline, and the order of its passes, as code."""
    stages, backbones = result.stages, [scenario.model.components[i] for i in scenario.model.backbones]
    order = order_of(strategy)
    ranks = {action.stage: rank for rank, row in enumerate(order) for action in row}
    firsts = [backbones[0].layers[stage["first_layer"]].block for stage in stages[1:]]
    passes = [row.split(",") for row in written(strategy, order, "torch").text.splitlines()]
    code = partial(pformat, width=100, compact=True)
    return {
        "first_blocks": str(firsts),
        "order": code(passes),
        "layer_list": code([(stage["first_layer"], stage["last_layer"]) for stage in stages]),
        "rank_list": code([ranks[number] for number in range(len(stages))]),
    }


def filled(text: str, values: dict[str, Any]) -> str:
    """Return a text with its gaps filled, without the lines in one of whose gaps nothing stands."""
    lines = (line for line in map(Template, text.splitlines()) if stands(line, values))
    marks = {name: "" if value is True else value for name, value in values.items()}
    return "\n".join(line.substitute(marks) for line in lines)


def stands(text: Template, values: dict[str, Any]) -> bool:
    """Return whether all gaps of a text have values."""
    return all(values[name] is not None and values[name] is not False for name in text.get_identifiers())
