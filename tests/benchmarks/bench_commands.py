"""Time from the start of the process to the last line: `python -m pytest -n 0 tests/benchmarks/bench_commands.py`.

Targets of the design: 1.0 s for the first result of `sim run`, 5 s for a sweep of Stable Diffusion 2.1 on 64 GPUs
over every training strategy; 3 s and 6 s for sweeps over all samplers on 8 and 16 GPUs.
"""

import subprocess
import sys

import pytest

COMMANDS = {
    "strategies": 5,
    "run --model sd21 --cluster p4de --gpus 8 --strategy diffusionpipe --pipeline-degree 4 --micro-batches 8": 5,
    "sweep --model sd21 --gpus 8": 2,
    "sweep --model sd21 --gpus 64": 2,
    "run --model pixart --cluster a100-nvlink-8 --gpus 8 --strategy pipefusion --patches 8 --resolution 2048": 5,
    "sweep --model pixart --cluster l20-pcie-8 --gpus 8 --resolution 2048 --steps 20": 3,
    "sweep --model flux-dev --cluster l40-pcie-8 --gpus 16 --resolution 2048 --steps 28": 2,
}
"""Commands, and how often each is timed."""


@pytest.mark.parametrize(("command", "rounds"), COMMANDS.items(), ids=list(COMMANDS))
def test_command(benchmark, tmp_path, command, rounds):
    benchmark.pedantic(
        subprocess.run,
        args=([sys.executable, "-m", "sim", *command.split()],),
        kwargs={"check": True, "capture_output": True, "cwd": tmp_path},
        rounds=rounds,
        warmup_rounds=1,
    )
