"""Training on samples of mixed shapes: what it costs that ranks wait for the slowest, and what evens them out.

Data-parallel ranks exchange gradients or weights with all others, so that an iteration in which they hold samples of
several shapes takes as long as one in which all hold the slowest of these: that one is simulated.
"""

from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, replace
from math import fsum
from pathlib import Path
from typing import Any, Final, TypeVar

import numpy as np

import profiles
from profiles.costs.resolutions import in_words, sides_of
from profiles.errors import InfeasibleError, InputError
from profiles.files import Table
from profiles.names import file_of
from sim.outcomes.results import Result

T = TypeVar("T")

SHAPES: Final = Path(profiles.__file__).parent / "shapes"
"""Mixtures that are shipped."""
DRAWS: Final = 100
"""Iterations of packed samples that are drawn."""
PACKED_SAMPLES: Final = 200_000
"""Samples that are packed in all, so that large batches are drawn less often."""


@dataclass(frozen=True, slots=True)
class Trained:
    """A shape of samples: its share of the dataset's samples, and how many a rank takes at once."""

    share: float
    resolution: str
    frames: int = 1
    batch: int = 1

    @property
    def words(self) -> str:
        """Its size, and its frames where it is a video."""
        return self.resolution if self.frames == 1 else f"{self.resolution}, {self.frames} frames"


Simulate = Callable[[Trained, int], Result]
"""Returns the iteration in which every team of so many ranks trains on a batch of a shape."""


@dataclass(frozen=True, slots=True)
class Way:
    """A way of giving samples to ranks, as means of an iteration; ``waiting`` is the share of the ranks' time."""

    name: str
    iteration_s: float
    samples: float
    waiting: float
    does: str

    @property
    def samples_per_s(self) -> float:
        """Samples a second."""
        return self.samples / self.iteration_s


@dataclass(frozen=True, slots=True)
class Balance:
    """The iteration of each shape alone, and the ways of mixing shapes, the first of which draws them at random."""

    ranks: int
    shapes: tuple[Trained, ...]
    results: tuple[Result, ...]
    ways: tuple[Way, ...]

    def to_json(self) -> dict[str, Any]:
        """Return the answer under public keys."""
        shapes = [
            asdict(shape) | {"iteration_s": result.iteration_s, "peak_memory_bytes": result.peak_memory_bytes}
            for shape, result in zip(self.shapes, self.results, strict=True)
        ]
        ways = [asdict(way) | {"samples_per_s": way.samples_per_s} for way in self.ways]
        return {"ranks": self.ranks, "shapes": shapes, "ways": ways}


def read_mixture(name: str, folder: Path, key: str, read: Callable[[Table], T]) -> list[T]:
    """Return the entries of a mixture, a shipped one or a file, whose shares must add up to 1."""
    table, total, entries = Table.read(file_of("mix", name, folder)), 0.0, list[T]()
    for word in ("title", "source"):
        table.text(word, "-")
    for entry in table.tables(key):
        total += entry.positive("share", maximum=1)
        try:
            entries.append(read(entry))
        except InputError as error:
            words = str(error)
            raise InputError(words if words.startswith(entry.where) else f"{entry.where}: {words}") from None
        entry.finish()
    table.finish()
    if abs(total - 1) > 1e-6:
        raise InputError(f"{table.where}: share: those of all [[{key}]] add up to {total:g}, must be 1")
    return entries


def read_shapes(name: str) -> tuple[Trained, ...]:
    """Return the shapes of a mixture, a shipped one or a file."""
    return tuple(read_mixture(name, SHAPES, "shape", _shape_of))


def _shape_of(table: Table) -> Trained:
    """Return a shape of a mixture."""
    text = isinstance(table.values().get("resolution"), str)
    size = table.text("resolution") if text else str(table.integer("resolution", minimum=1))
    frames, batch = (table.integer(key, 1, minimum=1) for key in ("frames", "batch"))
    return Trained(table.positive("share"), in_words(*sides_of(size)), frames, batch)


def find_balance(
    shapes: tuple[Trained, ...], ranks: int, teams: Sequence[int], simulate: Simulate
) -> Balance:
    """Return what a mixture of shapes costs, and what evening it out brings; refuse a shape that does not fit.

    ``teams`` are the numbers of ranks that can divide one sample's tokens among them, besides 1.
    """
    results = tuple(simulate(shape, 1) for shape in shapes)
    for shape, result in zip(shapes, results, strict=True):
        if result.missing_memory:
            less = "" if result.options.get("checkpointing", "none") != "none" else "; give `checkpointing`"
            words = f"{shape.words} in batches of {shape.batch} does not fit: {result.missing_memory}"
            raise InfeasibleError(words + less)
    seconds = [result.iteration_s for result in results]
    drawn = _in_batches("random", shapes, seconds, ranks, "each rank draws a batch of any shape")
    together_s, samples = drawn.iteration_s * (1 - drawn.waiting), round(drawn.samples)
    together = Way("one shape", together_s, drawn.samples, 0.0, "all ranks draw the same shape")
    largest = [_largest(*pair, max(seconds), simulate) for pair in zip(shapes, seconds, strict=True)]
    larger, own_s = zip(*largest, strict=True)
    does = f"fast shapes in larger batches, of {', '.join(str(shape.batch) for shape in larger)}"
    ways = [drawn, together, _in_batches("larger batches", larger, own_s, ranks, does)]
    by_team = [{1: batch_s / shape.batch} for batch_s, shape in zip(seconds, shapes, strict=True)]
    ways.append(_packed(by_team, shapes, ranks, samples))
    if teams:
        for team, pace, shape in (
            (team, *pair) for pair in zip(by_team, shapes, strict=True) for team in teams
        ):
            with suppress(InfeasibleError):  # as of heads that it does not divide
                pace[team] = simulate(replace(shape, batch=1), team).iteration_s
        ways.append(_packed(by_team, shapes, ranks, samples))
    return Balance(ranks, shapes, results, tuple(ways))


def _in_batches(name: str, shapes: Sequence[Trained], seconds: Sequence[float], ranks: int, does: str) -> Way:
    """Return the way in which each rank draws batches of one shape, so that samples keep their shares."""
    own = [shape.share / shape.batch for shape in shapes]
    shares = [share / fsum(own) for share in own]
    iteration_s, mean_s = slowest_s(seconds, shares, ranks), float(np.dot(shares, seconds))
    return Way(name, iteration_s, ranks / fsum(own), 1 - mean_s / iteration_s, does)


def slowest_s(seconds: Sequence[float], shares: Sequence[float], ranks: int) -> float:
    """Return the mean of the largest of some ranks' seconds, each drawn by its share."""
    order = np.argsort(seconds)
    below = np.append(0.0, np.minimum(np.cumsum(np.asarray(shares)[order]), 1.0))
    below[-1] = 1.0
    return float(np.dot(np.asarray(seconds)[order], np.diff(below**ranks)))


def _largest(shape: Trained, own_s: float, most_s: float, simulate: Simulate) -> tuple[Trained, float]:
    """Return a shape in about the largest batch that fits and takes so long at most, and its seconds."""
    low, high = shape.batch, int(2 * shape.batch * most_s / own_s) + 1
    while high - low > max(1, low // 16):
        middle = replace(shape, batch=(low + high) // 2)
        tried = simulate(middle, 1)
        if tried.missing_memory or tried.iteration_s > most_s:
            high = middle.batch
        else:
            low, own_s = middle.batch, tried.iteration_s
    return replace(shape, batch=low), own_s


def _packed(by_team: Sequence[dict[int, float]], shapes: Sequence[Trained], ranks: int, samples: int) -> Way:
    """Return the fastest way of packing samples onto ranks, slow ones divided where that helps.

    ``by_team`` has, for each shape, the seconds of a sample by the number of ranks that divide it.
    """
    shares, ways = [shape.share for shape in shapes], dict[tuple[int, ...], list[float]]()
    for most_s in {each_s for pace in by_team for each_s in pace.values()}:
        if all(min(pace.values()) <= most_s for pace in by_team):
            teams = tuple(min(team for team, each_s in pace.items() if each_s <= most_s) for pace in by_team)
            ways[teams] = [pace[team] for pace, team in zip(by_team, teams, strict=True)]
    packed = {teams: packed_s(seconds, teams, shares, ranks, samples) for teams, seconds in ways.items()}
    teams = min(packed, key=lambda one: (packed[one], one))
    busy_s = float(np.dot(np.multiply(ways[teams], teams), shares)) * samples / ranks
    name, does = "packed", "each rank gets samples that take as long together"
    if max(teams) > 1:
        name, does = "sequence parallel", f"packed, slow samples divided among up to {max(teams)} ranks"
    return Way(name, packed[teams], samples, 1 - busy_s / packed[teams], does)


def packed_s(
    seconds: Sequence[float], teams: Sequence[int], shares: Sequence[float], ranks: int, samples: int
) -> float:
    """Return the mean seconds of the fullest rank where samples are packed, the slowest first, onto the emptiest team.

    Samples are drawn by their shares, from one seed; what their mean is off by is taken out as a control variate.
    ``seconds`` are those of a sample on its team. With teams of one rank this is Graham's longest processing time first
    (1969); larger teams are neighbours.
    """
    draw, order, chances = (
        np.random.default_rng(0),
        np.argsort(seconds)[::-1],
        np.asarray(shares) / fsum(shares),
    )
    work_s = np.multiply(seconds, teams) / ranks
    drawn = list[tuple[float, float]]()
    for _ in range(max(1, min(DRAWS, PACKED_SAMPLES // samples))):
        loads, counts = np.zeros(ranks), draw.multinomial(samples, chances)
        for kind in np.repeat(order, counts[order]).tolist():
            by_team = loads.reshape(-1, teams[kind])
            full = by_team.max(axis=1)
            by_team[full.argmin()] = full.min() + seconds[kind]
        drawn.append((float(loads.max()), float(counts @ work_s)))
    most_s, mean_s = np.asarray(drawn).T
    spread = mean_s.var()
    slope = np.cov(most_s, mean_s, bias=True)[0, 1] / spread if spread else 0.0
    return float(most_s.mean() + slope * (samples * (work_s @ chances) - mean_s.mean()))
