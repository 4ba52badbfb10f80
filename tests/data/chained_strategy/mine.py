"""A strategy whose base, order and constant stand in modules of their own."""

from dataclasses import dataclass
from typing import ClassVar

from rooms.base import Base


@dataclass(frozen=True, slots=True)
class Mine(Base):
    name: ClassVar[str] = "mine"
    summary: ClassVar[str] = "a strategy of several files"
