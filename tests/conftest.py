"""What tests share: small clusters, models, scenarios and plans made in code, and the tables of README.md."""

import gc
import json
import os
import sys
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest
from hypothesis import settings
from making import make_cluster, make_link
from notation import parse_action

from profiles.architectures.components import Component, Layer, MeasuredTime, Skip
from profiles.architectures.models import Model
from profiles.mappings import FrozenMapping
from profiles.software.stacks import load_stack
from sim.cli.main import main
from strategies import registry
from strategies.plans.placement import Placement
from strategies.plans.plan import Collective, Op, Plan, Tensor
from strategies.plans.workloads import SamplingWorkload, TrainingWorkload
from strategies.sampling_scenario import SamplingScenario
from strategies.scenario import Scenario

pytest.register_assert_rewrite("conformance")  # the checks there assert, too
# on a busy machine an example may take long
settings.register_profile("default", settings.get_profile("default"), deadline=None, max_examples=50)
settings.register_profile("ci", settings.get_profile("ci"), max_examples=50)


def pytest_ignore_collect(collection_path, config):
    """Without slow tests, leave modules that have no others unread: most import torch, which takes ten seconds."""
    if collection_path.suffix == ".py" and "not slow" in config.option.markexpr:
        return "\npytestmark = pytest.mark.slow\n" in collection_path.read_text("utf-8") or None
    return None


def pytest_collection_finish():
    """Leave what imports and collection made out of every later garbage collection, which it makes slow."""
    gc.collect()
    gc.freeze()


def pytest_runtest_setup(item):
    """Leave comparisons of seconds to a run without others beside it, where alone they say something."""
    if item.get_closest_marker("timed") and "PYTEST_XDIST_WORKER" in os.environ:
        pytest.skip("other tests run beside it: python -m pytest -n 0 -m timed")


def make_component(
    name, forward_s, backward_s=None, *, trainable=True, inputs=(), fixed_s=0.0, output_bytes=0.0,
    saved_bytes=0.0, parameters=0, skips=(), carried_bytes=0.0, self_conditioning=0.0, blocks=None, locked=(),
):  # fmt: skip
    """A component with measured seconds per sample for each layer, on top of ``fixed_s`` per call.

    The backward takes twice the forward unless told otherwise; layers in ``locked`` pass gradients through.
    """
    backward_s = backward_s or [2 * seconds if trainable else 0.0 for seconds in forward_s]
    fixed_backward_s = 2 * fixed_s if trainable else 0.0
    kinds = ["none" if not trainable else "input" if i in locked else "full" for i in range(len(forward_s))]
    layers = tuple(
        Layer(
            block=blocks[i] if blocks else i, name=f"layer{i}", parameters=parameters, backward=kind, conv_flop=0.0,
            matmul_flop=0.0, attention_flop=0.0, moved_bytes=0.0, kernels=0, output_bytes=output_bytes,
            saved_bytes=saved_bytes if trainable else 0.0,
        )
        for i, kind in enumerate(kinds)
    )  # fmt: skip
    times = tuple(
        MeasuredTime(i, batch, fixed_s + batch * forward, fixed_backward_s + batch * backward)
        for i, (forward, backward) in enumerate(zip(forward_s, backward_s, strict=True))
        for batch in (1, 2)
    )
    return Component(
        name=name,
        trainable=trainable,
        inputs=tuple(inputs),
        image_tokens=1,
        text_tokens=0,
        carried_bytes=carried_bytes,
        self_conditioning=self_conditioning,
        layers=layers,
        skips=tuple(Skip(*skip) for skip in skips),
        times=(("ideal", times),),
    )


def make_model(*components):
    """A model of these components."""
    return Model("made", "Made", "made by a test", "float16", 64, 64, tuple(components))


def make_scenario(model, cluster, num_gpus, batch_size, **workload):
    """A training scenario; an iteration runs the extra forward only if ``extra_forward`` says so.

    The optimizer's step is one kernel, so that its traffic is easily worked out.
    """
    stack = replace(load_stack(), optimizer="fused")
    return Scenario(model, cluster, TrainingWorkload(num_gpus, batch_size, **workload), stack=stack)


def make_sampling(model, cluster, num_gpus, **workload):
    """A sampling scenario; at the reference of the model and without guidance unless told otherwise."""
    given = {"height": model.height, "width": model.width, "guidance": "none", **workload}
    return SamplingScenario(model, cluster, SamplingWorkload(num_gpus, **given))


def make_op(action, duration_s, reads="", writes="", early=()):
    """An op whose tensors have names: ``reads`` and ``writes`` as words, ``early`` as (offset, name) pairs."""
    return action, duration_s, reads.split(), writes.split(), early


def make_plan(
    rows, *, cluster=None, placement=None, sizes=None, collectives=(), given=(), kept=(), posted_after=None,
    resident=(), blocking=False,
):  # fmt: skip
    """A plan of rows of ``make_op``; tensors not in ``sizes`` weigh nothing.

    ``collectives`` are (devices, bytes, group position, reads, writes), all-reduces all of them; ``given`` and
    ``kept`` are (name, device) pairs, the keys of ``posted_after`` too.
    """
    names = {}
    for _, _, reads, writes, early in (op for row in rows for op in row):
        for name in [*reads, *writes, *(name for _, name in early)]:
            names.setdefault(name, len(names))
    for _, _, _, reads, writes in collectives:
        for name in [*reads.split(), *writes.split()]:
            names.setdefault(name, len(names))
    for name, _ in [*given, *kept]:
        names.setdefault(name, len(names))

    def numbers(words):
        return tuple(names[word] for word in words)

    ops = tuple(
        tuple(
            Op(
                parse_action(action), duration_s, numbers(reads), numbers(writes),
                tuple((offset_s, names[name]) for offset_s, name in early),
            )
            for action, duration_s, reads, writes, early in row
        )
        for row in rows
    )  # fmt: skip
    return Plan(
        ops=ops,
        tensors=tuple(Tensor(name, 0, 0, float((sizes or {}).get(name, 0.0))) for name in names),
        placement=placement or Placement(cluster or make_cluster(), len(rows), len(rows), len(rows)),
        collectives=tuple(
            Collective(
                "all_reduce",
                devices,
                size_bytes,
                None if position is None else (position,),
                numbers(reads.split()),
                numbers(writes.split()),
            )
            for devices, size_bytes, position, reads, writes in collectives
        ),
        resident=tuple(resident) or tuple(() for _ in rows),
        given=tuple((names[name], device) for name, device in given),
        kept=tuple((names[name], device) for name, device in kept),
        posted_after=FrozenMapping(
            ((names[name], device), after) for (name, device), after in (posted_after or {}).items()
        ),
        blocking=blocking,
    )


@pytest.fixture(scope="session")
def make():
    """The builders of this file, by what they build."""
    return SimpleNamespace(
        link=make_link, cluster=make_cluster, component=make_component, model=make_model, scenario=make_scenario,
        sampling=make_sampling, op=make_op, plan=make_plan,
    )  # fmt: skip


@pytest.fixture(scope="session")
def readme():
    """The text of README.md and the accuracy pages, and ``table(title)``: the rows of a table, by its first cell."""
    root = Path(__file__).parents[1]
    pages = [root / "README.md", *sorted((root / "docs/pages").glob("accuracy*.md"))]
    text = "".join(page.read_text(encoding="utf-8") for page in pages)

    def table(title):
        lines = text[text.index(f"\n| {title} |") + 1 :].split("\n\n")[0].splitlines()
        return [line.strip("| ").split(" | ") for line in [lines[0], *lines[2:]]]

    return SimpleNamespace(words=" ".join(text.split()), table=table)


@pytest.fixture(autouse=True)
def width_of_its_own(monkeypatch):
    """What is printed is as wide as without a terminal, whoever runs the tests."""
    monkeypatch.delenv("COLUMNS", raising=False)


@pytest.fixture
def elsewhere(tmp_path, monkeypatch):
    """An empty folder, in which the test runs."""
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.fixture
def install(tmp_path, monkeypatch):
    """A function that installs a package of strategies: its entry points, and its modules by their files."""

    def forget():
        for known in (registry._installed, registry.strategies_of):
            known.cache_clear()
        for name in [*sys.modules]:
            if str(getattr(sys.modules[name], "__file__", "")).startswith(str(tmp_path)):
                del sys.modules[name]

    def run(package, entries, modules):
        folder = tmp_path / f"{package}-1.0.dist-info"
        folder.mkdir()
        (folder / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {package}\nVersion: 1.0\n")
        (folder / "entry_points.txt").write_text("\n".join(["[diffusim.strategies]", *entries, ""]))
        for name, text in modules.items():
            path = tmp_path / name
            path.parent.mkdir(exist_ok=True)
            path.write_text(text)
        monkeypatch.syspath_prepend(tmp_path)
        forget()

    yield run
    forget()


@pytest.fixture
def tell(capsys):
    """A function that runs a command of ``sim`` and returns its exit code, stdout and stderr."""

    def run(*arguments):
        capsys.readouterr()
        code = main([str(argument) for argument in arguments])
        return code, *capsys.readouterr()

    return run


@pytest.fixture
def ask(tell):
    """A function that runs a command with --json and returns what it prints."""

    def run(*arguments):
        code, out, err = tell(*arguments, "--json")
        assert code == 0, err
        assert out.count("\n") == 1
        return json.loads(out)

    return run
