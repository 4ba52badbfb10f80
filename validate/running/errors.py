"""What goes wrong in a run beside what a user gave: a rank that is no longer there."""

from profiles.errors import DiffusimError


class LostRankError(DiffusimError):
    """A rank stopped answering.

    Args:
        rank: the one that was waited for; -1 where that is not known.
    """

    def __init__(self, rank: int) -> None:
        super().__init__(f"rank {rank} stopped answering" if rank >= 0 else "a rank stopped answering")
        self.rank = rank

    def __reduce__(self) -> "tuple[type[LostRankError], tuple[int]]":
        """Survive the way to another process."""
        return (type(self), (self.rank,))
