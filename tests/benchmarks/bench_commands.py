"""Time from the start of the process to the last line: `python -m pytest -n 0 tests/benchmarks/bench_commands.py`.

Targets of the design: 1.0 s for the first result of `sim run`, 5 s for a sweep of Stable Diffusion 2.1 on 64 GPUs
over every training strategy; 3 s and 6 s for sweeps over all samplers on 8 and 16 GPUs.
"""

import subprocess
import sys

COMMAND = [sys.executable, "-m", "sim"]


def call(benchmark, folder, arguments, rounds):
    benchmark.pedantic(
        subprocess.run,
        args=([*COMMAND, *arguments.split()],),
        kwargs={"check": True, "capture_output": True, "cwd": folder},
        rounds=rounds,
        warmup_rounds=1,
    )


def test_listing_the_strategies(benchmark, tmp_path):
    call(benchmark, tmp_path, "strategies", 5)


def test_first_result_of_a_run_with_filled_bubbles(benchmark, tmp_path):
    point = "--strategy diffusionpipe --pipeline-degree 4 --micro-batches 8 --batch-size 256"
    call(benchmark, tmp_path, f"run --model sd21 --cluster p4de --gpus 8 {point}", 5)


def test_sweep_on_eight_gpus(benchmark, tmp_path):
    call(benchmark, tmp_path, "sweep --model sd21 --gpus 8", 2)


def test_sweep_on_sixty_four_gpus(benchmark, tmp_path):
    call(benchmark, tmp_path, "sweep --model sd21 --gpus 64", 2)


def test_first_result_of_a_run_that_draws(benchmark, tmp_path):
    point = "--strategy pipefusion --patches 8 --warmup-steps 2 --steps 20 --resolution 2048"
    call(benchmark, tmp_path, f"run --model pixart --cluster a100-nvlink-8 --gpus 8 {point}", 5)


def test_sweep_over_samplers_on_eight_cards(benchmark, tmp_path):
    drawn = "--resolution 2048 --steps 20"
    call(benchmark, tmp_path, f"sweep --model pixart --cluster l20-pcie-8 --gpus 8 {drawn}", 3)


def test_sweep_over_samplers_on_two_nodes_of_the_largest_model(benchmark, tmp_path):
    drawn = "--resolution 2048 --steps 28"
    call(benchmark, tmp_path, f"sweep --model flux-dev --cluster l40-pcie-8 --gpus 16 {drawn}", 2)
