"""``sim synthesize``: the shortest order of forwards and backwards for a few devices, and what it is worth.

Where the problem comes from is one function; solving, extending and printing do not care.
"""

import argparse
import json
import math
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from time import perf_counter
from typing import Any, Final, TextIO

from profiles.errors import InputError
from strategies.orders.capacity import peak_held_bytes
from strategies.orders.list_scheduling import list_schedule, lower_bound_s
from strategies.orders.pattern import extend
from strategies.orders.problem import Chain, Problem, wave_positions
from strategies.orders.synthesis import (
    CERTIFICATE,
    LIST,
    PROGRAMME,
    TIME_LIMIT_S,
    Synthesis,
    agree,
    synthesize,
)
from strategies.parameters import check_integer
from strategies.plans.actions import format_order, format_torch

MAX_PASSES: Final = 2**17
"""Forwards and backwards of all micro-batches; as many take 3 s, where the programme has nothing to do."""
MAX_DEVICES: Final = 1024
MAX_TIME: Final = 1e12
PATTERN: Final = "pattern"
METHODS: Final = {
    CERTIFICATE: "list scheduling, which meets the lower bound",
    PROGRAMME: "integer programme",
    LIST: "list scheduling; the programme found nothing shorter",
    PATTERN: "the order above, stretched and replayed",
}


@dataclass(frozen=True, slots=True)
class Solved:
    """Outcome of one problem.

    Attributes:
        problem: The problem.
        synthesis: Its order, bound and proof.
        elapsed_s: Wall-clock seconds it took.
    """

    problem: Problem
    synthesis: Synthesis
    elapsed_s: float

    @property
    def activations_held(self) -> tuple[int, ...]:
        """The most stage activations that each device holds at once."""
        counted = replace(self.problem, held_bytes=None, capacity_bytes=None)
        return tuple(map(int, peak_held_bytes(counted, self.synthesis.ordering.rows)))

    def to_json(self) -> dict[str, Any]:
        """The answer as JSON values; times are in the unit of the durations."""
        ordering = self.synthesis.ordering
        return {
            "pipeline_degree": self.problem.num_devices,
            "micro_batches": len(self.problem.chains[0].micro_batches),
            "positions": list(self.problem.positions),
            "bound": self.synthesis.bound_s,
            "makespan": ordering.makespan_s,
            "proven": self.synthesis.proven,
            "method": self.synthesis.method,
            "activations_held": list(self.activations_held),
            "seconds": self.elapsed_s,
            "rows": format_order(ordering.rows).splitlines(),
        }


def add_flags(parser: argparse.ArgumentParser, integer: Callable[[str], int]) -> None:
    """Add the flags of ``sim synthesize``.

    Args:
        parser: The parser of the command.
        integer: What turns the text of a flag into a count.
    """
    problem = parser.add_argument_group("problem")
    problem.add_argument(
        "--pipeline-degree", type=integer, required=True, metavar="P", help="devices in line"
    )
    problem.add_argument("--micro-batches", type=integer, required=True, metavar="M", help="micro-batches")
    problem.add_argument("--waves", type=integer, metavar="W", help="2 x W x P stages in waves (default: 1)")
    problem.add_argument("--stages", type=integer, metavar="N", help="stages, instead of --waves")
    problem.add_argument(
        "--positions", type=_list_of(integer), metavar="LIST", help="the device of each stage, from 0"
    )
    problem.add_argument(
        "--forward",
        type=_list_of(_number),
        default=(1.0,),
        metavar="TIME",
        help="of a stage, or of each (default: 1)",
    )
    problem.add_argument(
        "--backward", type=_list_of(_number), default=(2.0,), metavar="TIME", help="likewise (default: 2)"
    )
    problem.add_argument(
        "--lag", type=_number, default=0.0, metavar="TIME", help="from one device to another (default: 0)"
    )
    problem.add_argument(
        "--activation-cap", type=integer, metavar="N", help="most stage activations a device may hold"
    )
    parser.add_argument(
        "--time-limit", type=_number, default=TIME_LIMIT_S, metavar="S",
        help=f"seconds for the integer programme (default: {TIME_LIMIT_S:g})",
    )  # fmt: skip
    parser.add_argument(
        "--extend-to", type=_list_of(integer), metavar="P,M", help="carry the pattern over to P devices"
    )
    parser.add_argument(
        "--format", choices=("text", "torch"), default="text", help="how to write the last order"
    )
    parser.add_argument("--json", action="store_true", help="print JSON")


def _list_of(item: Callable[[str], Any]) -> Callable[[str], tuple[Any, ...]]:
    return lambda text: tuple(item(part) for part in text.split(","))


def _number(text: str) -> float:
    try:
        value = float(text)
    except ValueError:
        raise argparse.ArgumentTypeError(f"is '{text}', must be a number") from None
    if not math.isfinite(value):
        raise argparse.ArgumentTypeError(f"is {text}, must be finite")
    if abs(value) > MAX_TIME:
        raise argparse.ArgumentTypeError(f"is {text}, must be at most {MAX_TIME:g}")
    return value


def run_synthesize(options: argparse.Namespace) -> int:
    """Find, extend and print an order; return the exit code."""
    if options.json and options.format == "torch":
        raise InputError("--json and --format torch both want stdout: give one of them")
    problem = _problem_of(options)
    larger = None if options.extend_to is None else _larger_of(options, problem)
    answers = [_solve(problem, options.time_limit)]
    if larger is not None:
        answers.append(_extend(answers[0], larger))
    if options.json:
        _print_json(answers)
    else:
        _print(answers, as_torch=options.format == "torch")
    return 0


def _problem_of(options: argparse.Namespace) -> Problem:
    """The problem that the flags describe: one chain of stages on free links but for the lag.

    Raises:
        InputError: a flag breaks a rule.
    """
    check_integer("pipeline_degree", options.pipeline_degree, most=MAX_DEVICES)
    for flag in ("micro_batches", "waves", "stages", "activation_cap"):
        if (value := getattr(options, flag)) is not None:
            check_integer(flag, value)
    if options.time_limit <= 0:
        raise InputError(f"--time-limit is {options.time_limit:g}, must be above 0")
    if options.lag < 0:
        raise InputError(f"--lag is {options.lag:g}, must be at least 0")
    positions = _positions(options)
    forward = _durations("forward", options.forward, len(positions))
    backward = _durations("backward", options.backward, len(positions))
    return _chain(options, positions, options.micro_batches, forward, backward)


def _positions(options: argparse.Namespace) -> tuple[int, ...]:
    degree = options.pipeline_degree
    if options.positions is None:
        if options.stages is not None:
            raise InputError("--stages needs --positions: on which device is each stage?")
        waves = options.waves or 1
        _check_size(2 * waves * degree, options.micro_batches)
        return wave_positions(degree, waves)
    positions: tuple[int, ...] = options.positions
    if options.waves is not None:
        raise InputError("--waves and --positions both say where stages are: give one of them")
    if options.stages is not None and options.stages != len(positions):
        raise InputError(f"--positions has {len(positions)} entries, but --stages is {options.stages}")
    for position in positions:
        if not 0 <= position < degree:
            raise InputError(
                f"--positions has {position}, must be at least 0 and less than pipeline_degree({degree})"
            )
    for device in range(degree):
        if device not in positions:
            raise InputError(f"--positions leaves device {device} of {degree} without a stage")
    _check_size(len(positions), options.micro_batches)
    return positions


def _check_size(stages: int, micro_batches: int) -> None:
    passes = 2 * stages * micro_batches
    if passes > MAX_PASSES:
        raise InputError(
            f"2 * stages({stages}) * micro_batches({micro_batches}) = {passes} passes, at most {MAX_PASSES}"
        )


def _durations(flag: str, values: Sequence[float], stages: int) -> tuple[float, ...]:
    if min(values) <= 0:
        raise InputError(f"--{flag} is {min(values):g}, must be above 0")
    if len(values) not in (1, stages):
        raise InputError(
            f"--{flag} has {len(values)} entries, must be one or one for each of {stages} stages"
        )
    return tuple(values) if len(values) == stages else (values[0],) * stages


def _chain(
    options: argparse.Namespace,
    positions: tuple[int, ...],
    micro_batches: int,
    forward: tuple[float, ...],
    backward: tuple[float, ...],
) -> Problem:
    cap = options.activation_cap
    hops = [0.0 if one == other else options.lag for one, other in pairwise(positions)]
    return Problem(
        forward_s=forward,
        backward_s=backward,
        positions=positions,
        chains=(Chain(tuple(range(len(positions))), tuple(range(micro_batches))),),
        forward_lag_s=(*hops, 0.0),
        backward_lag_s=(0.0, *hops),
        held_bytes=None if cap is None else (1.0,) * len(positions),
        capacity_bytes=None if cap is None else (float(cap),) * (max(positions) + 1),
    )


def _larger_of(options: argparse.Namespace, problem: Problem) -> Problem:
    """The problem that the pattern is carried over to.

    Raises:
        InputError: the stages have no pattern, or unlike durations.
    """
    if len(options.extend_to) != 2 or min(options.extend_to) < 1:
        given = ",".join(map(str, options.extend_to))
        raise InputError(f"--extend-to is {given}, must be devices and micro-batches, as 8,16")
    degree, micro_batches = options.extend_to
    check_integer("extend_to", degree, most=MAX_DEVICES)
    for flag, values in (("forward", problem.forward_s), ("backward", problem.backward_s)):
        if len(set(values)) > 1:
            raise InputError(f"--extend-to needs one --{flag} for all stages")
    stages = len(problem.positions) // problem.num_devices * degree
    _check_size(stages, micro_batches)
    positions = _larger_positions(problem, degree)
    forward, backward = (values[:1] * stages for values in (problem.forward_s, problem.backward_s))
    return _chain(options, positions, micro_batches, forward, backward)


def _larger_positions(problem: Problem, degree: int) -> tuple[int, ...]:
    """The layout of stages that pass over all devices in the same directions, down or up."""
    size = problem.num_devices
    down, up = tuple(range(size)), tuple(reversed(range(size)))
    positions: tuple[int, ...] = ()
    for first in range(0, len(problem.positions), size):
        direction = problem.positions[first : first + size]
        if direction not in (down, up):
            raise InputError(
                f"--extend-to needs stages that pass over all devices in line, as 0,1,1,0 do; --positions is"
                f" {','.join(map(str, problem.positions))}"
            )
        positions += tuple(range(degree)) if direction == down else tuple(reversed(range(degree)))
    return positions


def _solve(problem: Problem, time_limit_s: float) -> Solved:
    before = perf_counter()
    synthesis = synthesize(problem, time_limit_s)
    return Solved(problem, synthesis, perf_counter() - before)


def _extend(answer: Solved, larger: Problem) -> Solved:
    before = perf_counter()
    ordering = extend(answer.problem, answer.synthesis.ordering, larger)
    bound_s = lower_bound_s(larger)
    proven = agree(bound_s, ordering.makespan_s)
    return Solved(larger, Synthesis(bound_s, ordering, proven, PATTERN), perf_counter() - before)


def _print_json(answers: Sequence[Solved]) -> None:
    result = answers[0].to_json()
    result["extension"] = None
    for extension in answers[1:]:
        listed = list_schedule(extension.problem).makespan_s
        result["extension"] = extension.to_json() | {"list_makespan": listed}
    print(json.dumps(result, allow_nan=False))


def _print(answers: Sequence[Solved], *, as_torch: bool) -> None:
    """Print each answer and its rows; for torch the rows of the last alone, and the rest on stderr."""
    words = sys.stderr if as_torch else sys.stdout
    for number, answer in enumerate(answers):
        if number:
            print(file=words)
        _print_answer(answer, words)
        if number:
            listed = list_schedule(answer.problem).makespan_s
            print(f"list scheduling   {listed:.6g}, from scratch", file=words)
        if not as_torch:
            print()
            sys.stdout.write(format_order(answer.synthesis.ordering.rows))
    if as_torch:
        sys.stdout.write(format_torch(answers[-1].synthesis.ordering.rows))


def _print_answer(answer: Solved, to: TextIO) -> None:
    problem, synthesis = answer.problem, answer.synthesis
    bound, makespan = synthesis.bound_s, synthesis.ordering.makespan_s
    micro_batches = len(problem.chains[0].micro_batches)
    proof = (
        "no shorter order exists"
        if synthesis.proven
        else f"not proven: {makespan / bound - 1:.2%} over bound"
    )
    for name, value in (
        (
            "problem",
            f"{problem.num_devices} devices, {len(problem.positions)} stages, {micro_batches} micro-batches",
        ),
        ("bound", f"{bound:.6g}"),
        ("makespan", f"{makespan:.6g}, {proof}"),
        ("method", METHODS[synthesis.method]),
        ("activations held", " ".join(map(str, answer.activations_held))),
        ("seconds", f"{answer.elapsed_s:.3f}"),
    ):
        print(f"{name:<18}{value}", file=to)
