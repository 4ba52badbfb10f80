"""Own ranks: how many processes this machine may be asked to start without ``torchrun``."""

from typing import Final

from profiles.errors import InputError

MOST: Final = 32
"""Each takes some 300 MB once it has imported torch: hundreds of them would halt the machine."""


def check_own_ranks(num_ranks: int) -> None:
    """Refuse more ranks than one machine should start.

    Raises:
        InputError: there are more.
    """
    if num_ranks > MOST:
        raise InputError(f"{num_ranks} ranks on this machine, must be at most {MOST}; torchrun starts more")
