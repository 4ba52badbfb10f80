"""The commands ``python -m validate run`` and ``sample``: plans carried out by processes, beside their simulation."""

import argparse
import json
from dataclasses import MISSING
from statistics import median
from typing import TYPE_CHECKING, Any, Final

from profiles.architectures.models import load_model
from profiles.errors import wrong
from profiles.measuring.launching import check_least
from sim.cli.flags import PARAMETER, add_parameters
from strategies.registry import all_strategies, make_strategy
from strategies.training.fsdp import FSDP
from validate.running.sampling.settings import RUNNABLE, Settings

if TYPE_CHECKING:
    from validate.running.rank import Job, Outcome


SHARDED: Final = FSDP.name
"""The schedule that torch implements itself; its run is compared with the plan."""
MODES: Final = ("sleep", "replay")
SAMPLES: Final = 4  # samples of a micro-batch where no batch size is given


def add_schedules(run: argparse.ArgumentParser) -> None:
    """Add the flags of training strategies."""
    run.add_argument("--schedule", required=True, choices=list(all_strategies()), help="training strategy")
    add_parameters(run, list(all_strategies()))


def run_schedule(options: argparse.Namespace) -> None:
    """Carry out a schedule and print the result; under ``torchrun`` as one of its ranks."""
    check_least(("--iterations", options.iterations, 2), ("--gpus", options.gpus, 1))
    check_least(("--batch-size", options.batch_size, 1), ("--link-ms", options.link_ms, 0))
    sharded = options.schedule == SHARDED
    options.mode = options.mode or ("torch" if sharded else "replay")
    if options.mode not in (("torch", "sleep") if sharded else MODES):
        rule = f"{SHARDED} is carried out by torch, or sleeps; no other schedule is"
        raise wrong("mode", f"is {options.mode}, {rule}")
    if options.mode == "torch":
        _run_sharded(options)
        return
    from validate.running.rank import run_job  # noqa: PLC0415  importing torch takes seconds

    done = run_job(lambda: _job(options))
    if done is None:
        return  # another rank speaks for all
    summary = _result(options, *done)
    print(json.dumps(summary) if options.json else _describe(summary))


def _run_sharded(options: argparse.Namespace) -> None:
    """Let torch itself shard, and compare it with the plan."""
    from validate.running.fully_sharded import ShardedTraining, describe, result  # noqa: PLC0415  importing torch takes seconds

    strategy = make_strategy(SHARDED, _parameters(options))
    assert isinstance(strategy, FSDP)
    ranks = options.gpus or 2 * strategy.group_size * (strategy.shard_size or 1)
    batch_size = options.batch_size or ranks // strategy.group_size * strategy.micro_batches
    summary = result(ShardedTraining(strategy, ranks, batch_size))
    print(json.dumps(summary) if options.json else describe(summary))


def _parameters(options: argparse.Namespace) -> dict[str, Any]:
    """Return the parameters of the strategy that were set."""
    chosen = {key: value for key, value in vars(options).items() if value is not MISSING}
    return {key.removeprefix(PARAMETER): chosen[key] for key in chosen if key.startswith(PARAMETER)}


def _job(options: argparse.Namespace) -> "Job":
    from validate.running.training.scenarios import Question, prepare  # noqa: PLC0415  as above

    parameters = _parameters(options)
    strategy = make_strategy(options.schedule, parameters)
    degree: int = getattr(strategy, "pipeline_degree", 1)
    parameters |= {"pipeline_degree": degree} if hasattr(strategy, "pipeline_degree") else {}
    gpus = options.gpus or getattr(strategy, "group_size", None) or (degree if degree > 1 else 2)
    count: int = getattr(strategy, "micro_batches", 1)
    batch_size = options.batch_size or max(1, SAMPLES * count * gpus // degree)
    size = gpus, batch_size, options.link_ms / 1e3
    question = Question(options.schedule, parameters, *size, options.extra_forward)
    model = load_model(options.model)
    return prepare(question, model, options.iterations, sleeping=options.mode == "sleep")


def _result(options: argparse.Namespace, job: "Job", outcome: "Outcome") -> dict[str, Any]:
    from validate.running.rank import compare, middle, worst  # noqa: PLC0415  as above

    pairs = compare(job, outcome)
    names = ("simulated_s", "error", "measured_bubble_ratio", "simulated_bubble_ratio", "bubble_error")
    return {
        "schedule": job.name,
        "mode": options.mode,
        "model": options.model,
        "ranks": job.num_ranks,
        "link_ms": options.link_ms,
        "iterations": len(pairs),
        "measured_s": [f([pair.measured_s for pair in pairs]) for f in (min, median, max)],
        **{name: middle(pairs, name) for name in (*names, "late_share")},
        "worst_error": worst(pairs, "error"),
        "mismatch": worst(pairs, "mismatch"),
        "gradient_error": outcome.gradient_error,
    }


def _describe(run: dict[str, Any]) -> str:
    least, middle, most = run["measured_s"]
    return f"""\
{run["schedule"]}, {run["mode"]}, {run["ranks"]} ranks, {run["model"]}, {run["iterations"]} iterations
  measured   {middle:.4f} s ({least:.4f} to {most:.4f}), bubble ratio {run["measured_bubble_ratio"]:.3f}
  simulated  {run["simulated_s"]:.4f} s, bubble ratio {run["simulated_bubble_ratio"]:.3f}
  error      {run["error"]:.2%} (median iteration), worst iteration {run["worst_error"]:.2%}
  machine    ops started late by {run["late_share"]:.2%} of an iteration
  order      with late starts as part of their ops, all but {run["mismatch"]:.0e} agrees""" + (
        ""
        if run["gradient_error"] is None
        else f"\n  gradients  within {run['gradient_error']:.1e} of a single process"
    )


def add_samplers(sample: argparse.ArgumentParser) -> None:
    """Add the flags of samplers."""
    known = ", ".join(RUNNABLE)
    sample.add_argument("--strategy", required=True, choices=RUNNABLE, metavar="NAME", help=known)
    add_parameters(sample, RUNNABLE)


def run_sampler(options: argparse.Namespace) -> None:
    """Sample as a sampler plans; under ``torchrun`` each of its processes is a rank, else ranks are started here."""
    from validate.running.sampling.comparison import report_sample  # noqa: PLC0415  as above

    parameters = tuple(_parameters(options).items())
    report_sample(Settings(options.strategy, options.ranks, options.steps, parameters, options.guidance))
