"""The launch of a point.

What is written stands in the installed files that the profile of the runtime names: it is the rows and the templates
of that profile, filled with ``values``.
"""

import json
import shlex
import tomllib
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, field, fields, replace
from functools import partial
from itertools import takewhile
from math import ceil, prod
from os import PathLike
from pathlib import Path
from pprint import pformat
from string import Template
from typing import Any, Final

import profiles
from profiles.architectures.models import Model
from profiles.errors import InputError, flag_of
from profiles.machines.clusters import Cluster
from profiles.mappings import FrozenMapping
from profiles.outputs import check_new, write_files
from profiles.software.levers import FP8, HALF
from profiles.software.recipes import RECIPES
from profiles.software.runtimes import ALONE, RUNTIMES, UNCHECKED, Runtime, find_runtime
from profiles.software.stacks import DEFAULT_STACK, load_stack
from profiles.units import GIB
from sim.api import run, sweep
from sim.explore.legality import COMPILED, TIMED, case_of, first_runtime, needed
from sim.explore.relax import fitting_changes
from sim.outcomes.results import Result
from sim.outcomes.runs import run_point, with_source
from sim.outcomes.schedules import written
from sim.report.results import command_of, speed_words
from sim.report.views import Scaling, Sweep
from strategies.orders.named import order_of
from strategies.parameters import options_of
from strategies.patching.grid import PADDED
from strategies.plans.workloads import CACHED, RELIEF, SEQUENTIAL, SHARDED
from strategies.registry import make
from strategies.scenario import Scenario
from strategies.strategy import AnyScenario, AnyStrategy
from strategies.training.replicas import Zero2

FUSED: Final = ("mixed", "mixed-fp16-gradient", "fp32")
"""Memory recipes of Adam in torch, which may be fused."""
OPTIMIZERS: Final = dict.fromkeys(FUSED, "torch.optim.AdamW") | {
    "adam8bit": "bitsandbytes.optim.AdamW8bit", "adafactor": "torch.optim.Adafactor",
}  # fmt: skip
"""Classes of optimizers by memory recipe."""
BENCHMARK: Final = (
    "train.py times the step alone: weights and batch are random until yours stand at WEIGHTS and BATCH; there are no "
    "encoders, data set, clipping and checkpoints; pip install '/path/to/clone[measure]' brings what it imports"
)
UNSTARTED: Final = ", where its flags were read; no test starts it, and later ones are unchecked"
ALLOCATOR: Final = "PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True"
APART: Final = """replicas=
trap 'kill $replicas 2>/dev/null' EXIT
for gpu in {gpus}; do
    export CUDA_VISIBLE_DEVICES=$gpu REPLICA={number}
    {command} &
    replicas="$replicas $!"
done
for replica in $replicas; do wait -n || exit 1; done"""
"""Lines of a shell that start a process for each GPU of a node, and end all where one of them fails."""
LINE: Final = " \\\n    "
"""Between the flags of a command."""
ASKS: Final = {
    "$NODE_RANK": ': "${NODE_RANK:?run it on every node, with its number from 0}" "${MASTER_ADDR:?that of node 0}"\n',
    "$HOSTFILE": ': "${HOSTFILE:?give the file that names the nodes, and the GPUs of each}"\n',
}
"""By variable of a command, what refuses to run without it."""
COUNTED: Final = Path(profiles.__file__).parent / "measuring" / "counting"
"""Where the configurations of the shipped models stand, and how each is called."""


def values_of(result: Result, runtime: Runtime, *, apart: bool = False) -> dict[str, Any]:
    """Return the values that a launch of a result, or of a replica apart, in a runtime is filled with."""
    strategy, scenario = result.origin.strategy, result.origin.scenario
    gpus, name = result.num_gpus, scenario.model.name
    nodes = ceil(gpus / scenario.cluster.devices_per_node)
    where = f" --nnodes {nodes} --node-rank $NODE_RANK --master-addr $MASTER_ADDR" * (nodes > 1)
    torchrun = f"torchrun{where or ' --standalone' * apart} --nproc-per-node {gpus // nodes}"
    asked: tuple[Any, ...] = (scenario.workload, strategy)
    values = {item.name: getattr(source, item.name) for source in asked for item in fields(source)} | {
        "always": True,
        "apart": apart,
        "model": {**(runtime.models or {}), **runtime.alone}.get(name),
        "gpus": gpus,
        "nodes": nodes,
        "gpus_per_node": gpus // nodes,
        "torchrun": torchrun,
        "launcher": "python" if gpus == 1 else torchrun,
        "frames": scenario.frames.get("frames"),
        "compiled": scenario.stack.name in COMPILED,
        "compiling": 'mode="reduce-overhead"' * (scenario.stack.name == COMPILED[0]),  # in graphs
    }
    if scenario.task == "sample":
        values |= _sampling_values(strategy, scenario, one_scale=name in runtime.one_scale)
    else:
        values |= _training_values(result, strategy, scenario)
    values |= {**runtime.values.get(name, {}), **runtime.values.get(strategy.name, {})}
    for key, value in [*values.items()]:
        if isinstance(value, bool):
            values |= {f"{key}_json": str(value).lower(), f"{key}_python": str(value), f"no_{key}": not value}
        elif isinstance(value, int):
            values |= {f"several_{key}": value > 1, f"one_{key}": value == 1}
    return values


def _sampling_values(strategy: Any, scenario: Any, *, one_scale: bool) -> dict[str, Any]:  # noqa: ANN401
    workload, grid, swapped = scenario.workload, strategy.layout(scenario).grid, scenario.workload.swapped
    resident = len({layer.block for layer in scenario.backbone.layers}) - swapped if swapped else None
    components = scenario.model.for_task("sample").components
    one_scale = one_scale and workload.guidance == "none"
    piped, warmup = grid.pipeline > 1, getattr(strategy, "warmup_steps", None)
    sharded = workload.weights == SHARDED
    return asdict(grid) | {
        "network": scenario.backbone.name,
        "second_expert": scenario.backbone.experts > 1,
        "second": f"{scenario.backbone.name}_2",
        "revision": "",
        "clip": "frames[0]",
        "prompt": "a photo of an astronaut",
        "video": bool(scenario.frames),
        "pictured": any(part.image_tokens and part.name in scenario.backbone.inputs for part in components),
        "guided": workload.guidance != "none",
        "split_guidance": grid.guidance > 1,
        "one_scale": one_scale,
        "scale_or_split": one_scale or grid.guidance > 1,
        "padding": ", ulysses_anything=True" if workload.heads == PADDED and grid.ulysses > 1 else "",
        "sequence": grid.sequence,
        "patches": (strategy.patches or grid.pipeline) if piped else None,
        "layers": strategy.layers if piped else None,
        "warmup_steps": warmup if piped else None,
        "warmup_after_first": None if warmup is None else warmup - 1,  # these run one more than given
        "whole_offloaded": resident is not None and not sharded,
        "sharded": sharded and resident is None,
        "sharded_or_away": sharded and not resident,
        "comes_by_layers": resident == 0 or (resident is not None and not sharded),
        "all_offloaded": resident == 0,
        "moved": workload.moved and not workload.streamed,
        "streamed": workload.streamed,
        "unmoved": not workload.moved,
        "offload_set": workload.moved or resident == 0,
        "resident_blocks": None if sharded else resident or None,
        "encoders_offloaded": workload.encoders == "offloaded",
        "fp8_products": workload.precision == FP8,
        "fp8_exchanges": workload.all_to_all != HALF,
    }


def _training_values(result: Result, strategy: Any, scenario: Any) -> dict[str, Any]:  # noqa: ANN401
    workload, model = scenario.workload, scenario.model
    gpus, count = result.num_gpus, strategy.micro_batches
    context, stages = getattr(strategy, "context_degree", 1), getattr(strategy, "pipeline_degree", None)
    sharing = prod(getattr(strategy, f"{axis}_degree", 1) for axis in ("pipeline", "context", "tensor"))
    each = workload.batch_size * sharing // (gpus * count)
    whose = "GPU" if sharing == 1 else f"{sharing} GPUs that share them"
    shards = (getattr(strategy, "shard_size", None) or gpus // context) * context
    half, zero2 = RECIPES[workload.memory_recipe].gradient_bytes != 4, isinstance(strategy, Zero2)
    single = workload.memory_recipe == "fp32" and not workload.rank  # beside adapters weights are bfloat16
    config, sizes = _network_of(scenario)
    values = {
        "config": config,
        "sizes": ", ".join(f"{name}={n}" for name, n in (sizes | {"lora": workload.rank}).items() if n),
        "height": model.height,
        "width": model.width,
        "square": model.height == model.width,
        "latent_frames": model.components[scenario.backbone_index].frames,
        "micro_batch_size": each,
        "step_words": f"{count} x {each} samples per {whose} between two steps of the optimizer",
        "pipelines": gpus // stages if stages else None,
        "replicas": gpus // shards,
        "shards": shards,
        "reshard": getattr(strategy, "reshard", "") == "true",
        "bucket_elements": strategy.bucket_elements(workload.recipe.gradient_bytes) if zero2 else None,
        "overlapped": getattr(strategy, "overlap", "") == "buckets",
        "recomputed": workload.checkpointing in RELIEF,
        "blocks_recomputed": workload.checkpointing == "block",
        "accumulated": "bf16" if half else "fp32",
        "reduced": "bfloat16" if half else "float32",
        "half_weights": not single,
        "compute_type": f"torch.{'float32' if single else 'bfloat16'}",
        "autocast": "no" if single else "bf16",
        "optimizer": OPTIMIZERS.get(workload.memory_recipe, OPTIMIZERS["mixed"]),
        "fused": ", fused=True" * (scenario.stack.optimizer == "fused" and workload.memory_recipe in FUSED),
        "quantized": workload.memory_recipe == "adam8bit",
        "recipe_written": workload.memory_recipe in OPTIMIZERS
        and (not half or strategy.name in ("fsdp", "zero2", "zero3")),  # others keep gradients as weights are
        "optimizer_offloaded": workload.offload == "optimizer",
        "cached": workload.frozen == CACHED,
        "benchmark": BENCHMARK,
    }
    return values | (_stage_values(result, strategy, scenario) if stages else {})


def _network_of(scenario: Any) -> tuple[dict[str, Any] | None, dict[str, int]]:  # noqa: ANN401
    """Return the configuration of the backbone, None where it is not known, and the sizes of what it is called on."""
    model = scenario.model
    backbone = model.components[scenario.backbone_index]
    sizes = {"height": model.height, "width": model.width, "frames": backbone.frames * model.draws_videos}
    if scenario.asked_model.endswith(".json"):
        return json.loads(Path(scenario.asked_model).read_text(encoding="utf-8")), sizes
    models = tomllib.loads((COUNTED / "zoo.toml").read_text(encoding="utf-8"))["models"]
    named = {entry["name"]: entry for entry in models.get(model.name, {}).get("components", ())}
    if (entry := named.get(backbone.name)) is None:
        return None, sizes
    configs = json.loads((COUNTED / "configs.json").read_text(encoding="utf-8"))
    text = {"text_tokens": scenario.workload.text_tokens or entry.get("text_tokens")}
    sizes |= text | {"latent_scale": entry.get("scale", 8)}
    return configs[entry["config"]] | entry.get("set", {}), sizes


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
        "stage_list": code(
            [(stage["first_layer"], stage["last_layer"], ranks[i]) for i, stage in enumerate(stages)]
        ),
    }


def filled(text: str, values: dict[str, Any]) -> str:
    """Return a text with its gaps filled, without the lines in one of whose gaps nothing stands."""
    lines = (line for line in map(Template, text.splitlines()) if stands(line, values))
    marks = {name: "" if value is True else value for name, value in values.items()}
    return "\n".join(line.substitute(marks) for line in lines)


def stands(text: Template, values: dict[str, Any]) -> bool:
    """Return whether all gaps of a text have values."""
    return all(values.get(name) is not None and values[name] is not False for name in text.get_identifiers())


@dataclass(frozen=True, slots=True, repr=False)
class Launch:
    """The flags, configuration or code that starts a point.

    Attributes:
        runtime: the name of what runs it.
        text: flags, a configuration or code.
        notes: about the runtime, a line each.
        remarks: of the simulation, a line each.
        files: by name, the contents of all files that start it; ``run.sh`` does.
    """

    runtime: str
    text: str
    notes: tuple[str, ...] = ()
    remarks: tuple[str, ...] = ()
    files: Mapping[str, str] = field(default_factory=FrozenMapping, compare=False)

    def __str__(self) -> str:
        return self.text

    def __repr__(self) -> str:
        return f"<Launch in {self.runtime}: {len(self.text.splitlines())} lines>"

    def write(self, folder: str | PathLike[str]) -> list[Path]:
        """Write the files that start the point into a folder, which is made where it is missing, and return them.

        Raises:
            InputError: one of them is there already, or cannot be written; then none is.
        """
        paths = [Path(folder) / name for name in self.files]
        for path in paths:
            check_new(path)
        write_files(Path(folder), {Path(name): text for name, text in self.files.items()})
        return paths


def launch(
    model: str | Model | AnyScenario | Result | Sweep | Scaling,
    strategy: str | AnyStrategy | type[AnyStrategy] | None = None,
    cluster: str | Cluster | None = None,
    gpus: int | None = None,
    *,
    runtime: str | None = None,
    **options: Any,  # noqa: ANN401
) -> Launch:
    """Return the flags, configuration or code that starts a point in a runtime.

    Args:
        model: as of ``run``; or a result, which says all but the runtime, or a sweep, whose best is meant.
        strategy: as of ``run``; without one the best point of a sweep is meant.
        cluster: as of ``run``.
        gpus: as of ``run``.
        runtime: its name; by default the first that runs the point.
        options: all else that ``run`` takes.

    Raises:
        InputError: as of ``run``, or no runtime is known to run the point.
        InfeasibleError: the strategy, a degree or the batch does not apply here.
    """
    said: tuple[str, ...] = ()
    if isinstance(model, Result | Sweep | Scaling):
        result = model if isinstance(model, Result) else model.best
        arguments = {"strategy": strategy, "cluster": cluster, "gpus": gpus, **options}
        if extra := [name for name, value in arguments.items() if value is not None]:
            raise InputError(f"{extra[0]} is given, but the result says it already")
    elif strategy is None:
        result = sweep(model, cluster, gpus, runtime=runtime, **options).best
        said = (f"the best of a sweep: {command_of(result)}",)
    else:
        result = run(model, strategy, cluster, gpus, runtime=runtime, **options)
    start = launch_of(result, first_runtime(result) if runtime is None else find_runtime(runtime))
    return replace(start, remarks=(*said, *start.remarks))


def launch_of(result: Result, runtime: Runtime) -> Launch:
    """Return the launch of a result in a runtime."""
    case, each = case_of(result.origin.strategy, result.origin.scenario), result
    if refused := runtime.refusal(case):
        raise InputError(refused)
    if apart := runtime.replicates(case):
        each = _replica(result)
    values = values_of(each, runtime, apart=apart)
    unset = unset_options(each, runtime, values)
    if lacks := needed(runtime, each, unset):
        raise InputError(lacks)
    ran = _as_run(each, runtime, unset)
    command, values["run"] = _command(runtime, values), repr(command_of(ran))
    command = _for_each(command, result) if apart else command
    texts = {
        name: filled((RUNTIMES / f"{template}.template").read_text(encoding="utf-8"), values)
        for name, template in runtime.files.items()
    }
    text = _with_unset(next(iter(texts.values()), command), unset)
    files = {name: f"{text if number == 0 else body}\n" for number, (name, body) in enumerate(texts.items())}
    asks = "".join(text for variable, text in ASKS.items() if variable in command)
    head = _head(ran) if result.task == "train" else ""
    files |= {"run.sh": f'{head}{asks}cd "$(dirname "$0")" || exit 1\n{command if files else text}\n'}
    files |= {".deepspeed_env": f"{ALLOCATOR}\n"} if "$HOSTFILE" in command else {}  # for other nodes
    read = f"for {runtime.version}{'' if runtime.started else UNSTARTED}"
    notes = ["no version of it was checked" if runtime.version == UNCHECKED else read]
    notes += filter(None, (filled(note, values) for note in runtime.notes))
    start = "`bash run.sh`, one process for each GPU" if apart else command.replace(LINE, " ")
    notes += [f"start it by {start}"] if texts else []
    if "train.py" in files:
        notes.append(BENCHMARK)
        if (config := values["config"]) is None:
            notes.append("train.py reads the config.json of your backbone beside it")
        else:
            files["config.json"] = f"{json.dumps(config, indent=2)}\n"
    remarks = (*result.origin.remarks, *_memory_remark(result, runtime))
    return Launch(runtime.name, f"{text}\n", tuple(notes), remarks, files)


def _replica(result: Result) -> Result:
    """Return what one GPU does of a result whose GPUs each draw images of their own."""
    there: Any = result.origin.scenario.on(1)
    workload = replace(there.workload, batch_size=result.batch_size // result.num_gpus)
    single, alone = make(ALONE, {}), replace(there, workload=workload)
    return with_source(run_point(single, alone), single, alone)


def _for_each(command: str, result: Result) -> str:
    """Return lines of a shell that start a command for each GPU of a node."""
    count = min(result.num_gpus, result.origin.scenario.cluster.devices_per_node)
    number = f"$(({count} * ${{NODE_RANK:?run it on every node, with its number from 0}} + gpu))"
    number = number if count < result.num_gpus else "$gpu"
    gpus = " ".join(map(str, range(count)))
    return APART.format(gpus=gpus, number=number, command=command.replace("\n", "\n    "))


def _as_run(result: Result, runtime: Runtime, unset: Iterable[str]) -> Result:
    """Return a point of training without the options that its launch does not set; any other as it is."""
    strategy, scenario = result.origin.strategy, result.origin.scenario
    usual, known = _usual_options(scenario, runtime), {item.name for item in fields(scenario.workload)}
    changes = {name: usual[name] for name in unset if name in usual and name in known}
    stack: Any = {"stack": load_stack(runtime.stack), "asked_stack": ""} if "stack" in unset else {}
    if not isinstance(scenario, Scenario) or not changes | stack:
        return result
    other = replace(scenario, workload=replace(scenario.workload, **changes), measured=None, **stack)
    return with_source(run_point(strategy, other), strategy, other)


def _head(ran: Result) -> str:
    """Return lines of a shell: what a run of training is expected to take, and how its memory is kept whole."""
    there = "" if ran.device_memory_bytes is None else f" of {ran.device_memory_bytes / GIB:.1f}"
    reserved = f"{ran.reserved.low / GIB:.1f} to {ran.reserved.high / GIB:.1f}{there} GiB reserved"
    return f"# expected: {speed_words(ran)}; {reserved}\nexport {ALLOCATOR}\n"


def _memory_remark(result: Result, runtime: Runtime) -> tuple[str, ...]:
    """Return that a point does not surely fit, and changes with which it does; nothing of one that does."""
    words = f"does not fit: {result.missing_memory}; "
    if (there := result.device_memory_bytes) is not None and result.nearly_full:
        reserved = f"{result.reserved.low / GIB:.1f} to {result.reserved.high / GIB:.1f} of {there / GIB:.1f}"
        words = f"may not fit, {reserved} GiB reserved; with room: "
    elif result.fits_memory:
        return ()
    return (f"warning: {result.strategy} {words}{fitting_changes(result, runtime.name)}",)


def server_line(result: Result, name: str) -> str:
    """Return the command line that starts the server of a runtime for a point; requests say size, frames and steps."""
    runtime = find_runtime(name)
    head = runtime.command if runtime.command.startswith(runtime.serves) else runtime.serves
    of_server = takewhile(lambda item: item[1] != "${height}", runtime.flags.items())
    server = replace(runtime, command=head, flags=dict(of_server))
    return _command(server, values_of(result, runtime)).replace(LINE, " ")


def _command(runtime: Runtime, values: dict[str, Any]) -> str:
    """Return a command line, a flag on each line."""
    texts = {name: " ".join(map(str, value)) for name, value in values.items() if isinstance(value, tuple)}
    quoted = {
        name: "" if value is True else texts.get(name) or shlex.quote(str(value))
        for name, value in values.items()
    }
    words = [filled(runtime.command, values)]
    for flag, text in runtime.flags.items():
        if stands(template := Template(text), values):
            words.append(f"{flag} {template.substitute(quoted)}".rstrip())
    return LINE.join(words)


def _with_unset(text: str, options: Mapping[str, Any]) -> str:
    """Return a launch below a comment, or with a key, that lists the options it does not set."""
    flags = {flag_of(name): value for name, value in options.items()}
    if text.startswith("{"):  # JSON has no comments, and DeepSpeed looks up the keys that it knows
        return json.dumps(json.loads(text) | ({"not_set_here": flags} if flags else {}), indent=2)
    faster = {flag_of(name) for name in TIMED if options.get(name) != DEFAULT_STACK}
    heads = ("NOT APPLIED, slower than predicted" if flag in faster else "not set below" for flag in flags)
    lines = zip(heads, flags.items(), strict=True)
    return "".join(f"# {head}: {flag} {value}\n" for head, (flag, value) in lines) + text


def unset_options(result: Result, runtime: Runtime, values: Mapping[str, Any]) -> dict[str, Any]:
    """Return the options of a point that its launch does not set, and that a runtime does not have by itself."""
    scenario: Any = result.origin.scenario
    options = {**scenario.asked, **scenario.options}
    options = {name: value for name, value in options.items() if name not in scenario.shared_options}
    options |= {"batch_size": result.batch_size, "stack": scenario.stack_name}
    usual = _usual_options(scenario, runtime)
    printed = {name for name, gap in runtime.sets.items() if values.get(gap) not in (None, False, "")}
    return {
        name: value
        for name, value in options.items()
        if name not in printed and value not in ("", None) and (name not in usual or value != usual[name])
    }


def _usual_options(scenario: Any, runtime: Runtime) -> dict[str, Any]:  # noqa: ANN401
    """Return the options that a runtime has by itself."""
    usual = {item.name: item.default for item in options_of(scenario.workload)} | {"stack": runtime.stack}
    if scenario.task == "train":
        loaded = {"frozen": CACHED} if runtime.sets.get("frozen") == "cached" else {}
        return usual | {"self_conditioning": 0.0} | loaded
    in_turn = scenario.model.name in runtime.sequential
    usual |= {"batch_size": 1, "guidance": SEQUENTIAL if in_turn else scenario.model.guidance}
    usual["guided_predictions"] = scenario.model.predictions
    usual.pop("steps", None)
    return usual
