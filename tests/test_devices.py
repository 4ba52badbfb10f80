"""Device files are read strictly and in the units of their keys."""

import pytest
from making import DEVICE

from profiles.errors import InputError
from profiles.machines.devices import device_names, load_device, read_device


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
    assert device.rates.conv_flop_per_s == 100e12
    assert device.rates.matmul_flop_per_s == 150e12
    assert device.rates.attention_flop_per_s == 120e12
    assert device.rates.memory_bytes_per_s == 800e9
    assert device.rates.kernel_s == pytest.approx(5e-6)


@pytest.mark.parametrize(
    ("key", "value", "rule"),
    [
        ("memory_GiB = 24", "memory_GiB = -24", "memory_GiB is -24, must not be negative"),
        ("memory_GiB = 24", "memory_GiB = 0", "memory_GiB is 0, must be positive"),
        ("memory_GiB = 24", "memory_GB = 24", "unknown key memory_GB"),
        ('source = "a data sheet"\n', "", "source is missing"),
        ('name = "my-gpu"', 'nmae = "my-gpu"', "name is missing"),
        ("conv_TFLOP_per_s = 100", "conv_TFLOP_per_s = 0", "rates.conv_TFLOP_per_s is 0, must be positive"),
        ("conv_TFLOP_per_s = 100", "conv_TFLOP_per_s = nan", "rates.conv_TFLOP_per_s is nan, must be finite"),
        (
            "conv_TFLOP_per_s = 100",
            "conv_TFLOP_per_s = true",
            "rates.conv_TFLOP_per_s is True, must be a number",
        ),
        ("kernel_us = 5", "kernel_ms = 5", "rates.kernel_us is missing"),
        ("kernel_us = 5", "kernel_us = 5\nl2_GB_per_s = 1", "unknown key rates.l2_GB_per_s"),
        ('kernel_us = "fitted"\n', "", "rates.sources.kernel_us is missing"),
        ("[rates.sources]", "[rates.origins]", "rates.sources is missing"),
    ],
)
def test_a_broken_rule_is_refused_by_key_and_value(refused, key, value, rule):
    assert key in DEVICE
    assert refused(DEVICE.replace(key, value)).startswith(rule)


@pytest.mark.parametrize("name", device_names())
def test_every_shipped_device_reads_and_has_its_files_name(name):
    assert load_device(name).name == name
