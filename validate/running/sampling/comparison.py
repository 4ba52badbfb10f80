"""The command ``sample``: a real run's image and messages beside those of one device and of the simulator."""

from argparse import Namespace
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Final

from torch import Tensor

from profiles.errors import DiffusimError
from sim.cli.flags import given_parameters
from sim.replay.engine import simulate
from validate.running.model import draw, one_device_image
from validate.running.rank import Job, compare, run_jobs
from validate.running.sampling.kernels import SampledPart, SamplerKernels
from validate.running.sampling.settings import HIDDEN, LAYERS, ROWS, WIDENING, Settings

SAME: Final = 1e-5
"""Largest relative difference of images that count as equal: float32, summed in another order."""
ROUNDING: Final = 1e-9
"""Largest relative difference of bytes that count as equal: the simulator adds up fractions of images."""


@dataclass(frozen=True)
class ImageComparison:
    """Results of a run's ranks beside the image and the bytes expected; errors are relative, in the Euclidean norm."""

    settings: Settings
    parts: Sequence[SampledPart]

    @cached_property
    def images(self) -> list[Tensor]:
        """The image, as each rank of a last stage has it."""
        return [part.latents for part in self.parts if part.latents is not None]

    @cached_property
    def error(self) -> float:
        """Difference from the image of one device."""
        return relative(self.images[-1], one_device_image(self.settings))

    @cached_property
    def displaced_error(self) -> float:
        """Difference from the image that the same displaced patches give in one process."""
        if self.settings.exact:
            return self.error
        return relative(self.images[-1], draw(self.settings, self.settings.warmup_steps))

    @cached_property
    def allowed(self) -> float:
        """Largest difference allowed from one device's image: stale keys and values must do better than none at all."""
        if self.settings.exact:
            return SAME
        return relative(draw(self.settings, 0), one_device_image(self.settings))

    @cached_property
    def step_bytes(self) -> list[tuple[int, float]]:
        """Bytes that all ranks sent, and those of the plan, by step; latents count with the step that they begin."""
        total = [(0, 0.0)] * self.settings.steps
        for sent in (sent for part in self.parts for sent in part.sent):
            size, planned = total[sent.step]
            total[sent.step] = size + sent.size_bytes, planned + sent.planned_bytes
        return total

    def failures(self) -> list[str]:
        """The checks that fail, in words."""
        alone = "that of the same patches in one process"
        cases = (("one device's", self.error, self.allowed), (alone, self.displaced_error, SAME))
        failures = [
            f"the image differs from {what} by {error:.2g}, at most {most:.2g} allowed"
            for what, error, most in cases
            if not error <= most
        ]
        if any(relative(image, self.images[0]) > SAME for image in self.images):
            failures.append("the ranks end with different images")
        sent, trace = sum(size for size, _ in self.step_bytes), simulate(self.settings.plan)
        simulated = WIDENING * (trace.p2p_bytes + trace.collective_bytes)
        if abs(sent - simulated) > ROUNDING * sent:
            failures.append(f"the ranks sent {sent} bytes, the simulator says {simulated:.0f}")
        wrong = Counter[str]()  # messages of another size than planned, even if the step's bytes agree
        for rank, one in ((rank, sent) for rank, part in enumerate(self.parts) for sent in part.sent):
            if abs(one.size_bytes - one.planned_bytes) > ROUNDING * one.size_bytes:
                words = f"{one.size_bytes} bytes of {one.kind} in step {one.step}"
                wrong[f"rank {rank} sent {words}, the plan says {one.planned_bytes:.0f}"] += 1
        return failures + [f"{line}, {count} times" for line, count in wrong.items()]


def relative(image: Tensor, reference: Tensor) -> float:
    """The norm of a difference over the norm of the reference."""
    return float((image - reference).norm() / reference.norm())


def job_of(settings: Settings) -> Job:
    """The job of some settings."""
    return Job(settings.strategy, settings.plan, task=settings, kernels=SamplerKernels)


def run_sampler(options: Namespace) -> None:
    """Sample as a sampler plans, and print image errors, bytes of each step, and failures."""
    given = tuple(given_parameters(options).items())
    settings = Settings(options.strategy, options.ranks, options.steps, given, options.guidance)
    job = job_of(settings)
    (outcome,) = run_jobs([job])
    comparison = ImageComparison(settings, outcome.results)
    parameters = "".join(f", {name} {value}" for name, value in settings.parameters)
    model = f"a transformer of {LAYERS} blocks, hidden size {HIDDEN}, {ROWS} x {ROWS} tokens, float32"
    print(f"{settings.strategy} on {settings.ranks} ranks, {settings.steps} steps{parameters}; {model}")
    why = "" if settings.exact else ", as patches make that never see one another"
    print(f"image: {comparison.error:.2e} off one device's, allowed {comparison.allowed:.2g}{why}")
    if not settings.exact:
        off = f"{comparison.displaced_error:.2e} off the same patches in one process"
        print(f"image: {off}, allowed {SAME:g}")
    for step, (sent, planned) in enumerate(comparison.step_bytes):
        print(f"step {step}: {sent:,} bytes sent, {planned:,.0f} planned")
    mismatch = max(pair.mismatch for pair in compare(job, outcome))
    print(f"order: engine and executor agree on all but {mismatch:.0e} of the time")
    failures = comparison.failures()
    if mismatch > ROUNDING:
        failures.append(f"the order is not that of the simulation: {mismatch:.2g} of the time")
    for failure in failures:
        print(f"fails: {failure}")
    if failures:
        raise DiffusimError(f"sample: {len(failures)} checks failed, the first: {failures[0]}")
    print("all checks hold")
