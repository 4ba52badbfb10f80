"""What the documents show is tested: their commands run, their Python runs, their strategies are the tested ones."""

import json
import os
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

from profiles.errors import InputError
from profiles.machines.clusters import read_cluster
from sim.cli.main import main
from validate.__main__ import main as check
from validate.__main__ import make_parser

ROOT = Path(__file__).parents[1]
PAGES = {
    str(path.relative_to(ROOT)): path
    for path in [ROOT / "README.md", *sorted(ROOT.glob("docs/pages/**/*.md"))]
}
TUTORIAL = "docs/pages/tutorials/write_a_strategy.md"


def blocks(page, language):
    """The fenced blocks of a page in one language."""
    return re.findall(rf"```{language}\n(.*?)```", PAGES[page].read_text(encoding="utf-8"), re.DOTALL)


def commands(page):
    """The commands of a page, as they would be typed."""
    return [line for block in blocks(page, "sh") for line in block.splitlines() if line]


def words_and_target(command):
    """The words after ``sim``, and the file that the output goes to, if any."""
    words = shlex.split(command)
    if ">" in words:
        return words[1 : words.index(">")], words[-1]
    return words[1:], None


ASKING = [page for page in PAGES if any(command.startswith("sim ") for command in commands(page))]
MEASURING = re.compile(r"(-m validate|sim measure) ")
"""What measures needs GPUs, or files of the reader's; ``python -m validate`` knows the commands of ``sim measure``."""
CHECKING = [command for page in PAGES for command in commands(page) if MEASURING.search(command)]
IN_WORDS = sorted(
    {
        command
        for path in PAGES.values()
        for command in re.findall(r"`(python -m validate [^`]+)`", path.read_text(encoding="utf-8"))
    }
)
CHEAP = ("closed-forms", "sample --")
"""Beginnings of checks that take seconds as they stand."""
SMALL = {
    "run": "--gpus 2 --iterations 2",
    "profile": "--model tiny-sd --device cpu --name cpu --batch-sizes 1 --rounds 1 --components vae_encoder",
    "count": "",
    "links": "",
}
"""Checks that need GPUs or take longer as they stand, and the flags that make them small: the last of each counts."""
ELSEWHERE = {
    ".ci/run": ["python -m pip install .", "python -m pip install -e '.[test]' && python -m pytest"],
    "tests/test_conformance.py": [  # of tests/data/toy_pipeline.py, which the page shows
        "python -m pytest tests/test_conformance.py -k pairs",
        "sim run --strategy pairs --help",
        "sim sweep --model sd21 --gpus 8 --strategy pairs,1f1b",
    ],
    "tests/test_workers.py": [  # with a LocalCluster
        "pip install 'diffusim[dask]'",
        "dask scheduler &",
        "dask worker tcp://HOST:8786 --nworkers 8 --nthreads 1",
        "sim sweep --model sd21 --gpus 512 --exhaustive --dask tcp://HOST:8786 --store sd21.sqlite",
    ],
    "tests/test_elsewhere.py": ["mpiexec -n 33 python -m mpi4py.futures study.py"],
}
"""Who runs the like of commands that need what a page does not bring."""
RUN_ELSEWHERE = [command for own in ELSEWHERE.values() for command in own]
TYPED = re.compile(r"(sim|python|pip|torchrun|mpiexec|srun|dask|mkdocs) ")
"""Beginnings of commands."""
QUOTED = [
    (
        "accuracy.md",
        r"compute times [^`]+",
        "run --model sd21 --gpus 8 --strategy ddp --batch-size 256 --measured step_s=0.87",
    ),
    (
        "reference/runtimes.md",
        r"sim: error: [^`]+",
        "run --model flux-dev --cluster h100-nvlink-8 --strategy pipefusion --patches 16 --steps 28 --runtime xdit",
    ),
    (
        "tutorials/serve.md",
        r"24 heads, ulysses [^`]+",
        "run --model flux-dev --cluster p5 --gpus 16 --strategy ulysses --steps 28",
    ),
    (
        "how_it_works/sharding.md",
        r"24 heads, context_degree [^`]+",
        "run --model flux-dev --cluster h100-ib --gpus 16 --batch-size 16 --strategy fsdp --context-degree 16",
    ),
]
"""What pages quote of the output of commands that they do not show, and these."""
CONFIGS = {
    "unet": {
        "_class_name": "UNet2DConditionModel",
        **{"sample_size": 8, "in_channels": 4, "out_channels": 4, "layers_per_block": 1},
        **{"block_out_channels": [32, 64], "cross_attention_dim": 32, "attention_head_dim": 8},
        "down_block_types": ["CrossAttnDownBlock2D", "DownBlock2D"],
        "up_block_types": ["UpBlock2D", "CrossAttnUpBlock2D"],
    },
    "text_encoder": {
        **{"architectures": ["CLIPTextModel"], "model_type": "clip_text_model", "hidden_size": 32},
        **{"intermediate_size": 64, "num_hidden_layers": 2, "num_attention_heads": 2, "vocab_size": 100},
        "max_position_embeddings": 77,
    },
    "vae": {
        **{"_class_name": "AutoencoderKL", "block_out_channels": [32] * 4, "latent_channels": 4},
        "down_block_types": ["DownEncoderBlock2D"] * 4,
        "up_block_types": ["UpDecoderBlock2D"] * 4,
    },
}
"""Files of the reader's that ``count`` reads."""
LOG = """\
# nThread 1 nGpus 1 minBytes 1024 maxBytes 67108864 step: 4(factor) warmup iters: 5 iters: 20 agg iters: 1
#
# Using devices
{ranks}
#       size         count      type   redop    root     time   algbw   busbw #wrong     time   algbw   busbw #wrong
#        (B)    (elements)                               (us)  (GB/s)  (GB/s)            (us)  (GB/s)  (GB/s)
{lines}
# Out of bounds values : 0 OK
# Avg bus bandwidth    : 42.1
"""


def typed(text):
    """The lines of all fenced blocks of a text that are commands, whatever language they are said to be in."""
    fences = re.findall(r"^ *```(\w*)[^\n]*\n(.*?)^ *```", text, re.DOTALL | re.MULTILINE)
    lines = [
        (language, line.partition("  #")[0].strip())
        for language, body in fences
        for line in body.splitlines()
    ]
    return [line for language, line in lines if line and (language == "sh" or TYPED.match(line))]


def is_run(page, command):
    """Whether a test of this file runs a command of a page, or ``ELSEWHERE`` says who does."""
    if command in RUN_ELSEWHERE:
        return True
    if MEASURING.search(command):
        return command in commands(page) and shlex.split(MEASURING.split(command)[-1])[0] in SMALL
    return command.startswith("sim ") and page in ASKING and command in commands(page)


@pytest.mark.parametrize("page", PAGES)
def test_no_command_of_a_page_goes_without_a_test(page):
    assert not [line for line in typed(PAGES[page].read_text(encoding="utf-8")) if not is_run(page, line)]


@pytest.mark.parametrize(
    "block",
    [
        "```sh\nmake everything\n```\n",
        "```\nsim sweep --model sd21 --gpus 8\n```\n",
        "```text\ntorchrun --nproc-per-node 2 study.py\n```\n",
        "```sh\npython -m validate gpu --all\n```\n",
        "  ```console\n  sim run --model sd21\n  ```\n",
    ],
)
def test_a_command_that_is_added_to_a_page_and_not_run_is_found(block):
    assert [line for line in typed(block) if not is_run("README.md", line)]


def test_what_runs_elsewhere_is_still_on_a_page_and_its_test_exists():
    there = {line for path in PAGES.values() for line in typed(path.read_text(encoding="utf-8"))}
    assert set(RUN_ELSEWHERE) <= there
    assert all((ROOT / where).exists() for where in ELSEWHERE)


def test_readme_and_tutorials_hold_commands():
    assert len(ASKING) > 5
    assert len(CHECKING) > 3


@pytest.mark.slow
@pytest.mark.parametrize("page", ASKING)
def test_every_command_of_a_page_runs(page, tmp_path, monkeypatch, capsys):
    """In order, in one folder: what a command writes, the next may read."""
    (tmp_path / "profiles").symlink_to(ROOT / "profiles")
    for own in ("mine", "sd21-here"):
        (tmp_path / own).symlink_to(ROOT / "profiles/models/sd21")
    monkeypatch.chdir(tmp_path)
    for command in commands(page):
        if not command.startswith("sim ") or MEASURING.search(command) or command in RUN_ELSEWHERE:
            continue
        words, target = words_and_target(command)
        code = main(words)
        said = capsys.readouterr()
        assert code == 0, f"{command}\n{said.err}"
        assert said.out
        if target:
            Path(target).write_text(said.out, encoding="utf-8")


def test_every_check_of_the_documents_is_a_command_of_validate():
    parser = make_parser()
    for command in (*CHECKING, *IN_WORDS):
        words = shlex.split(MEASURING.split(command)[-1])
        try:
            parser.parse_args(words)
        except InputError as error:  # named in words alone, as a flag may be that must be given
            assert command in IN_WORDS and len(words) < 3, error
            assert re.search(r"must be given$|is required$", str(error)), error


@pytest.mark.slow
@pytest.mark.parametrize("command", [one for one in IN_WORDS if one.split(" validate ")[1].startswith(CHEAP)])
def test_a_check_that_takes_seconds_holds(command, capsys):
    assert check(shlex.split(command.split("-m validate ")[1])) == 0
    assert capsys.readouterr().out


def read_by_checks(folder):
    """Write the files of a reader's own that checks of the documents read: configurations, and logs of eight GPUs."""
    for name, config in CONFIGS.items():
        (folder / name).mkdir()
        (folder / name / "config.json").write_text(json.dumps(config), encoding="utf-8")
    ranks = "\n".join(
        f"#  Rank {rank:2} Group  0 Pid  {9000 + rank} on node0 device  {rank} [0x1b] NVIDIA A100"
        for rank in range(8)
    )
    for test, moved in (("all_reduce", 7 / 4), ("alltoall", 7 / 8)):
        lines = []
        for size in (4**power for power in range(5, 14)):
            time_us = 40 + moved * size / 200e3  # 200 GB/s after 40 us
            numbers = f"{time_us:9.2f} {size / time_us / 1e3:7.2f} {moved * size / time_us / 1e3:7.2f}      0"
            lines.append(f"{size:12} {size // 4:12}     float     sum      -1 {numbers} {numbers}")
        text = LOG.format(ranks=ranks, lines="\n".join(lines))
        (folder / f"{test}.log").write_text(text, encoding="utf-8")


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_the_checks_that_need_more_than_seconds_run_made_small(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    read_by_checks(tmp_path)
    asked = [shlex.split(MEASURING.split(command)[-1]) for command in (*CHECKING, *IN_WORDS)]
    asked = [words for words in asked if words[0] in SMALL and len(words) > 1]
    asked = [words for words in asked if words[0] != "links" or "--nccl-tests" in words]
    assert {words[0] for words in asked} == set(SMALL)
    for words in asked:
        small = SMALL[words[0]].split()
        small = small[2:] if "diffusionpipe" in words else small  # as many as its pipeline has positions
        assert check([*words, *small]) == 0, (words, capsys.readouterr().err)
        said = capsys.readouterr()
        assert said.out or "wrote" in said.err
        if "--output" in words:
            assert (tmp_path / words[words.index("--output") + 1]).exists()


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_the_ranks_of_the_documents_measure_links_made_small(tmp_path):
    """As it is printed, but by two ranks over gloo in place of eight over NCCL."""
    (command,) = [command for command in CHECKING if command.startswith("torchrun ")]
    words = shlex.split(command)
    words[words.index("--nproc-per-node") + 1] = "2"
    environment = {name: value for name, value in os.environ.items() if name != "RANK"}
    words = [sys.executable, "-m", "torch.distributed.run", *words[1:], "--backend", "gloo", "--max-mib", "1"]
    done = subprocess.run(words, cwd=tmp_path, capture_output=True, text=True, env=environment, check=False)
    assert done.returncode == 0, done.stderr
    cluster = read_cluster(tmp_path / words[words.index("--output") + 1])
    assert (cluster.devices_per_node, cluster.device.name) == (2, words[words.index("--device") + 1])


@pytest.mark.slow
@pytest.mark.parametrize(("page", "pattern", "command"), QUOTED)
def test_what_a_page_quotes_is_what_the_command_says(page, pattern, command, capsys):
    main(shlex.split(command))
    said = capsys.readouterr()
    quoted = re.search(pattern, PAGES[f"docs/pages/{page}"].read_text(encoding="utf-8"))[0]
    assert " ".join(quoted.split()) in " ".join((said.out + said.err).split())


@pytest.mark.slow
@pytest.mark.parametrize("page", [page for page in PAGES if page != TUTORIAL and blocks(page, "python")])
def test_the_python_of_a_page_runs(page):
    for block in blocks(page, "python"):
        if "count(module" not in block:  # the reader's own module
            exec(compile(block, page, "exec"), {})


@pytest.mark.slow
def test_a_script_that_the_document_makes_of_a_strategy_runs(tmp_path):
    """A file, as a notebook is run from top to bottom."""
    strategy, _, asking = blocks(TUTORIAL, "python")
    (tmp_path / "own.py").write_text(strategy + asking + "print(sweep.best_of('pairs'))", encoding="utf-8")
    environment = os.environ | {"PYTHONPATH": str(ROOT)}
    done = subprocess.run(
        [sys.executable, tmp_path / "own.py"], capture_output=True, text=True, env=environment, check=False
    )
    assert done.returncode == 0, done.stderr
    assert "pairs takes " in done.stdout
    assert "<Result sd21 by pairs, training on 8 GPUs of p4de, stack eager: " in done.stdout


@pytest.mark.parametrize("name", ["toy_pipeline.py", "toy_sampler.py"])
def test_the_strategies_of_the_document_are_those_that_are_installed_and_tested(name):
    assert (ROOT / "tests/data" / name).read_text(encoding="utf-8") in blocks(TUTORIAL, "python")


def test_no_word_of_the_glossary_is_explained_twice():
    glossary = PAGES["docs/pages/reference/words.md"].read_text(encoding="utf-8")
    words = re.findall(r"^\| ([^|]+) \|", glossary, re.MULTILINE)
    words = [word for word in words if word not in ("word", "---")]
    assert len(words) == len(set(words)) > 40


def test_every_link_and_picture_of_a_page_exists():
    for page, path in PAGES.items():
        assert "@@" not in path.read_text(encoding="utf-8"), f"{page}: a number is still to be filled in"
        for target in re.findall(r"\]\(([^)#]+?)(?:#[^)]*)?\)", path.read_text(encoding="utf-8")):
            assert target.startswith("http") or (path.parent / target).exists(), f"{page}: {target}"


@pytest.mark.slow
def test_the_site_builds_without_a_warning(tmp_path):
    build = pytest.importorskip("mkdocs.commands.build")
    config = pytest.importorskip("mkdocs.config").load_config(
        str(ROOT / "docs/mkdocs.yml"), site_dir=str(tmp_path), strict=True
    )
    build.build(config)
    assert (tmp_path / "tutorials/train/index.html").exists()
    for notebook in (ROOT / "notebooks").glob("*.ipynb"):
        assert (tmp_path / "notebooks" / notebook.stem / "index.html").exists()
