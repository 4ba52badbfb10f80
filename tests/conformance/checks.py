"""Checks: functions that assert what must hold for a replayed point, collected where they are written."""

from functools import cached_property


class Checks(list):
    """The checks of one file; as a decorator it takes one more."""

    def __call__(self, function):
        self.append(function)
        return function


class Replayed:
    """A plan and its trace."""

    @cached_property
    def ops(self):
        """Every op with its device, index, start and end."""
        return [
            (device, index, op, start, end)
            for device, ops in enumerate(self.plan.ops)
            for index, (op, (start, end)) in enumerate(zip(ops, self.trace.busy(device), strict=True))
        ]


def hold(checks, subjects):
    """Raise what every broken check says of the first of the subjects that breaks it, all in one group."""
    broken = {}
    for check in checks:
        for subject in subjects:
            try:
                check(subject)
            except Exception as error:
                error.add_note(f"{check.__name__}: {subject!r}")
                broken[check.__name__] = error
                break
    if broken:
        raise ExceptionGroup(", ".join(broken), list(broken.values()))
