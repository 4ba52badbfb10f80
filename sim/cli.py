"""The command line: ``sim models | clusters | strategies | run | sweep | tune | schedule | synthesize``.

Results go to stdout, everything else to stderr. Exit code 0; 2 with one line for anything the user can mend; 130
on Ctrl-C; a traceback is a bug.
"""

import argparse
import json
import os
import re
import signal
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import MISSING, Field, fields, replace
from importlib.metadata import version
from pathlib import Path
from typing import Any, Final, NoReturn

from profiles.clusters import cluster_names, load_cluster
from profiles.errors import DiffusimError, InputError
from profiles.models import load_model, model_names
from profiles.recipes import RECIPES
from sim.synthesizing import add_flags, run_synthesize
from strategies.registry import all_strategies, make_strategy, strategy_class
from strategies.scenario import (
    CHECKPOINTINGS,
    DEFAULT_BATCH_PER_GPU,
    DRAWS,
    PLACEMENTS,
    Scenario,
    TrainingWorkload,
)

MAX_INTEGER: Final = 10**12
MAX_PARAMETER: Final = 2**16
"""Orders of more positions or micro-batches than this would take hours."""
FIGURES: Final = (".png", ".svg", ".pdf")

WORDINGS: Final = (
    (r"argument (.+): expected one argument", r"\1 needs a value"),
    (r"argument (.+): ignored explicit argument (.*)", r"\1 is \2, but takes no value"),
    (r"argument (.+): invalid choice: (.*) \(choose from (.*)\)", r"\1 is \2, must be one of \3"),
    (r"argument (.+?): (.*)", r"\1 \2"),
    (r"the following arguments are required: (.*)", r"\1 must be given"),
)
"""How argparse words its refusals, and how this project does."""


class _Parser(argparse.ArgumentParser):
    """An argument parser whose refusals are one line, and which never guesses a flag from its beginning."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:  # noqa: ANN401
        kwargs.setdefault("allow_abbrev", False)
        super().__init__(*args, **kwargs)

    def error(self, message: str) -> NoReturn:
        for pattern, wording in WORDINGS:
            match = re.fullmatch(pattern, message, re.DOTALL)
            if match:
                raise InputError(_unquote_choices(match.expand(wording)))
        raise InputError(message)


def _unquote_choices(message: str) -> str:
    head, mark, choices = message.partition(", must be one of ")
    return head + mark + choices.replace("'", "")


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line and return its exit code."""
    arguments = list(sys.argv[1:] if arguments is None else arguments)
    if sys.stdout is None:  # closed by whoever started us
        sys.stdout = Path(os.devnull).open("w", encoding="utf-8")  # noqa: SIM115  open until the process ends
    try:
        try:
            code = _main(arguments)
        except SystemExit as end:  # argparse, after --help and --version
            code = int(end.code or 0)
        print(end="", flush=True)
        return code
    except DiffusimError as error:
        print(f"sim: error: {' '.join(str(error).split())}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        print("sim: interrupted", file=sys.stderr)
        return 130
    except BrokenPipeError:  # whoever read the output has seen enough; the rest goes nowhere
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0
    except OSError as error:
        where = f"{error.filename}: " if error.filename else ""
        print(f"sim: error: {where}{(error.strerror or str(error)).lower()}", file=sys.stderr)
        return 2


@contextmanager
def _termination_as_interrupt() -> Iterator[None]:
    """Treat a request to terminate like Ctrl-C, so that what was computed so far is saved."""

    def interrupt(_number: int, _frame: object) -> NoReturn:
        raise KeyboardInterrupt

    before = signal.signal(signal.SIGTERM, interrupt)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


def _main(arguments: Sequence[str]) -> int:
    options, unknown = _parser(arguments).parse_known_args(arguments)
    if unknown:
        raise InputError(_describe_unknown(unknown[0].partition("=")[0], options))
    command: Callable[[argparse.Namespace], int] = options.command
    return command(options)


def _describe_unknown(argument: str, options: argparse.Namespace) -> str:
    """Return what is wrong with an argument that no parser took."""
    if not argument.startswith("-") or argument.lstrip("-")[:1].isdigit():
        return f"unexpected argument '{argument}'"
    names = (getattr(options, "strategy", None) or "").split(",")
    own = [flag for name in names if name for flag in _flags_of(name)]
    if own and any(argument in _flags_of(name) for name in all_strategies()):
        return f"{', '.join(names)} has no parameter {argument}; it has {', '.join(dict.fromkeys(own))}"
    return f"unknown flag {argument}; choose from {', '.join(options.flags)}"


def _flags_of(name: str) -> list[str]:
    return [f"--{item.name.replace('_', '-')}" for item in fields(strategy_class(name))]  # type: ignore[arg-type]


def _parser(arguments: Sequence[str]) -> argparse.ArgumentParser:
    """Return the parser; the flags of the strategies named in the arguments are among its own."""
    parser = _Parser(
        prog="sim", description="Explore how to parallelise diffusion models, without a cluster."
    )
    parser.add_argument("--version", action="version", version=f"diffusim {version('diffusim')}")
    commands = parser.add_subparsers(required=True, metavar="COMMAND")
    for name, command, summary in (
        ("models", _models, "list the models"),
        ("clusters", _clusters, "list the clusters"),
        ("strategies", _strategies, "list the strategies and their parameters"),
    ):
        sub = commands.add_parser(name, help=summary, description=summary)
        sub.add_argument("--json", action="store_true", help="print JSON")
        sub.set_defaults(command=command, flags=["--json"])
    named = _named_strategies(arguments)
    run = commands.add_parser("run", help="simulate one strategy", description="Simulate one strategy.")
    _add_scenario(run, required_strategy=True)
    _add_files(run)
    run.set_defaults(command=_run)
    sweep = commands.add_parser("sweep", help="find the best strategy", description="Find the best strategy.")
    _add_scenario(sweep, required_strategy=False)
    _add_sweep(sweep)
    sweep.set_defaults(command=_sweep)
    tune = commands.add_parser(
        "tune",
        help="tune PULSE's degrees and micro-batch",
        description="Search pipeline degree P, data-parallel degree G and micro-batch b of pulse, with M = P.",
    )
    _add_scenario(tune, required_strategy=False)
    tune.add_argument("--p2p", choices=("overlapped", "blocking"), default="overlapped", help="as of pulse")
    tune.add_argument("--json", action="store_true", help="print JSON")
    tune.set_defaults(command=_tune, memory_recipe="pulse")
    schedule = commands.add_parser(
        "schedule", help="print a strategy's order", description="Print a strategy's order."
    )
    _add_scenario(schedule, required_strategy=True, optional_model=True)
    schedule.add_argument("--format", choices=("text", "torch"), default="text", help="how to write it")
    schedule.set_defaults(command=_schedule)
    synthesize = commands.add_parser(
        "synthesize", help="find the shortest order", description="Find the shortest order of a pipeline."
    )
    add_flags(synthesize, _small_integer)
    synthesize.set_defaults(command=run_synthesize)
    for sub in (run, sweep, schedule):
        _add_parameters(sub, named if named or sub is not sweep else list(all_strategies()))
    for sub in (run, sweep, tune, schedule, synthesize):
        sub.set_defaults(flags=[flag for flag in sub._option_string_actions if flag.startswith("--")])
    return parser


def _named_strategies(arguments: Sequence[str]) -> list[str]:
    """Return the strategies named by --strategy, so that their flags are known before the rest is parsed."""
    early = _Parser(add_help=False)
    early.add_argument("--strategy", default="")
    known, _ = early.parse_known_args([a for a in arguments if a not in ("-h", "--help")])
    return [name for name in known.strategy.split(",") if name in all_strategies()]


def _add_scenario(
    parser: argparse.ArgumentParser, *, required_strategy: bool, optional_model: bool = False
) -> None:
    shared = parser.add_argument_group("scenario")
    shared.add_argument("--model", required=not optional_model, help="a model's name, or a model folder")
    shared.add_argument(
        "--cluster", default="p4de", help="a cluster's name, or a cluster file (default: p4de)"
    )
    shared.add_argument("--gpus", type=_integer, help="GPUs in all (default: one node)")
    shared.add_argument(
        "--batch-size", type=_integer, help="samples of all GPUs together (default: 32 per GPU)"
    )
    shared.add_argument("--strategy", required=required_strategy, help="one of `sim strategies`")
    training = parser.add_argument_group("training")
    training.add_argument(
        "--self-conditioning", type=_number, metavar="P", help="probability (default: the model's)"
    )
    training.add_argument("--self-conditioning-draw", choices=DRAWS, default="iteration", help="who draws")
    training.add_argument(
        "--checkpointing", choices=CHECKPOINTINGS, default="none", help="what is recomputed"
    )
    training.add_argument(
        "--memory-recipe", choices=list(RECIPES), default="mixed", help="bytes per parameter"
    )
    training.add_argument(
        "--placement", choices=PLACEMENTS, default="pipeline-inner", help="who gets fast links"
    )


def _add_files(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--json", action="store_true", help="print the result as JSON")
    parser.add_argument(
        "--trace", type=Path, metavar="FILE", help="write a Chrome trace, to open in Perfetto"
    )
    parser.add_argument("--gantt", type=Path, metavar="FILE", help="draw the schedule (.png, .svg, .pdf)")


def _add_sweep(parser: argparse.ArgumentParser) -> None:
    from sim.sweep import OBJECTIVES

    parser.add_argument("--task", choices=("train",), default="train", help="what is swept")
    parser.add_argument("--objective", choices=OBJECTIVES, default="throughput", help="what is ranked by")
    parser.add_argument("--out", type=Path, metavar="FILE", help="where all rows go, .csv or .parquet")
    parser.add_argument("--json", action="store_true", help="print all rows as JSON")
    _add_files_of_best(parser)


def _add_files_of_best(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--trace", type=Path, metavar="FILE", help="write a Chrome trace of the best point")
    parser.add_argument("--gantt", type=Path, metavar="FILE", help="draw the schedule of the best point")


def _add_parameters(parser: argparse.ArgumentParser, names: Sequence[str]) -> None:
    """Offer the fields of strategies as flags; a field of several strategies is one flag."""
    known: dict[str, Field[Any]] = {}
    for name in names:
        for item in fields(strategy_class(name)):  # type: ignore[arg-type]
            known.setdefault(item.name, item)
    if not known:
        return
    group = parser.add_argument_group(f"parameters of {', '.join(names)}")
    for item in known.values():
        group.add_argument(
            f"--{item.name.replace('_', '-')}",
            dest=f"parameter_{item.name}",
            type=_parameter_type(item),
            choices=item.metadata["choices"] or None,
            default=MISSING,
            metavar=None if item.metadata["choices"] else item.name.upper(),
            help=item.metadata["help"] + ("" if item.default is None else f" (default: {item.default})"),
        )


def _parameter_type(item: Field[Any]) -> Callable[[str], Any]:
    return str if isinstance(item.default, str) else _small_integer


def _integer(text: str) -> int:
    try:
        if not text.isascii() or "_" in text:
            raise ValueError
        value = int(text)
    except ValueError:
        raise argparse.ArgumentTypeError(f"is '{text}', must be an integer") from None
    if abs(value) > MAX_INTEGER:
        raise argparse.ArgumentTypeError(f"is {text}, must be at most {MAX_INTEGER}")
    return value


def _small_integer(text: str) -> int:
    value = _integer(text)
    if value > MAX_PARAMETER:
        raise argparse.ArgumentTypeError(f"is {text}, must be at most {MAX_PARAMETER}")
    return value


def _number(text: str) -> float:
    try:
        return float(text)
    except ValueError:
        raise argparse.ArgumentTypeError(f"is '{text}', must be a number") from None


def _parameters(options: argparse.Namespace) -> dict[str, Any]:
    prefix = "parameter_"
    given = {k.removeprefix(prefix): v for k, v in vars(options).items() if k.startswith(prefix)}
    return {key: value for key, value in given.items() if value is not MISSING}


def _scenario(options: argparse.Namespace) -> Scenario:
    cluster = load_cluster(options.cluster)
    num_gpus = options.gpus if options.gpus is not None else min(cluster.devices_per_node, 8)
    batch_size = options.batch_size if options.batch_size is not None else DEFAULT_BATCH_PER_GPU * num_gpus
    workload = TrainingWorkload(
        num_gpus=num_gpus,
        batch_size=batch_size,
        self_conditioning=options.self_conditioning,
        self_conditioning_draw=options.self_conditioning_draw,
        checkpointing=options.checkpointing,
        memory_recipe=options.memory_recipe,
        placement=options.placement,
    )
    scenario = Scenario.of(load_model(options.model), cluster, workload)
    return replace(scenario, asked_model=options.model, asked_cluster=options.cluster)


def _models(options: argparse.Namespace) -> int:
    from sim.tables import print_models

    models = [load_model(name) for name in model_names()]
    return _print(options, models, print_models)


def _clusters(options: argparse.Namespace) -> int:
    from sim.tables import print_clusters

    return _print(options, [load_cluster(name) for name in cluster_names()], print_clusters)


def _strategies(options: argparse.Namespace) -> int:
    from sim.tables import print_strategies

    return _print(options, list(all_strategies().values()), print_strategies)


def _print(options: argparse.Namespace, items: list[Any], show: Callable[[list[Any], bool], None]) -> int:
    show(items, options.json)
    return 0


def _run(options: argparse.Namespace) -> int:
    from sim.experiment import bound, replay_variants, summarize
    from sim.tables import print_result
    from strategies.strategy import Remarking

    _check_files(options)
    scenario = _scenario(options)
    strategy = make_strategy(options.strategy, _parameters(options))
    bound(strategy, scenario)  # refuses what cannot exist before its order is written out
    replayed = replay_variants(strategy, scenario)
    result = summarize(strategy, scenario, replayed)
    if result.missing_memory:
        print(f"sim: warning: {options.strategy} does not fit: {result.missing_memory}", file=sys.stderr)
    if isinstance(strategy, Remarking):
        for remark in strategy.remarks(scenario):
            print(f"sim: note: {remark}", file=sys.stderr)
    _write_files(options, replayed)
    if options.json:
        print(json.dumps(result.to_json(), allow_nan=False))
    else:
        print_result(result)
    return 0


def _check_files(options: argparse.Namespace) -> None:
    """Refuse files that could not be written at the end."""
    from sim.frames import check_writable

    for flag, path in (("--trace", options.trace), ("--gantt", options.gantt)):
        if path is not None:
            check_writable(flag, path)
    if options.gantt is not None and options.gantt.suffix.lower() not in FIGURES:
        raise InputError(f"--gantt is '{options.gantt}', must end in {', '.join(FIGURES)}")


def _write_files(options: argparse.Namespace, replayed: list[tuple[Any, Any]]) -> None:
    """Write the trace and the picture of each iteration that occurs; those with extra forwards beside."""
    for variant, trace in replayed:
        suffix = _suffix(variant, [other for other, _ in replayed])
        for path, write in ((options.trace, _write_trace), (options.gantt, _write_gantt)):
            if path is not None:
                target = path.with_name(f"{path.stem}{suffix}{path.suffix}")
                write(trace, target)
                print(f"sim: wrote {target}", file=sys.stderr)


def _suffix(variant: Any, occurring: list[Any]) -> str:  # noqa: ANN401
    """Return what tells the files of an iteration from those of the others: its job's backbone, the extra forward."""
    own = [other for other in occurring if other.job == variant.job]
    words = []
    if len(own) < len(occurring):
        scenario = variant.scenario
        words.append(scenario.model.components[scenario.backbone].name)
    if variant is not own[0]:
        words.append("extra-forward")
    return "".join(f"-{word}" for word in words)


def _write_trace(trace: Any, path: Path) -> None:  # noqa: ANN401
    from sim.exports import write_chrome_trace

    write_chrome_trace(trace, path)


def _write_gantt(trace: Any, path: Path) -> None:  # noqa: ANN401
    from sim.plots import plot_timeline, save_figure

    save_figure(plot_timeline(trace), path)


def _sweep(options: argparse.Namespace) -> int:
    from sim.experiment import replay_variants
    from sim.frames import check_out, write_rows
    from sim.sweep import Sweep, find_points, run_sweep
    from sim.tables import print_rows_json, print_sweep, progress

    scenario = _scenario(options)
    name = re.sub(r"[^\w.-]+", "-", scenario.model.name)
    gpus, batch = scenario.workload.num_gpus, scenario.workload.batch_size
    out = options.out or Path(f"sweep-{name}-{gpus}gpus-batch{batch}.csv")
    check_out(out)
    _check_files(options)
    names = options.strategy.split(",") if options.strategy is not None else None
    sweep = Sweep(scenario, options.objective, find_points(scenario, names, _parameters(options)))
    try:
        with _termination_as_interrupt(), progress() as report:
            run_sweep(sweep, report)
    finally:
        write_rows(sweep, out)
        print(f"sim: wrote {len(sweep.ranked())} rows to {out}", file=sys.stderr)
    best = next((p for p in sweep.ranked() if p.status == "simulated"), None)
    if best is None:
        print("sim: warning: no point of the sweep is feasible", file=sys.stderr)
    if best is not None and best.strategy is not None and (options.trace or options.gantt):
        _write_files(options, replay_variants(best.strategy, scenario))
    if options.json:
        print_rows_json(sweep)
    else:
        print_sweep(sweep)
    return 0


def _tune(options: argparse.Namespace) -> int:
    from sim.tables import print_choices
    from sim.tuning import tune

    if options.strategy not in (None, "pulse"):
        raise InputError(f"--strategy is '{options.strategy}', but only pulse is tuned")
    if options.batch_size is not None:
        raise InputError("--batch-size is what tune looks for: b * P * G; leave it out")
    return _print(options, tune(_scenario(options), p2p=options.p2p), print_choices)


def _schedule(options: argparse.Namespace) -> int:
    from sim.experiment import replay_variants
    from strategies.actions import StageAction, format_order, format_torch
    from strategies.strategy import Scheduled

    strategy = make_strategy(options.strategy, _parameters(options))
    if options.model is not None:
        replayed = replay_variants(strategy, _scenario(options))
        if len({variant.job for variant, _ in replayed}) < len(replayed):
            print(
                "sim: this is the iteration without the extra forward pass; see --self-conditioning",
                file=sys.stderr,
            )
        first = {variant.job: trace for variant, trace in reversed(replayed)}
        order = tuple(row for _, trace in sorted(first.items()) for row in trace.plan.order)
    elif isinstance(strategy, Scheduled):
        order = strategy.order()
    else:
        raise InputError(f"the order of {options.strategy} depends on the model: give --model")
    if options.format == "torch" and any(
        not isinstance(a, StageAction) or a.kind == "O" for r in order for a in r
    ):
        print(
            "sim: torch has no word for optimizer steps and frozen layers: they are left out", file=sys.stderr
        )
    sys.stdout.write(format_torch(order) if options.format == "torch" else format_order(order))
    return 0


if __name__ == "__main__":
    sys.exit(main())
