"""Models that can be profiled: those of the zoo, and tiny ones that rehearse what runs on a GPU."""

from profiles.errors import InputError
from validate.counting.specs import Architecture
from validate.counting.zoo import ARCHITECTURES, TINY


def profiled_architecture(name: str) -> Architecture:
    """The architecture of a counted model or a tiny one.

    Raises:
        InputError: there is none of this name.
    """
    known = ARCHITECTURES | TINY
    if name not in known:
        raise InputError(f"unknown model '{name}'; choose from {', '.join(known)}")
    return known[name]
