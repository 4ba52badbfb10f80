"""Units: human ones stand in the keys of files, SI (seconds, bytes, FLOP) is used everywhere in memory."""

from typing import Final

MB: Final = 1e6
GB: Final = 1e9
GIB: Final = 2.0**30
MIB: Final = 2.0**20
MILLISECOND: Final = 1e-3
MICROSECOND: Final = 1e-6
GFLOP: Final = 1e9
TFLOP: Final = 1e12
