"""Checks: functions that assert what must hold for a replayed point, collected where they are written."""


class Checks(list):
    """The checks of one file; as a decorator it takes one more."""

    def __call__(self, function):
        self.append(function)
        return function


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
