"""The desk: where a sweep asks; what the store knows is not asked of workers, and what they answer is kept in it."""

from collections.abc import Collection, Iterable, Iterator, Sequence
from itertools import groupby, islice
from typing import TYPE_CHECKING

from profiles.errors import InfeasibleError
from sim.explore.answers import Answer, Answers, Bounds, Outcome, Task
from sim.explore.points import Asked
from sim.explore.working.workers import Workers
from sim.outcomes.unrefined import unrefined

if TYPE_CHECKING:
    from sim.explore.keeping.store import Store


class Desk:
    """Answers to what a sweep asks.

    Attributes:
        workers: those who find out.
        store: knows what was found before; None where nothing is kept.
    """

    def __init__(self, workers: Workers[Task], store: "Store | None") -> None:
        self.workers, self.store = workers, store
        self._answers: dict[Asked, Answer] = {}
        self._asked: set[Asked] = set()

    def bounds(
        self, groups: Iterable[Collection[Asked]], *, rough: bool
    ) -> Iterator[tuple[Asked, Bounds | InfeasibleError]]:
        """The bounds of points in groups that have much in common, as they become known.

        Points that workers still simulate, asked about ahead of need, are taken note of on the way.

        Args:
            groups: the points.
            rough: rough bounds are enough.
        """
        tasks: list[Task] = []
        for group in groups:
            known = {} if self.store is None else self.store.bounds(group, rough=rough)
            yield from known.items()
            if left := tuple(asked for asked in group if asked not in known):
                tasks.append(Task(left, rough=rough))
        for task, answers in self.workers.run(tasks):
            if task.limits_s is not None:
                self._take(task, answers)
                continue
            self._keep(task, answers)
            for asked, answer in zip(task.points, answers, strict=True):
                assert not isinstance(answer, Answer)
                yield asked, answer

    def outcomes(self, asked: Sequence[tuple[Asked, float]], count: int) -> Iterator[Outcome]:
        """The outcomes of the first ``count`` of some points, in their order; the others may be asked about next.

        Args:
            asked: points with the seconds from which on each does not matter, which no later call raises.
            count: so many outcomes are wanted now.
        """
        ahead = groupby((pair for pair in asked if not self._known(*pair)), lambda pair: _alike(pair[0]))
        for point, limit_s in asked[:count]:
            self._ask(ahead)
            while point not in self._answers:
                for task, answers in self.workers.finished():
                    self._take(task, answers)
                self._ask(ahead)
            yield self._answers[point].within(limit_s)

    def _known(self, point: Asked, limit_s: float) -> bool:
        """Whether a point is answered, or asked about; what the store has is an answer from now on."""
        if point in self._asked:
            return True
        answer = None if self.store is None else self.store.answer(point)
        if answer is not None and answer.holds_to_s >= limit_s:
            self._answers[point] = answer
            self._asked.add(point)
        return point in self._asked

    def _ask(self, ahead: Iterator[tuple[Asked, Iterator[tuple[Asked, float]]]]) -> None:
        """Keep the workers busy with what comes first; neighbours that replay one plan first make one task."""
        workers = self.workers
        while workers.open_points < workers.window:
            chunk = [pair for _, pairs in islice(ahead, workers.chunk) for pair in pairs]
            if not chunk:
                return
            points, limits_s = zip(*chunk, strict=True)
            self._asked.update(points)
            workers.submit(Task(points, limits_s))

    def _take(self, task: Task, answers: Answers) -> None:
        self._keep(task, answers)
        for point, answer in zip(task.points, answers, strict=True):
            assert isinstance(answer, Answer)
            self._answers[point] = answer

    def _keep(self, task: Task, answers: Answers) -> None:
        if self.store is not None:
            self.store.keep(task.points, answers, rough=task.rough)


def _alike(asked: Asked) -> Asked:
    """A point as it is before any refinement."""
    return asked._replace(strategy=unrefined(asked.strategy))
