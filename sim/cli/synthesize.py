"""``sim synthesize``: the shortest order of forwards and backwards for a few devices, and what it is worth."""

import argparse
import json
import sys
from itertools import pairwise
from time import perf_counter
from typing import Any, Final

from profiles.errors import InputError
from strategies.orders.named import placed
from strategies.orders.problem import Chain, Problem, peak_held, there_and_back, wave_positions
from strategies.orders.synthesis import CERTIFICATE, LIST, PROGRAMME, synthesize
from strategies.parameters import check_integer
from strategies.plans.actions import format_order, format_torch

MAX_PASSES: Final = 2**17
"""Forwards and backwards of all micro-batches; as many take 3 s, where the programme has nothing to do."""
MAX_DEVICES: Final = 1024
METHODS: Final = {
    CERTIFICATE: "list scheduling, which meets the lower bound",
    PROGRAMME: "integer programme",
    LIST: "list scheduling; the programme found nothing shorter",
}


def _words(values: dict[str, Any]) -> str:
    """Return an answer in words."""
    words = "no shorter order exists"
    if not values["proven"]:
        words = f"not proven: {values['makespan'] / values['bound'] - 1:.2%} over bound"
    devices, stages = values["pipeline_degree"], len(values["positions"])
    lines = {
        "problem": f"{devices} devices, {stages} stages, {values['micro_batches']} micro-batches",
        "bound": f"{values['bound']:.6g}",
        "makespan": f"{values['makespan']:.6g}, {words}",
        "method": METHODS[values["method"]],
        "activations held": " ".join(map(str, values["activations_held"])),
        "seconds": f"{values['seconds']:.3f}",
    }
    return "\n".join(f"{name:<18}{value}" for name, value in lines.items())


def synthesize_command(options: argparse.Namespace) -> int:
    """Find and print an order; for torch its rows alone on stdout, and the rest on stderr."""
    if options.json and options.format == "torch":
        raise InputError("--json and --format torch both want stdout: give one of them")
    problem, start = _problem(options), perf_counter()
    synthesis = synthesize(problem, options.time_limit)
    rows = synthesis.ordering.rows
    values = {  # times are in the unit of the durations
        "pipeline_degree": problem.num_devices,
        "micro_batches": options.micro_batches,
        "positions": list(problem.positions),
        "bound": synthesis.bound_s,
        "makespan": synthesis.ordering.makespan_s,
        "proven": synthesis.proven,
        "method": synthesis.method,
        "activations_held": peak_held(rows),
        "seconds": perf_counter() - start,
        "rows": format_order(rows).splitlines(),
    }
    if options.json:
        print(json.dumps(values, allow_nan=False))
    elif options.format == "torch":
        print(_words(values), file=sys.stderr)
        sys.stdout.write(format_torch(rows))
    else:
        print(_words(values), "", *values["rows"], sep="\n")
    return 0


def _problem(options: argparse.Namespace) -> Problem:
    """Return the problem that the flags describe: one chain of stages on free links but for the lag."""
    check_integer("pipeline_degree", options.pipeline_degree, most=MAX_DEVICES)
    for flag in ("micro_batches", "waves"):
        if (value := getattr(options, flag)) is not None:
            check_integer(flag, value)
    positions = _positions(options)
    stages, times = len(positions), list[tuple[float, ...]]()
    for flag in ("forward", "backward"):
        values = getattr(options, flag)
        if len(values) not in (1, stages):
            rule = f"must be one or one for each of {stages} stages"
            raise InputError(f"--{flag} has {len(values)} entries, {rule}")
        times.append(values * (stages // len(values)))
    hops = [0.0 if one == other else options.lag for one, other in pairwise(positions)]
    forward, backward = times
    passes = there_and_back(range(stages), forward, backward, hops)
    return Problem((Chain(passes, range(options.micro_batches)),), positions)


def _positions(options: argparse.Namespace) -> tuple[int, ...]:
    """Return the device of each stage, in waves or as listed."""
    degree, listed = options.pipeline_degree, options.positions
    if listed is None:
        waves = options.waves or 1
        _check_size(2 * waves * degree, options.micro_batches)
        return wave_positions(degree, waves)
    if options.waves is not None:
        raise InputError("--waves and --positions both say where stages are: give one of them")
    _check_size(len(listed), options.micro_batches)
    return placed("--positions", listed, degree)


def _check_size(stages: int, micro_batches: int) -> None:
    if (passes := 2 * stages * micro_batches) > MAX_PASSES:
        product = f"2 * stages({stages}) * `micro_batches({micro_batches})`"
        raise InputError(f"{product} = {passes} passes, at most {MAX_PASSES}")
