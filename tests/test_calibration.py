"""A device is calibrated to the rates that measured times were made with, and steps are predicted from it."""

from dataclasses import replace

import pytest

from profiles.architectures.models import load_model
from profiles.costs.layers import ComponentCosts
from profiles.errors import InputError
from profiles.machines.devices import Device, read_device
from profiles.machines.laws import Rates
from profiles.measuring.fitting.calibration import calibrate, calibrated_device, device_text, rates_of
from profiles.units import GIB
from validate.__main__ import main
from validate.steps.programme import TrainingStep, by_rates

pytestmark = pytest.mark.slow

MADE = Device("made", "a test", 80 * GIB, Rates(90e12, 150e12, 120e12, 1.2e12, 5e-6))
HEADER = 'source = "a test"\nmodel = "{0}"\nheight = {1}\nwidth = {1}\ndtype = "{2}"\nmemory_GiB = 80\n'


def lines_of(model, device=MADE, noise=lambda: 1.0, batches=(1, 4)):
    """The times that a device's rates give each layer, as lines of a file."""
    lines = ["component,index,batch_size,forward_ms,backward_ms"]
    for component in by_rates(model).components:
        costs = ComponentCosts(component, device)
        for batch in batches:
            for i, pair in enumerate(zip(costs.forward_s(batch), costs.backward_s(batch), strict=True)):
                cells = [f"{1e3 * seconds * noise():.9f}" for seconds in pair]
                lines.append(",".join([component.name, str(i), str(batch), *cells]))
    return lines


def write(folder, name, lines, header=None):
    path = folder / f"{name}.csv"
    path.write_text("\n".join(lines) + "\n", encoding="utf-8")
    if header:
        path.with_suffix(".toml").write_text(header, encoding="utf-8")
    return path


# The fit


def test_the_rates_that_made_the_times_come_back(tmp_path):
    models = [load_model(name) for name in ("sd21", "pixart")]
    paths = [write(tmp_path, m.name, lines_of(m), HEADER.format(m.name, m.height, m.dtype)) for m in models]
    calibration = calibrate("made", models, paths)
    assert list(rates_of(calibration.seconds).values()) == pytest.approx([90, 150, 120, 1200, 5], rel=1e-5)
    assert max(fold.errors.worst for fold in calibration.models) < 1e-4
    device = calibrated_device(calibration)
    assert device.memory_bytes == 80 * GIB
    step = TrainingStep("sd21", 8, 2)
    made, calibrated = (step.predict_s(by_rates(models[0]), d, "bfloat16") for d in (MADE, device))
    assert calibrated == pytest.approx(made, rel=1e-4)


def test_a_model_that_was_left_out_is_judged_by_the_others(tmp_path):
    """One model twice as fast: fitted without it all its times are foretold too long, and the other's too short."""
    slow, fast = (load_model(name) for name in ("sd21", "pixart"))
    twice = replace(MADE, rates=Rates(180e12, 300e12, 240e12, 2.4e12, 2.5e-6))
    paths = [
        write(tmp_path, "slow", lines_of(slow), HEADER.format("sd21", 512, "float16")),
        write(tmp_path, "fast", lines_of(fast, twice), HEADER.format("pixart", 1024, "float16")),
    ]
    calibration = calibrate("made", [slow, fast], paths)
    without = {fold.name: fold for fold in calibration.models}
    assert without["pixart"].errors.together == pytest.approx(1, abs=1e-3)
    assert without["sd21"].errors.together == pytest.approx(-0.5, abs=1e-3)


def test_work_that_only_one_shape_does_gets_the_stand_in_of_a_device_file(tmp_path):
    """Of PixArt's backbone one layer alone, the patches, convolves: without it convolutions run as products do."""
    model = load_model("pixart")
    backbone = replace(model, components=(replace(model.components[2], inputs=()),))
    calibration = calibrate("made", [backbone], [write(tmp_path, "times", lines_of(backbone))])
    (fold,) = [f for f in calibration.shapes if f.left_out["conv"].iloc[0] > 0]
    assert fold.seconds[0] == fold.seconds[1] > 0


def test_an_update_of_the_weights_sets_the_memory_rate_where_layers_do_not(tmp_path):
    """30 bytes per parameter in mixed precision, of a billion parameters, in 20 ms: 1500 GB/s."""
    model = load_model("sd21")
    still = [
        replace(component, layers=tuple(replace(layer, moved_bytes=0.0) for layer in component.layers))
        for component in model.components
    ]
    model = replace(model, components=tuple(still))
    update = '[[optimizer]]\ncomponent = "unet"\nparameters = 1000000000\nrecipe = "mixed"\nms = 20\n'
    path = write(tmp_path, "times", lines_of(model), HEADER.format("sd21", 512, "float16") + update)
    calibration = calibrate("made", [model], [path])
    assert rates_of(calibration.seconds)["memory_GB_per_s"] == pytest.approx(1500, rel=1e-5)
    assert calibration.samples["seconds"][calibration.samples["quantity"] == "optimizer"].tolist() == [0.02]
    judged = {quantity for fold in calibration.shapes for quantity in fold.left_out["quantity"]}
    assert judged == {"forward", "backward"}
    header = path.with_suffix(".toml")
    header.write_text(header.read_text(encoding="utf-8").replace("mixed", "gold"), encoding="utf-8")
    with pytest.raises(InputError, match=r"optimizer\[0\].recipe is 'gold', must be one of mixed"):
        calibrate("made", [model], [path])


# The device file


def test_the_device_file_is_read_back_and_says_what_was_not_measured(tmp_path):
    model = load_model("sd21")
    encoder = replace(model, components=model.components[:1])  # a text encoder has no convolutions
    calibration = calibrate("made", [encoder], [write(tmp_path, "times", lines_of(encoder))])
    path = tmp_path / "made.toml"
    path.write_text(device_text(calibration), encoding="utf-8")
    device = read_device(path)
    assert device.rates is not None
    assert device.memory_bytes is None
    assert device.rates.conv_flop_per_s == pytest.approx(device.rates.matmul_flop_per_s)
    assert 'conv_TFLOP_per_s = "estimate: as matmul' in path.read_text(encoding="utf-8")
    assert "left out, each of 3 shapes of layers: " in device.source


def test_what_is_no_profile_of_the_model_is_one_line(tmp_path, capsys):
    lines, output = lines_of(load_model("sd21")), tmp_path / "box.toml"
    for rows, header, message in (
        (lines, HEADER.format("sdxl", 1024, "float16"), "is a profile of sdxl, not of sd21"),
        (lines, HEADER.format("sd21", 256, "float16"), "was measured at 256x256, but the work"),
        ([*lines, "unet,99,1,1,1"], None, "index is '99', must be below 46, the layers of unet"),
        ([*lines, lines[-1]], None, "stands twice for layer 20 of vae_decoder"),
    ):
        folder = tmp_path / str(len(list(tmp_path.iterdir())))
        folder.mkdir()
        times = write(folder, "times", rows, header)
        assert main([*f"calibrate --model sd21 --device box --times {times} --output {output}".split()]) == 2
        error = capsys.readouterr().err
        assert error.startswith(f"validate: error: {folder}/times")
        assert message in error
        assert error.count("\n") == 1
        assert not output.exists()


def test_a_few_layers_are_too_few(tmp_path):
    model = by_rates(load_model("uvit-h"))
    (whole,) = model.components
    one = replace(model, components=(replace(whole, layers=whole.layers[:2], skips=(), exchanges=()),))
    path = write(tmp_path, "times", lines_of(one, batches=(1,)))
    with pytest.raises(InputError, match="4 times of layers are too few for 5 rates"):
        calibrate("made", [one], [path])
