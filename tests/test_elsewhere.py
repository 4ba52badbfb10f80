"""Work elsewhere: the scripts of the page on long sweeps, on MPI ranks and as jobs, give what one process gives."""

import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

import sim

ROOT = Path(__file__).parents[1]
PAGE = ROOT / "docs/pages/tutorials/long_sweeps.md"
FEW = 'strategy="ddp,zero2", batch_size=64'
SECONDS = 240


def script(word):
    """The script of the page that holds a word, which asks about less."""
    blocks = re.findall(r"```py\n(.*?)```", PAGE.read_text(encoding="utf-8"), re.DOTALL)
    (found,) = (block for block in blocks if word in block)
    return found


def carried_out(folder, command):
    """What a command prints; it finds the project where this test does."""
    paths = os.pathsep.join([str(ROOT), *filter(None, sys.path)])
    there = {**os.environ, "PYTHONPATH": paths}
    settings = {"capture_output": True, "text": True, "timeout": SECONDS}
    done = subprocess.run(command, check=False, cwd=folder, env=there, **settings)
    assert done.returncode == 0, done.stderr[-2000:]
    return done.stdout


def rows(sweep):
    """The rows of a sweep as a file holds them."""
    return json.loads(sweep.frame().to_json(orient="records"))


@pytest.mark.slow
def test_a_sweep_over_mpi_ranks_is_that_of_one_process(tmp_path):
    pytest.importorskip("mpi4py", reason="mpi4py is not installed")
    mpiexec = shutil.which("mpiexec", path=os.pathsep.join([str(Path(sys.executable).parent), os.defpath]))
    if mpiexec is None:
        pytest.skip("no mpiexec is installed")
    asked = script("MPIPoolExecutor").replace("gpus=512", f"gpus=4, {FEW}").replace("to_csv", "to_json")
    asked = asked.replace('"sd21.csv", index=False', '"sd21.json", orient="records"')
    (tmp_path / "study.py").write_text(asked)
    carried_out(tmp_path, [mpiexec, "-n", "3", sys.executable, "-m", "mpi4py.futures", "study.py"])
    alone = sim.sweep("sd21", gpus=4, strategy="ddp,zero2", batch_size=64, workers=1)
    assert json.loads((tmp_path / "sd21.json").read_text()) == rows(alone)


@pytest.mark.slow
def test_each_job_of_submitit_gives_the_best_of_its_question(tmp_path):
    pytest.importorskip("submitit", reason="submitit is not installed")
    asked = script("submitit").replace('folder="logs"', 'folder="logs", cluster="local"')
    asked = asked.replace("workers=32", f"workers=1, {FEW}").replace("(64, 128, 256, 512)", "(2, 4)")
    asked = asked.replace("cpus_per_task=32", "cpus_per_task=1")
    (tmp_path / "study.py").write_text(asked)
    said = carried_out(tmp_path, [sys.executable, "study.py"]).splitlines()
    best = [sim.sweep("sd21", gpus=n, strategy="ddp,zero2", batch_size=64, workers=1).best for n in (2, 4)]
    assert said == [str(one) for one in best]
