"""The desk: where a sweep asks; workers are asked only for what the store does not know, and it keeps their answers."""

from collections.abc import Collection, Iterable, Iterator
from itertools import groupby, islice
from typing import TYPE_CHECKING

from profiles.errors import InfeasibleError
from sim.explore.answers import Answer, Answers, Bounds, Outcome, Task
from sim.explore.points import Asked
from sim.explore.working.workers import Workers

if TYPE_CHECKING:
    from sim.explore.keeping.store import Store


Limited = tuple[Asked, float]
"""A point, and the seconds from which on it does not matter."""


class Desk:
    """Answers to what a sweep asks.

    Attributes:
        workers: they simulate what is not known.
        store: knows what was found before; None where nothing is kept.
    """

    def __init__(self, workers: Workers[Task], store: "Store | None") -> None:
        self.workers, self.store = workers, store
        self._answers: dict[Asked, Answer] = {}
        self._bounds: dict[tuple[Asked, bool], Bounds | InfeasibleError] = {}
        self._asked: set[Asked] = set()

    def bounds(
        self, groups: Iterable[Collection[Asked]], *, rough: bool, relief: tuple[str, ...] = ()
    ) -> Iterator[tuple[Asked, Bounds | InfeasibleError]]:
        """The bounds of points in groups that have much in common, as they become known.

        Points that workers still simulate, asked about ahead of need, are taken note of on the way.

        Args:
            groups: the points.
            rough: rough bounds are enough.
            relief: what is asked next of those that lack memory; whoever bounds them bounds those with it right away.
        """
        tasks: list[Task] = []
        for group in groups:
            kept = [asked for asked in group if (asked, rough) in self._bounds]
            known = {asked: self._bounds.pop((asked, rough)) for asked in kept}
            if self.store is not None:
                known |= self.store.bounds([asked for asked in group if asked not in known], rough=rough)
            yield from known.items()
            if left := tuple(asked for asked in group if asked not in known):
                tasks.append(Task(left, rough=rough, relief=relief))
        for task in tasks:
            self.workers.submit(task)
        still_open = len(tasks)
        while still_open:
            for task, answers in self.workers.finished():
                self._take(task, answers)
                if task.limits_s is None:
                    still_open -= 1
                    yield from ((asked, self._bounds.pop((asked, task.rough))) for asked in task.points)

    def ask(self, requests: Iterable[Limited]) -> None:
        """Have points replayed, each up to a limit that no later request raises."""
        for task in self._tasks(requests):
            self.workers.submit(task)

    def outcome(self, request: Limited, ahead: Iterable[Limited]) -> Outcome:
        """How a point came out that was asked about.

        Args:
            request: as it was asked about.
            ahead: what may be asked for next; asked about where workers would be idle meanwhile.
        """
        (point, limit_s), workers, tasks = request, self.workers, self._tasks(ahead)
        while point not in self._answers:
            while workers.open_tasks < workers.window and (task := next(tasks, None)) is not None:
                workers.submit(task)
            for task, answers in workers.finished():
                self._take(task, answers)
        return self._answers[point].within(limit_s)

    def _known(self, point: Asked, limit_s: float) -> bool:
        """Whether a point is answered, or asked about; what the store has is an answer from now on."""
        if point in self._asked:
            return True
        answer = None if self.store is None else self.store.answer(point)
        if answer is not None and answer.holds_to_s >= limit_s:
            self._answers[point] = answer
            self._asked.add(point)
        return point in self._asked

    def _tasks(self, requests: Iterable[Limited]) -> Iterator[Task]:
        """What is not known yet, as tasks; neighbours that replay one plan first make one."""
        groups = groupby((pair for pair in requests if not self._known(*pair)), lambda pair: alike(pair[0]))
        while chunk := [pair for _, pairs in islice(groups, self.workers.chunk) for pair in pairs]:
            points, limits_s = zip(*chunk, strict=True)
            self._asked.update(points)
            yield Task(points, limits_s)

    def _take(self, task: Task, answers: Answers) -> None:
        told = dict(task.told(answers))
        if self.store is not None:
            self.store.keep(tuple(told), tuple(told.values()), rough=task.rough)
        for point, answer in told.items():
            if isinstance(answer, Answer):
                self._answers[point] = answer
            else:
                self._bounds[point, task.rough] = answer


def alike(asked: Asked) -> Asked:
    """The point that stands for all with the same plan before any refinement."""
    return asked
