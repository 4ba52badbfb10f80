"""Device files are read strictly and in the units of their keys."""

import pytest
from making import DEVICE

from profiles.errors import InputError
from profiles.machines.devices import device_names, load_device, read_device
from profiles.machines.laws import Rates


@pytest.fixture
def refused(tmp_path):
    """Return the message with which a device file of some text is refused."""

    def message(text: str) -> str:
        path = tmp_path / "card.toml"
        path.write_text(text, encoding="utf-8")
        with pytest.raises(InputError) as error:
            read_device(path)
        return str(error.value).removeprefix(f"{path}: ")

    return message


def test_rates_are_kept_in_si_units(tmp_path):
    path = tmp_path / "card.toml"
    path.write_text(DEVICE, encoding="utf-8")
    device = read_device(path)
    assert (device.name, device.memory_bytes) == ("my-gpu", 24 * 2**30)
    assert device.rates == Rates(100e12, 150e12, 120e12, 800e9, device.rates.kernel_s)
    assert device.rates.kernel_s == pytest.approx(5e-6)


def test_every_shipped_device_reads_and_has_its_files_name():
    assert [load_device(name).name for name in device_names()] == device_names()


LAWS = """\
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


def test_coefficients_of_laws_are_kept_in_si_units(tmp_path):
    path = tmp_path / "card.toml"
    path.write_text(LAWS, encoding="utf-8")
    laws = read_device(path).laws
    assert (laws.matmul.fixed_s, laws.matmul.flop_per_s, laws.matmul.ramp) == (3e-6, 250e12, 160)
    assert laws.matmul.chain_s == pytest.approx(8e-8)
    assert laws.matmul.bytes_per_s == 1500e9
    assert (laws.matmul.cache_bytes, laws.matmul.cache_bytes_per_s) == (10e6, 4000e9)
    assert (laws.matmul.forward, laws.matmul.data, laws.matmul.weight) == (1, 1, 1.04)
    assert (laws.conv.forward, laws.conv.data, laws.conv.weight) == (1.1, 1.3, 1.2)
    assert laws.attention.cache_bytes == 0
    assert (laws.attention.rows, laws.attention.backward_flop_per_s) == (10000, 200e12)
    assert laws.memory.bytes_per_s("group_norm") == 800e9
    assert laws.attention.wide == 1


@pytest.mark.parametrize(
    ("key", "value", "rule"),
    [
        ("memory_GiB = 24", "memory_GiB = 0", "memory_GiB is 0, must be positive"),
        ('name = "my-gpu"', 'nmae = "my-gpu"', "name is missing"),
        ("conv_TFLOP_per_s = 100", "conv_TFLOP_per_s = 0", "rates.conv_TFLOP_per_s is 0, must be positive"),
        ("kernel_us = 5", "kernel_us = 5\nl2_GB_per_s = 1", "unknown key rates.l2_GB_per_s"),
        ('kernel_us = "fitted"\n', "", "rates.sources.kernel_us is missing"),
        ("TFLOP_per_s = 250", "TFLOP_per_s = 301", "laws.matmul.TFLOP_per_s is 301, must be at most 300"),
        ("weight = 1.04", "weight = 0", "laws.matmul.weight is 0, must be positive"),
        ("backward_TFLOP_per_s = 200", "backward_TFLOP_per_s = 400", "laws.attention.backward_TFLOP_per_s is 400"),
        ("ramp = 160", "ramp = 160\nwaves = 2", "unknown key laws.matmul.waves"),
        ("rows = 10000\n", "", "laws.attention.rows is missing"),
        ("forward = 1.1\n", "", "laws.conv.forward is missing"),
        ("cache_MB = 10\n", "", "laws.matmul.cache_MB is missing"),
        ("cache_GB_per_s = 4000\n", "", "laws.matmul.cache_GB_per_s is missing"),
    ],
)  # fmt: skip
def test_a_broken_rule_is_refused_by_key_and_value(refused, key, value, rule):
    (text,) = (text for text in (DEVICE, LAWS) if key in text)
    assert refused(text.replace(key, value, 1)).startswith(rule)
