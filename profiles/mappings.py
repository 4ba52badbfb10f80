"""Mappings that are values: items cannot be assigned, and they can be hashed and pickled."""

from typing import Any, TypeVar

K = TypeVar("K")
V = TypeVar("V")


class FrozenMapping(dict[K, V]):
    """A dictionary that stays as it was made."""

    __slots__ = ()

    def __setitem__(self, key: K, value: V) -> None:
        raise TypeError("a frozen mapping does not support item assignment")

    def __hash__(self) -> int:  # type: ignore[override]
        return hash(frozenset(self.items()))

    def __reduce__(self) -> tuple[Any, ...]:
        return FrozenMapping, (dict(self),)
