"""Launching training: configurations and code, by runtime."""

import json
from collections.abc import Callable
from typing import Final

from profiles.software.recipes import RECIPES
from sim.launching.order_runs import list_code, order_code
from sim.launching.starts import Start, Written, command, filled
from sim.outcomes.schedules import written
from strategies.orders.whole import order_of

KEPT: Final = (
    "partial(wrappers.checkpoint_wrapper, context_fn=partial(create_selective_checkpoint_contexts, kept))"
)


def _sharding(start: Start) -> tuple[int, int]:
    """Replicas and shards of FSDP."""
    shards = start.strategy.shard_size or start.gpus
    return start.gpus // shards, shards


def _reduced(start: Start) -> str:
    """The type that gradients are reduced in."""
    recipe = RECIPES[start.scenario.workload.memory_recipe]
    return "float32" if recipe.gradient_bytes == 4 else "bfloat16"


def _steps_words(start: Start) -> str:
    """The micro-batches of a step in words."""
    whose = "GPU" if start.sharing == 1 else f"{start.sharing} GPUs that share them"
    return f"{start.strategy.micro_batches} x {start.each} samples per {whose} between two steps of the optimizer"


def _recomputing(start: Start) -> str:
    """Code that wraps the blocks whose forward is run again; empty where there is none."""
    asked = start.scenario.workload.checkpointing
    if asked == "selective":
        return filled("fsdp2-blocks", imports=filled("fsdp2-selective"), wrapper=KEPT)
    return (
        filled("fsdp2-blocks", imports="", wrapper="wrappers.checkpoint_wrapper") if asked == "block" else ""
    )


def _fsdp2(start: Start) -> Written:
    replicas, shards = _sharding(start)
    shape, names = (replicas, shards), ("replicate", "shard")
    if replicas == 1:
        shape, names = shape[1:], names[1:]  # type: ignore[assignment]
    reshard = start.strategy.reshard == "true"
    text = filled(
        "fsdp2",
        shape=shape,
        names=names,
        reduced=_reduced(start),
        reshard=reshard,
        recomputing=_recomputing(start),
    )
    return f"# {_steps_words(start)}\n{text}", f"start it by {start.torchrun} FILE.py"


def _policy(start: Start) -> str:
    """The plugin without which accelerate reduces gradients in the type of the weights."""
    policy = f"MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.{_reduced(start)})"
    return f"Accelerator(fsdp_plugin=FullyShardedDataParallelPlugin(mixed_precision_policy={policy}))"


def _hosts(start: Start) -> str:
    """Arguments of DeepSpeed's launcher that name the nodes and their GPUs."""
    nodes = f"--hostfile $HOSTFILE --num_nodes={start.nodes} " if start.nodes > 1 else ""
    return f"{nodes}--num_gpus={start.per_node}"


def _accelerate(start: Start) -> Written:
    lines = {
        "compute_environment": "LOCAL_MACHINE",
        "distributed_type": "FSDP" if start.strategy.name == "fsdp" else "MULTI_GPU",
        "mixed_precision": "bf16",
        "num_machines": start.nodes,
        "num_processes": start.gpus,
    }
    text = "".join(f"{key}: {value}\n" for key, value in lines.items())
    if start.strategy.name == "fsdp":
        replicas, shards = _sharding(start)
        text = f"# in TRAIN.py: {_policy(start)}\n{text}"
        if start.strategy.reshard == "true":
            text = f"# the last block is freed after its forward too, and gathered again\n{text}"
        checkpointing = str(start.scenario.workload.checkpointing != "none").lower()
        text += (
            "fsdp_config:\n  fsdp_version: 2\n"
            f"  fsdp_reshard_after_forward: {start.strategy.reshard}\n"
            "  fsdp_auto_wrap_policy: TRANSFORMER_BASED_WRAP\n"
            f"  fsdp_activation_checkpointing: {checkpointing}\n"
        )
        if replicas > 1:
            text += (
                f"parallelism_config:\n  parallelism_config_dp_replicate_size: {replicas}\n"
                f"  parallelism_config_dp_shard_size: {shards}\n"
                "  parallelism_config_tp_size: 1\n  parallelism_config_cp_size: 1\n"
            )
    where = ""
    if start.nodes > 1:
        where = "--machine_rank $NODE_RANK --main_process_ip $MASTER_ADDR --main_process_port 29500 "
    text = f"# {_steps_words(start)}\n{text}"
    notes = [f"start it by accelerate launch --config_file FILE.yaml {where}TRAIN.py"]
    if (count := start.strategy.micro_batches) > 1:
        plugin = (
            f"GradientAccumulationPlugin(num_steps={count}, sync_each_batch={start.strategy.name == 'fsdp'})"
        )
        text = f"# in TRAIN.py: Accelerator(gradient_accumulation_plugin={plugin})\n{text}"
    return text, *notes


def _deepspeed(start: Start) -> Written:
    strategy = start.strategy
    zero: dict[str, object] = {
        "stage": 2 if strategy.name == "zero2" else 3,
        "overlap_comm": strategy.overlap == "buckets",
        "contiguous_gradients": True,
    }
    if start.scenario.workload.offload == "optimizer":
        zero["offload_optimizer"] = {"device": "cpu", "pin_memory": True}
    config = {
        "train_batch_size": start.result.batch_size,
        "train_micro_batch_size_per_gpu": start.each,
        "gradient_accumulation_steps": strategy.micro_batches,
        "bf16": {"enabled": True},
        "data_types": {"grad_accum_dtype": "fp32" if _reduced(start) == "float32" else "bf16"},
        "zero_optimization": zero,
    }
    return json.dumps(
        config, indent=2
    ), f"start it by deepspeed {_hosts(start)} TRAIN.py --deepspeed_config FILE.json"


def _torch_pipelining(start: Start) -> Written:
    strategy, stages = start.strategy, start.result.stages
    order = order_of(strategy)
    ranks = {action.stage: rank for rank, row in enumerate(order) for action in row}
    text = filled(
        "torch-pipelining",
        order=order_code(written(strategy, order, "torch").text),
        layers=list_code("LAYERS", [(stage["first_layer"], stage["last_layer"]) for stage in stages]),
        ranks=list_code("RANK_OF_STAGE", [ranks[number] for number in range(len(stages))]),
        degree=start.strategy.pipeline_degree,
        micro_batches=start.strategy.micro_batches,
    )
    groups = start.gpus // start.strategy.pipeline_degree
    copies = f"{groups} pipelines side by side reduce their gradients after it" if groups > 1 else ""
    return (
        f"# {_steps_words(start)}\n{text}",
        *filter(None, [copies]),
        f"start it by {start.torchrun} FILE.py",
    )


def _diffusion_pipe(start: Start) -> Written:
    strategy, scenario = start.strategy, start.scenario
    (backbone,) = (scenario.model.components[i] for i in scenario.model.backbones)
    firsts = [backbone.layers[stage["first_layer"]].block for stage in start.result.stages[1:]]
    text = (
        f"pipeline_stages = {strategy.pipeline_degree}\n"
        f"micro_batch_size_per_gpu = {start.each}\n"
        f"gradient_accumulation_steps = {strategy.micro_batches}\n"
        f"activation_checkpointing = {str(scenario.workload.checkpointing != 'none').lower()}\n"
        f"partition_method = 'manual'\npartition_split = {firsts}\n"
        f"\n[model]\ntype = '{start.model}'\n"
    )
    return (
        text,
        "partition_split counts blocks of the backbone; see where diffusion-pipe's own list of layers begins",
        f"start it by deepspeed {_hosts(start)} train.py --deepspeed --config FILE.toml",
    )


def _torchtitan(start: Start) -> Written:
    model, (replicas, shards) = start.scenario.model, _sharding(start)
    flags = {
        "--module": start.model,
        "--config": "flux_dev",
        "--training.local_batch_size": start.each,
        "--training.global_batch_size": start.result.batch_size,
        "--parallelism.data_parallel_replicate_degree": replicas,
        "--parallelism.data_parallel_shard_degree": shards,
        "--dataloader.img_size": model.height if model.height == model.width else None,
        "--compile.enable": start.compiled,
    }
    return command([start.torchrun, "-m", "torchtitan.train"], flags), _steps_words(start)


def _fastvideo_train(start: Start) -> Written:
    scenario, point = start.scenario, start.strategy
    shards = (point.shard_size or start.gpus // point.context_degree) * point.context_degree
    latents = scenario.model.components[scenario.backbone_index].frames
    flags = {
        "--pretrained-model-name-or-path": start.model,
        "--model-path": start.model,
        "--num-gpus": start.gpus,
        "--sp-size": point.context_degree,
        "--tp-size": 1,
        "--hsdp-replicate-dim": start.gpus // shards,
        "--hsdp-shard-dim": shards,
        "--train-batch-size": start.each,
        "--train-sp-batch-size": 1,
        "--gradient-accumulation-steps": point.micro_batches,
        "--num-height": scenario.model.height,
        "--num-width": scenario.model.width,
        "--num-frames": start.frames,
        "--num-latent-t": latents,
        "--enable-gradient-checkpointing-type": "full"
        if scenario.workload.checkpointing == "block"
        else None,
        "--enable-torch-compile": start.compiled,
        **{f"--{name}": f"${name.replace('-', '_').upper()}" for name in LEFT_OPEN},
    }
    text = command([start.torchrun, "-m", "fastvideo.training.wan_training_pipeline"], flags)
    return text, _steps_words(start), "its data set holds latents and embeddings of text: --frozen cached"


LEFT_OPEN: Final = ("data-path", "output-dir", "learning-rate", "max-train-steps")
"""Flags that FastVideo asks for, whose values are no part of a point: printed as variables."""


TRAINERS: Final[dict[str, Callable[[Start], Written]]] = {
    "accelerate": _accelerate,
    "deepspeed": _deepspeed,
    "diffusion-pipe": _diffusion_pipe,
    "fastvideo-train": _fastvideo_train,
    "fsdp2": _fsdp2,
    "torch-pipelining": _torch_pipelining,
    "torchtitan": _torchtitan,
}
"""Who writes what starts a point, by runtime."""
