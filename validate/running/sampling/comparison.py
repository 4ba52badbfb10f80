"""The comparison of a real run's image, messages and keys and values with those of one device and of the simulator."""

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import pairwise
from typing import Final

from torch import Tensor

from profiles.errors import DiffusimError
from sim.replay.engine import simulate
from strategies.plans.actions import PatchAction
from strategies.plans.wiring import wire
from validate.running.comparison import Job, compare
from validate.running.rank import run_job
from validate.running.sampling.kernels import Drawn
from validate.running.sampling.passes import Seen
from validate.running.sampling.settings import (
    HIDDEN,
    LAYERS,
    LOST_PATCH,
    PATCHED,
    ROWS,
    WIDENING,
    WRONG_SIZE,
    Settings,
    stated_plan,
    without_patch,
)
from validate.running.sampling.transformer import displaced_image, independent_image, one_device_image

SAME: Final = 1e-5
"""Largest relative difference of images that count as equal: float32, summed in another order."""

ROUNDING: Final = 1e-9
"""Largest relative difference of bytes that count as equal: the simulator adds up fractions of images."""


@dataclass(frozen=True)
class ImageComparison:
    """A run: what each rank ended with, and what it should have ended with."""

    settings: Settings
    drawn: Sequence[Drawn]

    @property
    def image(self) -> Tensor:
        """The sampled image: the last stage has it, or every rank where there are no stages."""
        return self.drawn[-1].latents

    @cached_property
    def error(self) -> float:
        """Relative difference from the image of one device, in the Euclidean norm."""
        return relative(self.image, one_device_image(self.settings))

    @cached_property
    def displaced_error(self) -> float:
        """Relative difference from the image that the same displaced patches give in one process."""
        return relative(self.image, displaced_image(self.settings))

    @cached_property
    def allowed(self) -> float:
        """Largest difference allowed from one device's image: stale keys and values must do better than none at all."""
        if self.settings.exact:
            return SAME
        return relative(independent_image(self.settings), one_device_image(self.settings))

    @cached_property
    def sent_bytes(self) -> list[int]:
        """Bytes that all ranks sent, by step."""
        total: Counter[int] = Counter()
        for sent in (sent for own in self.drawn for sent in own.sent):
            total[sent.step] += sent.size_bytes
        return [total[step] for step in range(self.settings.steps)]

    @cached_property
    def simulated_bytes(self) -> list[float]:
        """Bytes that the simulator sends, by step, in single precision."""
        return simulated_bytes(self.settings)

    @cached_property
    def passes(self) -> Counter[tuple[int, PatchAction]]:
        """Number of times that each rank finished each pass."""
        return Counter((rank, action) for rank, own in enumerate(self.drawn) for action in own.passes)

    def failures(self) -> list[str]:
        """The checks that fail, in words."""
        sent = self._step_failures() + self._message_failures()
        return self._image_failures() + sent + self._pass_failures() + self._age_failures()

    def _image_failures(self) -> list[str]:
        found = []
        cases = (
            ("one device's", self.error, f"{self.allowed:.2g}", self.allowed),
            ("that of the same patches in one process", self.displaced_error, f"{SAME:g}", SAME),
        )
        for what, error, words, most in cases:
            if not error <= most:
                found.append(f"the image differs from {what} by {error:.2g}, at most {words} allowed")
        whole = [own.latents for rank, own in enumerate(self.drawn) if self._has_image(rank)]
        if any(relative(latents, whole[0]) > SAME for latents in whole):
            found.append("the ranks end with different images")
        return found

    def _has_image(self, rank: int) -> bool:
        """Whether a rank is of a last stage, which alone has all of the image."""
        settings = self.settings
        return settings.strategy in PATCHED or _stage_of(settings, rank) == settings.grid.pipeline - 1

    def _message_failures(self) -> list[str]:
        """The messages whose size is not that of the plan, even if the step's bytes agree."""
        wrong = Counter[str]()
        for rank, one in ((rank, sent) for rank, own in enumerate(self.drawn) for sent in own.sent):
            if abs(one.size_bytes - one.planned_bytes) > ROUNDING * one.size_bytes:
                said = f"{one.size_bytes} bytes of {one.kind} in step {one.step}"
                wrong[f"rank {rank} sent {said}, the plan says {one.planned_bytes:.0f}"] += 1
        return [f"{line}, {count} times" if count > 1 else line for line, count in wrong.items()]

    def _step_failures(self) -> list[str]:
        return [
            f"step {step} sent {sent} bytes, the simulator says {simulated:.0f}"
            for step, (sent, simulated) in enumerate(zip(self.sent_bytes, self.simulated_bytes, strict=True))
            if abs(sent - simulated) > ROUNDING * simulated
        ]

    def _pass_failures(self) -> list[str]:
        wanted = Counter(_expected_passes(self.settings))
        lost, more = wanted - self.passes, self.passes - wanted
        never = [f"rank {rank} never finished {action}" for rank, action in lost]
        return never + [f"rank {rank} finished {action} once too often" for rank, action in more]

    def _age_failures(self) -> list[str]:
        wrong = Counter[str]()
        for rank, seen in ((rank, seen) for rank, own in enumerate(self.drawn) for seen in own.seen):
            if seen.ages != (ages := _expected_ages(self.settings, seen)):
                old = f"{' '.join(map(str, seen.ages))} steps old, not {' '.join(map(str, ages))}"
                wrong[f"rank {rank}, step {seen.step}, patch {seen.patch}: patches are {old}"] += 1
        found = [f"{line}, in {count} layers" for line, count in wrong.items()]
        reads = sum(len(own.seen) for own in self.drawn)
        if reads != (wanted := _expected_reads(self.settings)):
            found.append(f"keys and values that are kept were read {reads} times, not {wanted}")
        return found


def relative(image: Tensor, reference: Tensor) -> float:
    """The norm of a difference over the norm of the reference."""
    return float((image - reference).norm() / reference.norm())


def simulated_bytes(settings: Settings) -> list[float]:
    """The bytes of each step: what a run with one more step sends more; latents count with the step that they begin."""
    totals = [0.0]
    for steps in range(1, settings.steps + 1):
        parameters = dict(settings.parameters)
        if hasattr(settings.sampler, "warmup_steps"):
            parameters["warmup_steps"] = min(settings.warmup_steps, steps)
        fault = settings.fault if settings.fault == WRONG_SIZE else None
        shorter = replace(settings, steps=steps, parameters=tuple(parameters.items()), fault=fault)
        trace = simulate(stated_plan(shorter))
        totals.append(WIDENING * (trace.p2p_bytes + trace.collective_bytes))
    return [after - before for before, after in pairwise(totals)]


def _stage_of(settings: Settings, rank: int) -> int:
    """Stage of the pipeline that a rank is of."""
    grid = settings.grid
    return next(stage for _, stage, team in grid.teams() if rank in team.devices)


def _expected_passes(settings: Settings) -> list[tuple[int, PatchAction]]:
    """Every (rank, pass) of a whole run: each patch of each step through each stage once."""
    found = []
    for rank in range(settings.ranks):
        stage = _stage_of(settings, rank)
        for step in range(settings.steps):
            if settings.strategy in PATCHED:
                found.append((rank, PatchAction(0, rank, step)))
            else:
                patches = 1 if step < settings.warmup_steps else settings.num_patches
                found += [(rank, PatchAction(stage, patch, step)) for patch in range(patches)]
    return found


def _expected_reads(settings: Settings) -> int:
    """Number of reads of kept keys and values in a run: each pass reads those of its layers."""
    stages = settings.plan.stages
    layers = [stage.last_layer - stage.first_layer + 1 for stage in stages]
    assert sum(layers) == LAYERS, layers
    return sum(layers[action.stage] for _, action in _expected_passes(settings))


def _expected_ages(settings: Settings, seen: Seen) -> tuple[int, ...]:
    """The age that the keys and values of each patch should have, in steps.

    In a displaced step of a pipeline patches up to the own are of this step, later ones of the step before; in
    DistriFusion only the own patch is of this step.
    """
    patches = range(settings.num_patches)
    if seen.step < settings.warmup_steps:
        return (0,) * len(patches)
    if settings.strategy in PATCHED:
        return tuple(int(patch != seen.patch) for patch in patches)
    return tuple(int(patch > seen.patch) for patch in patches)


def job_of(settings: Settings) -> Job:
    """The job of some settings, with the fault that they ask for."""
    plan = stated_plan(settings)
    if settings.fault == LOST_PATCH:
        plan = without_patch(plan, settings.num_patches - 1, settings.steps - 1)
    wire(plan)  # what cannot be is said before processes start
    return Job(settings.strategy, "replay", plan, task=settings)


def report_sample(settings: Settings) -> None:
    """Run settings, print the comparison."""
    found = run_job(lambda: job_of(settings))
    if found is None:
        return  # another rank speaks for all
    comparison = ImageComparison(settings, found[1].found)
    for line in said(comparison):
        print(line)
    mismatch = compare(*found).mismatch
    print(f"order: engine and executor agree on all but {mismatch:.0e} of the time")
    failures = comparison.failures()
    if mismatch > ROUNDING:
        failures.append(f"the order is not that of the simulation: {mismatch:.2g} of the time")
    for failure in failures:
        print(f"fails: {failure}")
    if failures:
        raise DiffusimError(f"sample: {len(failures)} checks failed, the first: {failures[0]}")
    print("all checks hold")


def said(comparison: ImageComparison) -> Iterator[str]:
    """Lines on how the image differs from those of one process, the bytes of each step, and the age of keys and values.

    Bytes are counted from the tensors of the passes; latents count with the step that they begin.
    """
    settings = comparison.settings
    given = "".join(f", {name} {value}" for name, value in settings.parameters)
    model = f"a transformer of {LAYERS} blocks, hidden size {HIDDEN}, {ROWS} x {ROWS} tokens, float32"
    yield f"{settings.strategy} on {settings.ranks} ranks, {settings.steps} steps{given}; {model}"
    why = "" if settings.exact else ", as patches make that never see one another"
    yield f"image: {comparison.error:.2e} off one device's, allowed {comparison.allowed:.2g}{why}"
    if not settings.exact:
        yield f"image: {comparison.displaced_error:.2e} off the same patches in one process, allowed {SAME:g}"
    steps = zip(comparison.sent_bytes, comparison.simulated_bytes, strict=True)
    yield from (
        f"step {n}: {own:,} bytes sent, {planned:,.0f} simulated" for n, (own, planned) in enumerate(steps)
    )
    yield from _age_lines(comparison)


def _age_lines(comparison: ImageComparison) -> Iterator[str]:
    """Lines on the age in steps of the keys and values that each patch of a displaced step saw."""
    seen = [seen for own in comparison.drawn for seen in own.seen]
    displaced = [one for one in seen if one.step >= comparison.settings.warmup_steps]
    for patch, ages in sorted({(one.patch, one.ages) for one in displaced}):
        yield f"patch {patch} of a displaced step sees patches that are {' '.join(map(str, ages))} steps old"
