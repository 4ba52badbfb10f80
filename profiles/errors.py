"""The exceptions of the project.

``DiffusimError`` is the root: everything a user can mend. ``InputError`` says that something the user gave is
wrong; ``InfeasibleError`` that a point of the design space cannot exist; ``DeadlockError`` that the order of a
plan can never be carried out.
"""


class DiffusimError(Exception):
    """Anything the user can mend; its text is one line.

    Attributes:
        flags: the text with flags of the command line, where it speaks of parameters.
    """

    flags: str | None = None


class DiffusimWarning(UserWarning):
    """Something that works, but perhaps not as the user thinks."""


class InputError(DiffusimError, ValueError):
    """A file, flag or argument breaks a rule; the text names it, its value and the rule."""


def wrong(name: str, problem: str, flag: str | None = None) -> InputError:
    """The error about a parameter; the command line calls it by its flag.

    Args:
        name: of the parameter or field.
        problem: its value and the rule.
        flag: without dashes in front, where it is not the name.
    """
    error = InputError(f"{name} {problem}")
    error.flags = f"--{(flag or name).replace('_', '-')} {problem}"
    return error


class InfeasibleError(DiffusimError):
    """A strategy, degree or batch does not apply here; the text is the reason.

    Args:
        reason: the whole reason, with its numbers.
        kind: the reason without its numbers, by which a sweep counts points.
    """

    def __init__(self, reason: str, kind: str | None = None) -> None:
        super().__init__(reason)
        self.kind = kind or reason

    def __reduce__(self) -> tuple[type["InfeasibleError"], tuple[str, str]]:
        """Survive the way back from a worker process."""
        return (type(self), (str(self), self.kind))


class DeadlockError(DiffusimError):
    """The plan's order is cyclic or impossible; the text names what each device was waiting for."""
