"""The programme: each schedule planned, its gradients checked, its ops profiled, predicted, and then measured."""

import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import median
from typing import Final

import torch

from profiles.errors import DiffusimError, InputError
from profiles.models import Model, load_model
from strategies.plans.plan import Plan
from strategies.plans.wiring import wire
from validate.green.iteration import LaneMap, Record, Runner
from validate.green.lanes import Lanes, ThreadLanes
from validate.green.partitions import GreenLanes, check_gpu, default_sms
from validate.green.results import Measured, Prediction, Result, predict, print_results, write_results
from validate.green.work import LayerWork, Work, layer_times
from validate.launching import check_least
from validate.measuring.environment import device_name
from validate.running.rank import CHECKED
from validate.running.training.blocks import SMALL, Shape, gradient_error, single_process_gradients
from validate.running.training.device import Training
from validate.running.training.scenarios import Question, plan_small

SCHEDULES: Final = ("gpipe", "1f1b", "wave", "bidirectional", "diffusionpipe")
LARGE: Final = Shape(32, 512, 2048, heads=8, multiple=256, dtype=torch.bfloat16)
"""Sizes at which a stage of Stable Diffusion's structure should take some milliseconds on a quarter of an H200 (an
estimate from its rates, 4 samples)."""
CHECKED_LARGE: Final = Shape(16, 128, 512, heads=2, multiple=64, dtype=torch.float32)
"""Sizes and numbers with which gradients are compared: those of bfloat16 depend on the order of their sums."""
TOLERANCES: Final = {torch.float64: 1e-6, torch.float32: 1e-3}
WARM_UP: Final = 2
LATE: Final = 0.01  # a message may be late by so much of an iteration before it is told
CALL_ROOM: Final = 1.5  # a collective is given so many times what summing up takes, so that its end is known


@dataclass(frozen=True, slots=True)
class Programme:
    """What is carried out: schedules on partitions of ``sms`` multiprocessors, None for as many as possible.

    ``samples`` are those of a micro-batch, ``rounds`` the iterations that count; ``graphs`` are CUDA graphs of ops, and
    a rehearsal has threads of the CPU in the place of green contexts.
    """

    model: str = "sd21"
    schedules: tuple[str, ...] = SCHEDULES
    partitions: int = 4
    sms: int | None = None
    micro_batches: int = 8
    samples: int = 4
    link_s: float = 1e-3
    rounds: int = 10
    graphs: bool = True
    rehearse: bool = False

    @property
    def shapes(self) -> tuple[Shape, Shape]:
        """The shape that is measured, and the one whose gradients are checked."""
        return (SMALL, SMALL) if self.rehearse else (LARGE, CHECKED_LARGE)

    def question(self, schedule: str) -> Question:
        """What is asked of a strategy."""
        parameters = {"pipeline_degree": self.partitions, "micro_batches": self.micro_batches}
        return Question(schedule, parameters, self.partitions, self.samples * self.micro_batches, self.link_s)


def report_green(folder: Path, programme: Programme, name: str | None = None) -> list[Result]:
    """Carry a programme out, print what it finds, and write it into a folder after every schedule."""
    if name is not None and not name.replace("-", "").replace(".", "").isalnum():
        raise InputError(f"--name is '{name}', must be of letters, digits, '-' and '.'")
    model = load_model(programme.model).for_task("train")
    programme, lanes = _open(programme)
    device = lanes.device
    found: list[Result] = []
    try:
        for result in results(programme, model, lanes):
            found.append(result)
            write_results(folder, name or device_name(device), found, device, programme.rehearse)
    finally:
        lanes.close()
    print_results(name or device_name(device), found, rehearsal=programme.rehearse)
    return found


def _open(programme: Programme) -> tuple[Programme, Lanes]:
    count, partitions = LaneMap(programme.partitions).count, programme.partitions
    if programme.rehearse:
        torch.set_num_threads(1)
        return replace(programme, sms=0), ThreadLanes(count)
    check_gpu(partitions, programme.sms)
    sms = programme.sms or default_sms(partitions)
    return replace(programme, sms=sms), GreenLanes(partitions, sms, count)


def results(programme: Programme, model: Model, lanes: Lanes) -> Iterator[Result]:
    """The result of each schedule; of one that cannot be carried out the reason."""
    shape, _ = programme.shapes
    times = layer_times(lanes, model, programme.samples, shape)
    for schedule in programme.schedules:
        print(f"validate: measuring {schedule}", file=sys.stderr)
        question = programme.question(schedule)
        empty = Result(schedule, programme.partitions, programme.sms or 0, programme.micro_batches)
        try:
            plan, training = plan_small(question, model, times)
            yield _result(empty, programme, plan, training, lanes)
        except torch.OutOfMemoryError:
            yield replace(empty, note="memory ran out: choose fewer --samples or --micro-batches")
        except DiffusimError as error:
            yield replace(empty, note=str(error))


def _result(empty: Result, programme: Programme, plan: Plan, training: Training, lanes: Lanes) -> Result:
    shape, checked = programme.shapes
    error = _gradient_error(programme, plan, training, lanes)
    work = _prepare(plan, training, shape, lanes, graphs=programme.graphs)
    plan = with_calls(plan, work, lanes)
    runner = Runner(lanes, wire(plan), work)
    for _ in range(WARM_UP):
        runner.run()
    prediction = _profiled(plan, runner, programme.rounds)
    records = [runner.run() for _ in range(programme.rounds)]
    note = _note(records, programme.link_s, error, TOLERANCES[checked.dtype])
    return replace(empty, measured=_measured(records, prediction, error, programme.link_s), note=note)


def _prepare(plan: Plan, training: Training, shape: Shape, lanes: Lanes, *, graphs: bool) -> LayerWork:
    """Work that has run, and is captured where the lanes are those of a GPU."""
    wiring = wire(plan)
    work = LayerWork(training, wiring, lanes.device, shape)
    runner = Runner(lanes, wiring, work)
    work.advance()
    for _ in range(WARM_UP):
        runner.run()
    if graphs and isinstance(lanes, GreenLanes):
        work.capture(lanes)
    return work


def _gradient_error(programme: Programme, plan: Plan, training: Training, lanes: Lanes) -> float:
    """Largest difference of a gradient from that of a single process, over the largest of its layer."""
    _, shape = programme.shapes
    with torch.backends.cudnn.flags(allow_tf32=False):
        work = _prepare(plan, training, shape, lanes, graphs=programme.graphs)
        work.restart()
        runner = Runner(lanes, wire(plan), work)
        for _ in range(CHECKED):
            work.advance()
            runner.run()
        expected = single_process_gradients(
            training.model,
            CHECKED,
            training.batch_size,
            extra_forward=False,
            device=lanes.device,
            shape=shape,
        )
    return gradient_error(work.gradients(), expected)


def with_calls(plan: Plan, work: Work, lanes: Lanes) -> Plan:
    """A plan whose collectives take at least what summing up takes here, with room."""
    lane, found = LaneMap(plan.num_devices).collectives((0,)), [0.0]
    for number in range(len(plan.collectives)):
        marks = [lanes.record(lane)]
        lanes.submit(lane, lambda number=number: work.reduce(number))  # type: ignore[misc]
        marks.append(lanes.record(lane))
        lanes.settle()
        found.append(lanes.seconds(*marks))
    cluster = plan.placement.cluster
    collectives = replace(cluster.collectives, call_s=CALL_ROOM * max(found))
    return replace(plan, placement=replace(plan.placement, cluster=replace(cluster, collectives=collectives)))


def _profiled(plan: Plan, runner: Runner, rounds: int) -> Prediction:
    """The prediction from ops that are profiled alone, and with all other lanes busy."""
    everyone = range(plan.num_devices)
    alone = [runner.free_run([device], rounds)[device] for device in everyone]
    return predict(plan, alone, runner.free_run(everyone, rounds))


def _measured(records: Sequence[Record], prediction: Prediction, error: float, link_s: float) -> Measured:
    counted = [record for record in records if not record.behind] or records
    ends_s = [record.end_s for record in counted]
    bubble_ratio = median(record.bubble_ratio for record in counted)
    enqueue_s = median(record.enqueue_s for record in counted)
    times_s = median(ends_s), min(ends_s), max(ends_s)
    return Measured(
        len(counted), *times_s, bubble_ratio, prediction, error, _late_s(counted, link_s), enqueue_s
    )


def _late_s(records: Sequence[Record], link_s: float) -> float:
    """By how much more than the link's time the slowest message of the median iteration took."""
    slowest = [max((b - a - link_s for a, b in r.messages.values()), default=0.0) for r in records]
    return median(slowest)


def _note(records: Sequence[Record], link_s: float, error: float, tolerance: float) -> str:
    notes = []
    if not error <= tolerance:
        notes.append(f"gradients differ by {error:.1e}, more than {tolerance:g}")
    if all(record.behind for record in records):
        notes.append("every iteration began before it was enqueued")
    late_s = _late_s(records, link_s)
    if late_s > LATE * median(record.end_s for record in records):
        notes.append(f"messages take up to {1e3 * late_s:.2f} ms longer than --link-ms")
    return "; ".join(notes)


def check_programme(programme: Programme) -> None:
    """Refuse numbers that mean nothing."""
    check_least(
        ("--partitions", programme.partitions, 2),
        ("--sms", programme.sms, 1),
        ("--micro-batches", programme.micro_batches, 1),
        ("--samples", programme.samples, 1),
        ("--link-ms", 1e3 * programme.link_s, 0),
        ("--rounds", programme.rounds, 1),
    )
    unknown = [name for name in programme.schedules if name not in SCHEDULES]
    if unknown or not programme.schedules:
        raise InputError(f"--schedules: '{','.join(unknown)}' is none of {', '.join(SCHEDULES)}")
