"""Laws of a device file are read strictly, in the units of their keys, and below the peaks."""

import pytest

from profiles.errors import InputError
from profiles.machines.devices import read_device

GOOD = """\
name = "card"
source = "a data sheet"

[laws]
peaks = "a data sheet"
peak_TFLOP_per_s = 300
peak_GB_per_s = 2000

[laws.matmul]
source = "fitted"
fixed_us = 3
TFLOP_per_s = 250
GB_per_s = 1500
chain_us = 0.08
ramp = 160
data = 1.0
weight = 1.04
cache_MB = 10
cache_GB_per_s = 4000

[laws.conv]
source = "fitted"
forward = 1.1
data = 1.3
weight = 1.2

[laws.attention]
source = "fitted"
fixed_us = 5
TFLOP_per_s = 240
GB_per_s = 1000
rows = 10000
keys = 0
channels = 20
backward_TFLOP_per_s = 200
backward_rows = 5000

[laws.memory]
source = "fitted"
fixed_us = 2
pointwise_GB_per_s = 1700
copy_GB_per_s = 1600
layer_norm_GB_per_s = 1200
group_norm_GB_per_s = 800
softmax_GB_per_s = 1300
"""


@pytest.fixture
def read(tmp_path):
    """Return a device of some text, from a file of its own."""

    def device(text: str):
        path = tmp_path / "card.toml"
        path.write_text(text, encoding="utf-8")
        return read_device(path)

    return device


def test_coefficients_are_kept_in_si_units(read):
    laws = read(GOOD).laws
    assert (laws.matmul.fixed_s, laws.matmul.flop_per_s, laws.matmul.ramp) == (3e-6, 250e12, 160)
    assert laws.matmul.chain_s == pytest.approx(8e-8)
    assert laws.matmul.traffic.bytes_per_s == 1500e9
    assert (laws.matmul.traffic.cache_bytes, laws.matmul.traffic.cache_bytes_per_s) == (10e6, 4000e9)
    assert (laws.matmul.forward, laws.matmul.data, laws.matmul.weight) == (1, 1, 1.04)
    assert (laws.conv.forward, laws.conv.data, laws.conv.weight) == (1.1, 1.3, 1.2)
    assert laws.attention.traffic.cache_bytes == 0
    assert (laws.attention.rows, laws.attention.backward_flop_per_s) == (10000, 200e12)
    assert laws.memory.bytes_per_s("group_norm") == 800e9
    assert laws.attention.wide == 1


@pytest.mark.parametrize(
    ("line", "other", "rule"),
    [
        ("TFLOP_per_s = 250", "TFLOP_per_s = 301", "laws.matmul.TFLOP_per_s is 301, must be at most 300"),
        ("GB_per_s = 1500", "GB_per_s = 2001", "laws.matmul.GB_per_s is 2001, must be at most 2000"),
        ("fixed_us = 3", "fixed_us = -3", "laws.matmul.fixed_us is -3, must not be negative"),
        ("weight = 1.04", "weight = 0", "laws.matmul.weight is 0, must be positive"),
        ("cache_GB_per_s = 4000", "cache_GB_per_s = 900", "laws.matmul.cache_GB_per_s is 900, must be at least"),
        ("cache_GB_per_s = 4000\n", "", "laws.matmul.cache_GB_per_s is missing"),
        ("backward_TFLOP_per_s = 200", "backward_TFLOP_per_s = 400", "laws.attention.backward_TFLOP_per_s is 400"),
        ("copy_GB_per_s = 1600", "copy_GB_per_s = 2100", "laws.memory.copy_GB_per_s is 2100, must be at most"),
        ("forward = 1.1", "forwards = 1.1", "laws.conv.forward is missing"),
        ("ramp = 160", "ramp = 160\nwaves = 2", "unknown key laws.matmul.waves"),
        ("[laws.memory]", "[laws.norms]", "laws.memory is missing"),
    ],
)  # fmt: skip
def test_a_broken_rule_is_refused_by_key_and_value(read, line, other, rule):
    assert line in GOOD
    with pytest.raises(InputError) as error:
        read(GOOD.replace(line, other, 1))
    assert rule in str(error.value)
    assert "card.toml: " in str(error.value)
