"""The A100's rates are what the fit gives, and predict what was published about as well as the files say."""

import subprocess
import sys
from dataclasses import replace
from functools import cache

import numpy as np
import pytest

from profiles.clusters import load_cluster
from profiles.collectives import Group, collective_time
from profiles.costs import ModelCosts
from profiles.devices import DEVICES, RATE_KEYS, load_device, read_device
from profiles.errors import InputError
from profiles.models import load_model
from validate.__main__ import main
from validate.fitting import least_squares
from validate.fitting.device_fits import Report, device_text, fit_device
from validate.fitting.equations import (
    OBSERVATION_RULES,
    OBSERVATIONS,
    RATIO,
    Equation,
    equations,
    read_observations,
    read_work,
)
from validate.fitting.rates import fit, leave_one_out, read_target
from validate.measuring.steps import by_rates

pytestmark = pytest.mark.slow

NAME = "a100-80gb-sxm"
FITTED = sorted(path.stem for path in OBSERVATIONS.glob("*.toml"))
POINT = 0.01


@cache
def report() -> Report:
    return fit_device(NAME)


def seconds(rates: list[float]) -> np.ndarray:
    return np.array([*(1 / rate for rate in rates[:4]), rates[4]])


def observed(rates: list[float]) -> list[Equation]:
    """The fitted rows, with the values that these rates give."""
    return [
        replace(row, observation=replace(row.observation, value=row.predict(seconds(rates))))
        for row in report().fitted
    ]


def test_the_committed_device_is_what_the_fit_gives():
    committed = load_device(NAME).rates
    fitted = report().fit.rates
    found = [
        committed.conv_flop_per_s / 1e12,
        committed.matmul_flop_per_s / 1e12,
        committed.attention_flop_per_s / 1e12,
        committed.memory_bytes_per_s / 1e9,
        committed.kernel_s * 1e6,
    ]
    assert found == pytest.approx([fitted[key] for key in RATE_KEYS], rel=1e-4)


def test_an_equation_predicts_what_the_cost_model_does():
    model, device = by_rates(load_model("sd21")).for_task("train"), load_device(NAME)
    text, image, unet = ModelCosts(model, device).components
    for row in report().fitted:
        seen = row.observation
        if seen.quantity == RATIO:
            frozen = text.forward_s(seen.batch).sum() + image.forward_s(seen.batch).sum()
            trained = unet.forward_s(seen.batch).sum() + unet.backward_s(seen.batch).sum()
            assert row.predict(report().fit.seconds) == pytest.approx(frozen / trained, rel=1e-4)


@pytest.mark.parametrize("batch", [8, 16, 32, 64])
def test_frozen_over_trainable_is_within_two_points_and_within_three_when_not_fitted(batch):
    number, row = next(
        (number, row)
        for number, row in enumerate(report().fitted)
        if row.observation.quantity == RATIO and row.observation.batch == batch
    )
    published = row.observation.value
    assert row.predict(report().fit.seconds) == pytest.approx(published, abs=2 * POINT)
    assert row.predict(report().without[number].seconds) == pytest.approx(published, abs=3 * POINT)


def test_latencies_of_one_gpu_are_near_what_was_published():
    errors = report().errors("fit")
    assert len(errors) == 8
    assert errors.median < 0.04
    assert errors.worst < 0.14


@pytest.mark.parametrize(
    "rates",
    [[200.0, 180.0, 140.0, 1500.0, 6.0], [80.0, 250.0, 150.0, 900.0, 0.5], [150.0, 150.0, 150.0, 1e3, 40.0]],
)
def test_a_fit_recovers_the_rates_that_its_observations_were_made_with(rates):
    found = fit(observed(rates), report().target)
    assert list(found.rates.values()) == pytest.approx(rates, rel=1e-6)
    assert found.bound == (False,) * 5
    assert all(
        list(other.rates.values()) == pytest.approx(rates, rel=1e-5)
        for other in leave_one_out(observed(rates), report().target)
    )


def test_no_rate_passes_its_peak():
    found = fit(observed([500.0, 180.0, 140.0, 3000.0, 6.0]), report().target)
    peaks = [found.rates["conv_TFLOP_per_s"], found.rates["memory_GB_per_s"]]
    assert peaks == pytest.approx([312, 2039], rel=1e-12)
    assert found.bound == (True, False, False, True, False)


def test_a_solver_that_ends_a_rounding_below_a_bound_gives_no_negative_rate(monkeypatch):
    solve = least_squares.lsq_linear

    def below(*arguments, **options):
        found = solve(*arguments, **options)
        found.x = np.where(found.active_mask != 0, found.x - 4e-15, found.x)
        return found

    monkeypatch.setattr(least_squares, "lsq_linear", below)
    target = read_target(OBSERVATIONS / "a100-80gb-sxm.toml")
    found = fit(observed([200.0, 180.0, 140.0, 1500.0, -2.0]), target)
    assert any(found.bound)
    assert all(rate >= 0 for rate in found.rates.values())


def test_ratios_alone_leave_the_scale_open():
    ratios = [row for row in report().fitted if row.observation.quantity == RATIO]
    with pytest.raises(InputError, match="no row has quantity latency_s and role fit"):
        fit(ratios, report().target)


@pytest.mark.parametrize("name", FITTED)
def test_every_committed_device_is_written_by_its_fit(name):
    rates, _, _ = (DEVICES / f"{name}.toml").read_text(encoding="utf-8").partition("\n[laws]\n")
    assert device_text(fit_device(name)) == rates


def test_two_fits_write_the_same_file():
    assert device_text(fit_device(NAME)) == device_text(report())


GOOD = ["a paper", "latency_s", "sdxl", "1024", "1024", "2", "50", "5.02", "fit", "a note"]


@pytest.mark.parametrize(
    ("column", "cell", "message"),
    [
        ("value", "0", "value is '0', must be positive"),
        ("value", "nan", "value is nan, must be finite"),
        ("value", "-1", "must not be negative"),
        ("quantity", "latency", "must be one of latency_s, frozen_over_trainable"),
        ("role", "", "must be one of fit, check"),
        ("batch", "0", "must be at least 1"),
        ("steps", "2.5", "must be an integer"),
        ("source", "", "must not be empty"),
    ],
)
def test_a_bad_observation_is_refused_by_line_and_column(tmp_path, column, cell, message):
    cells = dict(zip(OBSERVATION_RULES, GOOD, strict=True)) | {column: cell}
    path = tmp_path / "observed.csv"
    path.write_text(",".join(OBSERVATION_RULES) + "\n" + ",".join(cells.values()) + "\n")
    with pytest.raises(InputError, match=message) as refused:
        read_observations(path)
    assert f"observed.csv:2: {column} is " in str(refused.value)


@pytest.mark.parametrize(("quantity", "height"), [("latency_s", "1032"), ("frozen_over_trainable", "1024")])
def test_an_observation_whose_work_is_not_counted_is_refused(tmp_path, quantity, height):
    cells = dict(zip(OBSERVATION_RULES, GOOD, strict=True)) | {"quantity": quantity, "height": height}
    path = tmp_path / "observed.csv"
    path.write_text(",".join(OBSERVATION_RULES) + "\n" + ",".join(cells.values()) + "\n")
    with pytest.raises(
        InputError, match=rf"observed.csv:2: the work of sdxl at {height}x1024 is not counted"
    ):
        equations(read_observations(path), read_work(OBSERVATIONS / "work.csv"))


def test_work_that_stands_twice_is_refused(tmp_path):
    lines = (OBSERVATIONS / "work.csv").read_text().splitlines()
    path = tmp_path / "work.csv"
    path.write_text("\n".join([*lines, lines[-1]]))
    with pytest.raises(InputError, match="component is 'unet', stands twice for sdxl at 3840x3840"):
        read_work(path)


def test_a_target_with_an_unknown_key_is_refused(tmp_path):
    path = tmp_path / "target.toml"
    path.write_text((OBSERVATIONS / f"{NAME}.toml").read_text() + "l2_GB_per_s = 5000\n")
    with pytest.raises(InputError, match=r"unknown key peaks\.l2_GB_per_s"):
        read_target(path)


def test_the_committed_work_is_that_of_the_committed_layers():
    work = read_work(OBSERVATIONS / "work.csv")
    for name in ("sd21", "sdxl", "pixart", "sd3-medium", "flux-dev"):
        model = load_model(name)
        components = {component.name: component for component in model.components}
        for part in work[name, model.height, model.width]:
            layers = components[part.component].layers
            totals = [
                sum(layer.conv_flop for layer in layers) / 1e12,
                sum(layer.matmul_flop for layer in layers) / 1e12,
                sum(layer.attention_flop for layer in layers) / 1e12,
                sum(layer.moved_bytes for layer in layers) / 1e9,
                sum(layer.kernels for layer in layers) / 1e6,
            ]
            assert list(part.amounts) == pytest.approx(totals, rel=1e-12)
            assert {layer.backward for layer in layers} == {part.backward}


@pytest.mark.parametrize(
    ("model", "height", "width"),
    [("pixart", 8192, 8192), ("sd21", 512, 512), ("hunyuan-1.5b", 1024, 1024), ("flux-dev", 4096, 4096)],
)
def test_the_committed_work_is_what_is_counted(model, height, width):
    from validate.counting.folder import work_rows  # noqa: PLC0415  importing torch takes seconds

    committed = (OBSERVATIONS / "work.csv").read_text().splitlines()
    counted = [",".join(row) for row in work_rows(model, height, width, frozen=model == "sd21")]
    assert counted == [
        row for row in committed if row.startswith(f"{model},") and f",{height},{width}," in row
    ]


def test_the_command_prints_every_row_and_writes_a_device_file(tmp_path, capsys):
    path = tmp_path / "device.toml"
    assert main(["fit", "--device", NAME, "--output", str(path)]) == 0
    printed = capsys.readouterr().out
    assert printed.count("DiffusionPipe") == 4
    assert "ratios, fit: worst error" in printed
    assert read_device(path) == replace(load_device(NAME), own_laws=None)


def test_an_unknown_device_is_refused(capsys):
    assert main(["fit", "--device", "b300"]) == 2
    assert capsys.readouterr().err == (
        f"validate: error: no observations of device 'b300'; choose from {', '.join(FITTED)}\n"
    )


def test_fitting_needs_no_torch():
    code = "import sys; from validate.__main__ import main; main(['fit', '--device', sys.argv[1]]); "
    code += "sys.exit('torch' in sys.modules or 'diffusers' in sys.modules)"
    subprocess.run([sys.executable, "-c", code, NAME], check=True, capture_output=True)


def test_one_compute_time_explains_the_published_shares_of_p4de_by_measured_collectives():
    """DiffusionPipe, Table 2: nothing of the cluster is fitted to it. A share s means s / (1 - s) times the rest."""
    cluster, gradients = load_cluster("p4de"), 4 * 865_910_724
    shares = {1: 0.052, 2: 0.193, 4: 0.361, 8: 0.381}
    times = [
        collective_time(cluster, "all_reduce", gradients, Group(8 * nodes, nodes)).total_s for nodes in shares
    ]
    rest_s = 0.36
    found = [time / (time + rest_s) for time in times]
    assert found == pytest.approx(list(shares.values()), abs=0.035)
