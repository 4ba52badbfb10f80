"""The flags of ``python -m validate run`` and ``sample``, and the former: plans carried out beside their simulation."""

import argparse
import json
from statistics import median
from typing import Any, Final

from profiles.architectures.models import load_model
from profiles.errors import wrong
from profiles.measuring.launching import check_least
from sim.cli.flags import add_parameters, given_parameters
from strategies.registry import make, strategies_of
from strategies.training.fsdp import FSDP
from validate.running.sampling.settings import RUNNABLE

SHARDED: Final = FSDP.name
"""The schedule that torch implements itself; its run is compared with the plan."""
MODES: Final = ("sleep", "replay")
SAMPLES: Final = 4  # samples of a micro-batch where no batch size is given


def add_schedules(run: argparse.ArgumentParser) -> None:
    """Add the flags of training strategies."""
    names = list(strategies_of("train"))
    run.add_argument("--schedule", required=True, choices=names, help="training strategy")
    add_parameters(run, names)


def run_schedule(options: argparse.Namespace) -> None:
    """Carry out a schedule and print the result."""
    check_least(("--iterations", options.iterations, 2), ("--gpus", options.gpus, 1))
    check_least(("--batch-size", options.batch_size, 1), ("--link-ms", options.link_ms, 0))
    sharded = options.schedule == SHARDED
    options.mode = options.mode or ("torch" if sharded else "replay")
    if options.mode not in (("torch", "sleep") if sharded else MODES):
        rule = f"{SHARDED} is carried out by torch, or sleeps; no other schedule is"
        raise wrong("mode", f"is {options.mode}, {rule}")
    summary, words = (_run_sharded if options.mode == "torch" else _run_plan)(options)
    print(json.dumps(summary) if options.json else words)


def _run_sharded(options: argparse.Namespace) -> tuple[dict[str, Any], str]:
    """Let torch itself shard, and compare it with the plan."""
    from validate.running.fully_sharded import ShardedTraining, describe, result  # noqa: PLC0415  importing torch takes seconds

    strategy = make(SHARDED, given_parameters(options))
    assert isinstance(strategy, FSDP)
    ranks = options.gpus or 2 * strategy.group_size * (strategy.shard_size or 1)
    batch_size = options.batch_size or ranks // strategy.group_size * strategy.micro_batches
    summary = result(ShardedTraining(strategy, ranks, batch_size))
    return summary, describe(summary)


def _run_plan(options: argparse.Namespace) -> tuple[dict[str, Any], str]:
    """Carry out a plan, and compare it with its simulation."""
    from validate.running.rank import compare, run_jobs  # noqa: PLC0415  as above
    from validate.running.training.plans import error_of, prepare  # noqa: PLC0415  as above

    parameters = given_parameters(options)
    strategy = make(options.schedule, parameters)
    degree: int = getattr(strategy, "pipeline_degree", 1)
    parameters |= {"pipeline_degree": degree} if hasattr(strategy, "pipeline_degree") else {}
    gpus = options.gpus or getattr(strategy, "group_size", None) or (degree if degree > 1 else 2)
    count: int = getattr(strategy, "micro_batches", 1)
    job = prepare(
        load_model(options.model),
        options.schedule,
        parameters,
        num_gpus=gpus,
        batch_size=options.batch_size or max(1, SAMPLES * count * gpus // degree),
        link_s=options.link_ms / 1e3,
        iterations=options.iterations,
        extra_forward=options.extra_forward,
        sleeping=options.mode == "sleep",
    )
    (outcome,) = run_jobs([job])
    pairs = compare(job, outcome)
    measured = [pair.measured_s for pair in pairs]
    names = ("simulated_s", "error", "measured_bubble_ratio", "simulated_bubble_ratio", "bubble_error")
    summary = {
        "schedule": job.name,
        "mode": options.mode,
        "model": options.model,
        "ranks": job.num_ranks,
        "link_ms": options.link_ms,
        "iterations": len(pairs),
        "measured_s": [min(measured), median(measured), max(measured)],
        **{name: median(getattr(pair, name) for pair in pairs) for name in (*names, "late_share")},
        "worst_error": max(pair.error for pair in pairs),
        "mismatch": max(pair.mismatch for pair in pairs),
        "gradient_error": error_of(job, outcome),
    }
    return summary, _describe(summary)


def _describe(run: dict[str, Any]) -> str:
    (least, middle, most), gradients = run["measured_s"], run["gradient_error"]
    lines = f"""\
{run["schedule"]}, {run["mode"]}, {run["ranks"]} ranks, {run["model"]}, {run["iterations"]} iterations
  measured   {middle:.4f} s ({least:.4f} to {most:.4f}), bubble ratio {run["measured_bubble_ratio"]:.3f}
  simulated  {run["simulated_s"]:.4f} s, bubble ratio {run["simulated_bubble_ratio"]:.3f}
  error      {run["error"]:.2%} (median iteration), worst iteration {run["worst_error"]:.2%}
  machine    ops started late by {run["late_share"]:.2%} of an iteration
  order      with late starts as part of their ops, all but {run["mismatch"]:.0e} agrees"""
    return lines if gradients is None else f"{lines}\n  gradients  within {gradients:.1e} of a single process"


def add_samplers(sample: argparse.ArgumentParser) -> None:
    """Add the flags of samplers."""
    known = ", ".join(RUNNABLE)
    sample.add_argument("--strategy", required=True, choices=RUNNABLE, metavar="NAME", help=known)
    add_parameters(sample, RUNNABLE)
