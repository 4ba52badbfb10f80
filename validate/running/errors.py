"""What goes wrong in a run beside what a user gave: a rank that is no longer there."""

from profiles.errors import DiffusimError


class LostRankError(DiffusimError):
    """A rank stopped answering.

    Args:
        rank: the one that was waited for.
        reason: what the transport said.
    """

    def __init__(self, rank: int, reason: str = "") -> None:
        super().__init__(f"rank {rank} stopped answering")
        self.rank, self.reason = rank, reason

    def __reduce__(self) -> "tuple[type[LostRankError], tuple[int, str]]":
        """Survive the way to another process."""
        return (type(self), (self.rank, self.reason))
