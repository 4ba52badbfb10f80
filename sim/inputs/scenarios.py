"""Requests, scenarios and strategies made from arguments of ``sim.run`` and its like, and their task."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, fields, is_dataclass, replace
from os import PathLike
from pathlib import Path
from typing import Any, Final

from profiles.architectures.models import Model, load_model, model_names
from profiles.checks import is_one_of, plain_value
from profiles.costs.resolutions import check_whole_tokens, in_words, named_size, sides_of
from profiles.errors import DiffusimNote, DiffusimWarning, InputError, near_or_all, shown, warn_caller
from profiles.machines.clusters import Cluster, cluster_names, load_cluster
from profiles.machines.whatifs import WHAT_IFS, changed, idle
from profiles.names import known_name
from profiles.software.levers import cached_share
from profiles.software.runtimes import find_runtime
from profiles.software.stacks import DEFAULT_STACK, SERVED, Stack, load_stack, stack_names
from sim.inputs.limits import check_pixels
from sim.outcomes.runs import parameters_of
from sim.outcomes.tasks import SAMPLING, TASKS
from strategies.parameters import check_integer, completed
from strategies.plans.workloads import ONE_PREDICTION, SEQUENTIAL, SamplingWorkload, TrainingWorkload
from strategies.registry import class_of, every_strategy, make, strategies_of, strategy_named, take, task_of
from strategies.sampling_scenario import SamplingScenario
from strategies.scenario import Scenario, Scene
from strategies.strategy import AnyScenario, AnyStrategy, Sampler, Strategy, gpu_counts

OPTION_NAMES: Final = tuple(
    dict.fromkeys(("batch_size", *WHAT_IFS, *(name for task in TASKS.values() for name in task.options)))
)
UNTELLING: Final = ("offload", "attention", "precision")
"""Options of both tasks that say neither."""
DECODING: Final = ("vae_parallel", "vae_tile", "decode_chunks")
"""Options of the way in which an included VAE decodes."""
DEFAULT_CLUSTER: Final = "p4de"
"""The cluster where none is named."""
SHARED: Final = ("model", "strategy", "cluster", "gpus", "stack")
"""Arguments of all functions that ask about a strategy, beside options and parameters."""
ARGUMENTS: Final = (*SHARED, "measured", "measured_run", "runtime")
"""Arguments of ``run``."""


@dataclass(frozen=True, slots=True)
class Request:
    """A question about a model on a cluster, by name or as values of one's own; other names become the names.

    Attributes:
        model: a name, a folder, or a model.
        cluster: a name, a file, or a cluster.
        gpus: GPUs in all; None takes one node, or as many as the samplers named can use.
        names: of strategies; None asks about all of the task.
        options: of the workload, what-ifs and parameters of strategies, by name.
        task: ``train`` or ``sample``, where it is said.
        stack: a name, a file, or a stack.
        made: the only strategy, where it has its parameters already.
    """

    model: str | Model
    cluster: str | Cluster
    gpus: int | None
    names: tuple[str, ...] | None
    options: Mapping[str, Any]
    task: str | None = None
    stack: str | Stack = DEFAULT_STACK
    made: AnyStrategy | None = None

    def __post_init__(self) -> None:
        for kind, names in (("model", model_names), ("cluster", cluster_names), ("stack", stack_names)):
            if isinstance(name := getattr(self, kind), str) and name:
                object.__setattr__(self, kind, known_name(kind, name, names()) or name)
        if self.names is not None:
            object.__setattr__(self, "names", tuple(map(strategy_named, self.names)))

    @property
    def parameters(self) -> dict[str, Any]:
        """Parameters of strategies; a choice of the words true and false may be a truth value."""
        values = {
            name: plain_value(value) for name, value in self.options.items() if name not in OPTION_NAMES
        }
        items = (item for cls in self.classes for item in fields(cls)) if values else ()  # type: ignore[arg-type]
        words = {item.name for item in items if set(item.metadata.get("choices", ())) == {"true", "false"}}
        return {
            name: str(value).lower() if name in words and isinstance(value, bool) else value
            for name, value in values.items()
        }

    @property
    def classes(self) -> list[type[AnyStrategy]]:
        """Classes of the strategies."""
        return [class_of(name) for name in self.names or strategies_of(find_task(self))]


def find_task(request: Request) -> str:
    """Return the task of a request: of its strategies, or as it says, or as its options imply."""
    if request.task is not None and not is_one_of(request.task, *TASKS):
        raise InputError(f"`task` is {shown(request.task)}, must be one of {', '.join(TASKS)}")
    if request.names is not None:
        task, owner = _task_of_strategies(request.names, request.task)
    elif request.task is not None:
        task, owner = request.task, f"`task` is {request.task}"
    else:
        why = _sampling_flag(request)
        task, owner = ("sample", f"{why} of sampling") if why else ("train", "")
    for other in TASKS.values():
        for name in other.options:
            if name in request.options and name not in TASKS[task].options:
                raise InputError(f"`{name}` is of {other.noun}, {owner}")
    return task


def _task_of_strategies(names: Sequence[str], task: str | None) -> tuple[str, str]:
    """Return the task of all strategies named, and the words for why."""
    if not names:
        raise InputError("`strategy` names none; leave it out to ask about all")
    first, its = names[0], task_of(names[0])
    does = TASKS[its].does
    for name in names:
        if (other := task_of(name)) != its:
            raise InputError(f"`strategy` names {first}, which {does}, and {name}, which {TASKS[other].does}")
    if task not in (None, its):
        raise InputError(f"`task` is {task}, but {first} {does}")
    return its, f"{first} {does}"


def _sampling_flag(request: Request) -> str | None:
    """Return the first option that implies sampling, as a resolution alone does; None where none does."""
    training, sampling = _names_by_task()
    if any(name in training - sampling for name in request.options):
        sampling -= training
    says = sampling - training | sampling.intersection(SAMPLING.options).difference(UNTELLING)
    return next((f"`{name}`" for name in request.options if name in says), None)


def _names_by_task() -> Iterator[set[str]]:
    """Yield the names of the options and parameters of each task."""
    return ({*task.options, *fields_of(strategies_of(task.name).values())} for task in TASKS.values())


def _note_task(request: Request) -> None:
    """Tell that options of both tasks were taken for sampling where no other says so."""
    training, sampling = _names_by_task()
    if not (request.task or request.names or (sampling - training).intersection(request.options)):
        why = _sampling_flag(request)
        warn_caller(f"{why} alone asks about sampling; `task` train asks about training", DiffusimNote)


def fields_of(classes: Iterable[type[AnyStrategy]]) -> set[str]:
    """Return the names of the parameters of strategies."""
    return {item.name for cls in classes for item in fields(cls)}  # type: ignore[arg-type]


def check_known(request: Request, arguments: Sequence[str]) -> None:
    """Refuse names of neither options nor parameters."""
    task = find_task(request)
    every = fields_of(every_strategy().values())
    parameters = [item.name for cls in request.classes for item in fields(cls)]  # type: ignore[arg-type]
    for name in request.parameters:
        if name not in every and name not in parameters:
            known = dict.fromkeys([*parameters, *arguments, "batch_size", *TASKS[task].options, *WHAT_IFS])
            meant = near_or_all(name.removeprefix("num_"), list(known))
            raise InputError(f"unknown parameter '{name}'; {meant}")


def scenario_of(request: Request) -> AnyScenario:
    """Return the scenario of a request."""
    task = find_task(request)
    cluster = load_cluster(request.cluster) if isinstance(request.cluster, str) else request.cluster
    cluster = changed(cluster, request.options)
    stack = load_stack(request.stack) if isinstance(request.stack, str) else request.stack
    model, resolution = request.model, request.options.get("resolution")
    model = _named_model(model, resolution) if isinstance(model, str) else model
    gpus = _integer("gpus", request.gpus, _most_gpus(request, cluster))
    cluster.check_gpus(gpus)  # before the batch, of which each has a part
    model_name, cluster_name, stack_name = (
        item if isinstance(item, str) else "" for item in (request.model, request.cluster, request.stack)
    )
    rest = (model_name, cluster_name, stack, stack_name)
    options = {name: plain_value(request.options.get(name)) for name in TASKS[task].options}
    options = {name: value for name, value in options.items() if value is not None}
    if resolution is not None:
        options["resolution"] = named_size(model, plain_value(resolution))
    batch_size = request.options.get("batch_size")
    scenario: AnyScenario
    if task == "train":
        batch = _integer("batch_size", batch_size, model.samples_per_gpu * gpus)
        height, width = sides_of(options.get("resolution", (model.width, model.height)))
        options |= {"resolution": in_words(height, width)} if "resolution" in options else {}
        workload = TrainingWorkload(gpus, batch, **options)
        check_pixels(model, width, height)
        scenario = Scenario(model, cluster, workload, *rest)
    else:
        drawn = _drawn(model, gpus, _integer("batch_size", batch_size, 1), options)
        scenario = SamplingScenario(model, cluster, drawn, *rest)
        _check_included(scenario)
        _note_task(request)
    _warn_of_times(model.for_task(task), scenario)
    for words in idle(cluster, gpus):
        warn_caller(words, DiffusimWarning)
    return scenario


def _named_model(name: str, resolution: Any = None) -> Model:  # noqa: ANN401
    """Return a model by its name, its folder, or the ``config.json`` that it is counted from."""
    path = Path(name)
    if path.suffix == ".json" and path.is_file():
        from sim.counting import count_file  # noqa: PLC0415  few ask for it

        return count_file(path, path.stat().st_mtime_ns, None if resolution is None else sides_of(resolution))
    return load_model(name)


def _integer(name: str, value: Any, default: int) -> int:  # noqa: ANN401
    value = default if value is None else plain_value(value)
    check_integer(name, value)
    return int(value)


def _drawn(model: Model, gpus: int, batch_size: int, options: dict[str, Any]) -> SamplingWorkload:
    """Return the workload of a sampler; its defaults are the model's."""
    height, width = sides_of(options.pop("resolution", (model.width, model.height)))
    options.setdefault("guidance", model.guidance)
    if options["guidance"] not in ONE_PREDICTION:
        options.setdefault("guided_predictions", model.predictions)
    if model.steps is not None:
        options.setdefault("steps", model.steps)
    if isinstance(include := options.get("include"), str):
        options["include"] = tuple(part.strip() for part in include.split(",")) if include else ()
    if isinstance(share := options.get("cache_steps"), str):
        options["cache_steps"] = cached_share(share, model.name)
    workload = SamplingWorkload(gpus, height, width, batch_size=batch_size, **options)
    check_size(model, width, height)
    return workload


def check_size(model: Model, width: int, height: int) -> None:
    """Refuse pixels that a model cannot draw."""
    check_pixels(model, width, height)
    for backbone in model.backbones:
        check_whole_tokens(model, model.components[backbone], height, width)


def _check_included(scenario: SamplingScenario) -> None:
    """Refuse options of frozen components where none of them runs."""
    components_of = {"encoders": scenario.encoders, **dict.fromkeys(DECODING, scenario.decoders)}
    usual = {item.name: item.default for item in fields(SamplingWorkload)}
    for name, components in components_of.items():
        value = getattr(scenario.workload, name)
        if value != usual[name] and not scenario.included(components):
            known = [scenario.model.components[i].name for i in components]
            needs = f"`include` {' or '.join(known)}, or `include` all" if known else "a model that has one"
            raise InputError(f"`{name}` is {value}, but changes nothing without {needs}")


def _warn_of_times(model: Model, scenario: AnyScenario) -> None:
    """Warn of times that were measured, but not on the device that the cluster has, so that its rates give them."""
    device = scenario.cluster.device.name
    measured = [[name for name, _ in component.times] for component in model.components]
    if others := ", ".join(sorted({name for names in measured if device not in names for name in names})):
        message = (
            f"{scenario.model_name} has times measured on {others}, but cluster {scenario.cluster.name} is"
            f" of device {device}: layers without times on it are estimated by its rates"
        )
        warn_caller(message, DiffusimWarning)


def _most_gpus(request: Request, cluster: Cluster) -> int:
    """Return the most GPUs of one node, or of the nodes of a what-if, that the strategies can use."""
    there = min(cluster.devices_per_node, 8)
    if request.options.get("nodes") is not None:
        there = cluster.max_devices
    counts = [gpu_counts(cls, there) for cls in request.classes]
    return max((most for most, *_ in filter(None, counts)), default=there)


def request_of(
    model: str | Model | AnyScenario | None,
    cluster: str | Cluster | None,
    gpus: int | None,
    options: dict[str, Any],
    *,
    strategies: Sequence[str | AnyStrategy | type[AnyStrategy]] | None,
    task: str | None = None,
    stack: str | Stack | None = None,
    runtime: str | None = None,
    arguments: Sequence[str] = ARGUMENTS,
) -> Request:
    """Return the request of some arguments; a whole scenario holds all but the parameters.

    A runtime stands for its stack, and for how it makes two predictions of a model, where none is given.
    """
    _check_kinds(model, cluster, strategies, stack)
    model, cluster, stack = map(plain_value, (model, cluster, stack))
    if isinstance(cluster, str) and strategy_named(cluster, silent=True) in every_strategy():
        raise InputError(f"`cluster` is {shown(cluster)}, which is a strategy: give it as `strategy`")
    names: tuple[str, ...] | None = None
    made = next((one for one in strategies or () if not isinstance(one, str | type)), None)
    if strategies is not None:
        classes = (one if isinstance(one, str | type) else type(one) for one in strategies)
        names = tuple(one if isinstance(one, str) else take(one) for one in classes)
    if isinstance(model, Scene):
        shared = {"cluster": cluster, "gpus": gpus, "stack": stack, "task": task}
        extra = [name for name in OPTION_NAMES if name in options]
        extra += [name for name, value in shared.items() if value is not None]
        if extra:
            raise InputError(f"{extra[0]} is given, but the scenario says it already")
        request = Request("", "", None, names, options, model.task, made=made)
    else:
        where = DEFAULT_CLUSTER if cluster is None else cluster
        usual = DEFAULT_STACK if runtime is None else find_runtime(runtime).stack
        in_turn = () if runtime is None else find_runtime(runtime).sequential
        if options.get("guidance") is None and model in in_turn:
            options = options | {"guidance": SEQUENTIAL}
        software = usual if stack is None else stack
        request = Request(model or "", where, gpus, names, options, task, software, made)
        if stack is None and runtime is None and find_task(request) == SAMPLING.name:
            request = replace(request, stack=SERVED)
    check_known(request, arguments)
    return request


def _check_kinds(model: object, cluster: object, strategies: Sequence[object] | None, stack: object) -> None:
    """Refuse what names neither a model, a cluster, a strategy nor a stack."""
    kinds: dict[str, tuple[object, Any, str]] = {
        "model": (model, Model | Scene, "a name, a folder, a Model or a Scenario"),
        "cluster": (cluster, Cluster, "a name, a file or a Cluster"),
        "stack": (stack, Stack, "a name, a file or a Stack"),
    }
    for name, (value, kind, rule) in kinds.items():
        if not isinstance(value, str | PathLike | kind | None):
            raise InputError(f"{name} is {shown(value)}, must be {rule}")
    for strategy in () if strategies is None else strategies:
        base = strategy if isinstance(strategy, type) else type(strategy)
        if not issubclass(base, str | Strategy | Sampler) or strategy is str:
            raise InputError(f"strategy is {shown(strategy)}, must be a name or a strategy")
        if isinstance(strategy, type) and not is_dataclass(strategy):
            raise InputError(f"strategy is {shown(strategy)}, must be a dataclass")


def resolve_scenario(model: str | Model | AnyScenario | None, request: Request) -> AnyScenario:
    """Return the scenario of a request: the model itself where it is one."""
    return model if isinstance(model, Scenario | SamplingScenario) else scenario_of(request)


def resolve_strategy(request: Request) -> AnyStrategy:
    """Return the only strategy of a request, with its parameters."""
    assert request.names is not None
    (name,), parameters = request.names, request.parameters
    if request.made is None:
        strategy: AnyStrategy = make(name, parameters)
        return strategy
    if parameters:
        raise InputError(f"{next(iter(parameters))} is given, but {name} has its parameters already")
    return completed(replace(request.made))  # type: ignore[type-var]  # a dataclass, checked again


def given_parameters(request: Request, strategy: AnyStrategy) -> Mapping[str, Any]:
    """Return the parameters of a strategy that were given."""
    return request.parameters if request.made is None else parameters_of(strategy)
