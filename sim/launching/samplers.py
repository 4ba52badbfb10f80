"""Launching samplers: command lines and code, by runtime."""

from collections.abc import Callable, Mapping
from typing import Any, Final

from profiles.errors import InputError
from profiles.software.levers import HALF
from sim.launching.said import one_scale
from sim.launching.starts import PROMPT, Start, Written, command, over_one, sampled


def _xdit_degrees(start: Start) -> dict[str, object]:
    """The flags of degrees that xDiT's runner and scripts share."""
    degrees = start.degrees
    return {
        "--ulysses_degree": over_one(degrees.ulysses),
        "--ring_degree": over_one(degrees.ring),
        "--pipefusion_parallel_degree": over_one(degrees.pipeline),
        "--data_parallel_degree": over_one(degrees.data),
        "--use_cfg_parallel": degrees.guidance > 1,
    }


def _xdit_drawn(start: Start) -> dict[str, object]:
    workload: Any = start.scenario.workload
    return {
        "--height": workload.height,
        "--width": workload.width,
        "--num_frames": start.frames,
        "--num_inference_steps": workload.steps,
        "--prompt": PROMPT,
        "--use_torch_compile": start.compiled,
    }


def _xdit(start: Start) -> Written:
    nodes = {
        "--nnodes": start.nodes,
        "--node_rank": "$NODE_RANK",
        "--master_addr": "$MASTER_ADDR",
        "--nproc_per_node": start.per_node,
    }
    workload = start.scenario.workload
    batch = {
        "--batch_size": over_one(start.result.batch_size),
        "--guidance_scale": 1 if one_scale(start) else None,
        "--use_fp8_gemms": workload.precision != HALF,
        "--use_fp8_comms": workload.all_to_all != HALF,
    }
    flags = {"--model": start.model, **_xdit_degrees(start), **batch, **_xdit_drawn(start)}
    return (command(["xdit"], (nodes if start.nodes > 1 else {}) | flags),)


BINNED: Final = ("hunyuan-1.5b", "pixart")
"""Models whose pipelines draw one of some sizes, and stretch it, unless they are told not to."""


def _xdit_scripts(start: Start) -> Written:
    strategy, degrees = start.strategy, start.degrees
    piped: dict[str, object] = {}
    if degrees.pipeline > 1:
        piped = {
            "--num_pipeline_patch": strategy.patches or degrees.pipeline,
            "--attn_layer_num_for_pp": strategy.layers,
            "--warmup_steps": strategy.warmup_steps,
        }
    if (name := start.scenario.model.name) not in start.runtime.scripts:
        raise InputError(f"runtimes/{start.runtime.name}.toml: scripts names none of {name}")
    script = f"examples/{start.runtime.scripts[name]}"
    drawn = {**_xdit_drawn(start), "--no_use_resolution_binning": name in BINNED}
    flags = {"--model": start.model, **_xdit_degrees(start), **piped, **drawn}
    notes: Written = ("run it in xDiT's repository",)
    return command([start.torchrun, script], flags), *notes


def _sglang(start: Start) -> Written:
    degrees, workload = start.degrees, start.scenario.workload
    served = {
        "--model-path": start.model,
        "--num-gpus": start.gpus,
        "--tp-size": degrees.tensor,
        "--sp-degree": degrees.ulysses * degrees.ring,
        "--ulysses-degree": degrees.ulysses,
        "--ring-degree": degrees.ring,
        "--cfg-parallel-size": degrees.guidance,
        "--enable-torch-compile": start.compiled,
        "--dit-layerwise-offload": None if start.staying is None else "true",
        "--dit-layerwise-resident-layers": start.staying or None,
    }
    if start.nodes > 1:
        served |= {
            "--nnodes": start.nodes,
            "--node-rank": "$NODE_RANK",
            "--dist-init-addr": "$MASTER_ADDR:29500",
        }
    drawn = {
        "--height": workload.height,
        "--width": workload.width,
        "--num-frames": start.frames,
        "--num-inference-steps": workload.steps,
        "--num-outputs-per-prompt": over_one(start.result.batch_size),
        "--guidance-scale": 1 if one_scale(start) else None,
        "--prompt": PROMPT,
    }
    notes = ("`sglang serve` takes the flags before --height, and serves",)
    return command(["sglang", "generate"], served | drawn), *notes


def _vllm_omni(start: Start) -> Written:
    degrees = start.degrees
    flags = {
        "--omni": True,
        "--ulysses-degree": degrees.ulysses,
        "--ring-degree": degrees.ring,
        "--tensor-parallel-size": degrees.tensor,
        "--cfg-parallel-size": degrees.guidance,
    }
    return command(["vllm", "serve", start.model], flags), "requests say the size of the image and the steps"


OFFLOADED: Final = """\
pipeline.transformer.enable_group_offload(
    torch.device("cuda"), offload_type="block_level", num_blocks_per_group=1, use_stream=True
)
"""


RANKS: Final = """\
torch.distributed.init_process_group("nccl")
torch.cuda.set_device(torch.distributed.get_rank() % torch.cuda.device_count())
"""
"""What each of several processes begins with."""


def _several(start: Start) -> str:
    """The argument of pipelines that draws several images of a prompt; none of one image."""
    count = over_one(start.result.batch_size)
    name = "num_videos_per_prompt" if start.frames else "num_images_per_prompt"
    return f", {name}={count}" if count else ""


def _diffusers(start: Start) -> Written:
    degrees = start.degrees
    several = degrees.ulysses * degrees.ring > 1
    made = f"ContextParallelConfig(ulysses_degree={degrees.ulysses}, ring_degree={degrees.ring})"
    text = sampled(
        start,
        imports="ContextParallelConfig, DiffusionPipeline" if several else "DiffusionPipeline",
        ranks=RANKS if several else "",
        parallel=f"pipeline.transformer.enable_parallelism(config={made})\n" if several else "",
        frames=f"num_frames={start.frames}, " if start.frames else "",
        offloaded=OFFLOADED if start.staying == 0 else "",
        compiled="pipeline.transformer.compile_repeated_blocks()\n" if start.compiled else "",
        more=", guidance_scale=1.0" * one_scale(start) + _several(start),
    )
    return text, f"start it by {start.torchrun if several else 'python'} FILE.py"


def _fastvideo(start: Start) -> Written:
    workload = start.scenario.workload
    text = sampled(
        start,
        gpus=start.gpus,
        layerwise=_flag(start.staying == 0),
        encoders=_flag(workload.encoders == "offloaded"),
        compiled=_flag(start.compiled),
        frames=start.frames or 1,
        several=start.result.batch_size,
    )
    if one_scale(start):
        text += "    guidance_scale: 1.0\n"
    return text, "start it by fastvideo generate --config FILE.yaml"


def _flag(value: bool) -> str:
    """A flag as YAML has it."""
    return str(value).lower()


def _distrifusion(start: Start) -> Written:
    strategy, workload = start.strategy, start.scenario.workload
    own = {
        "single": 'parallelism="patch"',
        "sync-patch": 'parallelism="patch",\n    mode="full_sync"',
        "naive-patch": 'parallelism="naive_patch"',
        "tensor": 'parallelism="tensor"',
    }.get(strategy.name)
    if own is None:  # it runs one synchronous step more than it is told
        told = strategy.warmup_steps - 1, strategy.gather_layers
        own = f'parallelism="patch",\n    warmup_steps={told[0]},\n    comm_checkpoint={told[1]}'
    text = sampled(
        start,
        guided=workload.guidance != "none",
        split=start.degrees.guidance > 1,
        own=own,
    )
    return text, f"start it by {start.torchrun} FILE.py"


PIPEFUSERS: Final[Mapping[str, tuple[str, str]]] = {
    "hunyuan-1.5b": ("DistriHunyuanDiTPipeline", "dpm-solver"),
    "pixart": ("DistriPixArtAlphaPipeline", "dpm-solver"),
    "sd3-medium": ("DistriSD3Pipeline", "FM-ED"),
}
"""Pipelines of PipeFusion's first release and their schedulers, by model."""


def _pipefuser(start: Start) -> Written:
    strategy, workload = start.strategy, start.scenario.workload
    pipeline, scheduler = PIPEFUSERS[start.scenario.model.name]
    text = sampled(
        start,
        guided=workload.guidance != "none",
        split=start.degrees.guidance > 1,
        patches=strategy.patches or start.degrees.pipeline,
        warmup_steps=strategy.warmup_steps - 1,  # it runs one synchronous step more than it is told
        pipeline=pipeline,
        scheduler=scheduler,
    )
    return text, f"start it by {start.torchrun} FILE.py", "pip install xfuser==0.1 brings it"


SAMPLERS: Final[dict[str, Callable[[Start], Written]]] = {
    "diffusers": _diffusers,
    "distrifusion": _distrifusion,
    "fastvideo": _fastvideo,
    "sglang": _sglang,
    "vllm-omni": _vllm_omni,
    "xdit": _xdit,
    "xdit-scripts": _xdit_scripts,
    "xfuser-0.1": _pipefuser,
}
"""Who writes what starts a point, by runtime."""
