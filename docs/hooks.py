"""What MkDocs fills in while it builds: the help of each command, tables of what is shipped, and notebooks.

A page asks with ``<!-- help: sim sweep -->`` or ``<!-- table: models -->``, on a line of its own. Notebooks are shown
as they were run: ``cp -r notebooks build/ && python -m pytest --nbmake --overwrite build/notebooks`` before. Without
that they are shown without outputs.
"""

import json
import os
import re
from contextlib import redirect_stdout
from io import StringIO
from itertools import product
from pathlib import Path
from typing import Any
from unittest.mock import patch

import pandas as pd
from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files
from nbconvert import MarkdownExporter

import sim
from profiles.machines.clusters import load_cluster
from profiles.software.runtimes import all_runtimes
from sim.cli.main import main as run
from validate.__main__ import main as check

ROOT = Path(__file__).parents[1]

MARK = re.compile(r"^<!-- (?P<kind>help|table): (?P<what>[\w -]+) -->$", re.MULTILINE)
TABLES = {
    "models": (sim.models, ["name", "component", "trainable", "layers", "parameters", "skips"]),
    "clusters": (sim.clusters, ["name", "device", "devices_per_node", "max_nodes", "source"]),
    "devices": (sim.devices, ["name", "memory_bytes", "source"]),
    "stacks": (sim.stacks, ["name", "summary", "source"]),
    "strategies": (sim.strategies, ["name", "task", "summary", "parameters"]),
}

LAYERS, LAYER_S, CLUSTER = 16, 1e-3, "a100-nvlink-8"
"""Layers of the model of the playground, seconds of the forward of each a sample, and where it runs."""
AXES = {
    "strategy": ("schedule", ("gpipe", "1f1b", "diffusionpipe"), 2),
    "stages": ("stages", (2, 4, 8), 1),
    "micro_batches": ("micro-batches", (2, 4, 8), 1),
    "frozen": ("encoder over backbone", ("none", "20 %", "40 %", "80 %"), 2),
    "link": ("link over forward", ("free", "20 %", "50 %"), 0),
}
"""Sliders of the playground: titles, values, and which stands first."""


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """The files of the site with a page for each notebook, and the pictures that it drew."""
    for notebook in sorted((ROOT / "notebooks").glob("*.ipynb")):
        run = ROOT / "build" / "notebooks" / notebook.name
        body, kept = MarkdownExporter().from_filename(str(run if run.exists() else notebook))
        names = {name: f"{notebook.stem}-{name}" for name in kept["outputs"]}
        for name, content in kept["outputs"].items():
            body = body.replace(f"({name})", f"({names[name]})")
            files.append(File.generated(config, f"notebooks/{names[name]}", content=content))
        files.append(File.generated(config, f"notebooks/{notebook.stem}.md", content=body))
    files.append(File.generated(config, "runs.json", content=json.dumps(playground(), separators=(",", ":"))))
    return files


def playground() -> dict[str, Any]:
    """Return the sliders of the playground, and the run of each of their positions."""
    axes = {
        name: {"title": title, "values": values, "first": first}
        for name, (title, values, first) in AXES.items()
    }
    places = product(*(range(len(axis["values"])) for axis in axes.values()))
    runs = {
        " ".join(map(str, at)): _run(*(axis["values"][i] for axis, i in zip(axes.values(), at, strict=True)))
        for at in places
    }
    return {"axes": axes, "runs": runs}


def _run(strategy: str, stages: int, micro_batches: int, frozen: str, link: str) -> dict[str, Any]:
    """Return a run of the playground: its end in ms, idle per cent, and of each GPU start, ms, kind and name of ops."""
    cluster = load_cluster(CLUSTER)
    encoder, sent = (
        0 if words in {"none", "free"} else int(words.split()[0]) / 100 for words in (frozen, link)
    )
    hidden_bytes = sent * LAYER_S * LAYERS / stages * cluster.intra_node.bandwidth_bytes_per_s
    model = sim.equal_layers_model(
        LAYERS, LAYER_S, frozen_share=encoder, output_bytes=hidden_bytes, device=cluster.device.name
    )
    shape = {
        "pipeline_degree": stages,
        "micro_batches": micro_batches,
        "batch_size": 48,
        "checkpointing": "none",
    }
    result = sim.run(model, strategy, cluster, stages, **shape)
    ops = result.ops()
    bars = [
        [
            [round(1e3 * op.start_s), round(1e3 * op.duration_s, 1), op.category, op.action]
            for op in own.itertuples()
        ]
        for _, own in ops[ops.category.isin(["forward", "backward", "frozen"])].groupby("device")
    ]
    return {"end": round(1e3 * result.iteration_s), "idle": round(100 * result.bubble_ratio), "bars": bars}


def on_page_markdown(markdown: str, **_: object) -> str:
    """The page with every mark replaced by what it asks for.

    Raises:
        KeyError: A mark asks for a table or the help of a command that is not known.
    """
    return MARK.sub(_filled, markdown)


def _filled(mark: re.Match[str]) -> str:
    return _table(mark["what"]) if mark["kind"] == "table" else _help(mark["what"])


def _help(command: str) -> str:
    package, *words = command.split()
    with redirect_stdout(StringIO()) as out, patch.dict(os.environ, COLUMNS="80"):
        if {"sim": run, "validate": check}[package]([*words, "--help"]):
            raise KeyError(command)
    return f"```text\n{out.getvalue().rstrip()}\n```"


def _runtimes() -> pd.DataFrame:
    """What is known of runtimes, one a row."""
    rows = [
        {
            "name": name,
            "read in": one.version,
            "task": one.task,
            "strategies": ", ".join(one.rules),
            "models": "any" if one.models is None else ", ".join(one.models),
        }
        for name, one in all_runtimes().items()
    ]
    return pd.DataFrame(rows)


def _table(name: str) -> str:
    if name == "runtimes":
        frame = _runtimes()
        columns = list(frame)
    else:
        frame, columns = TABLES[name][0](), TABLES[name][1]
    rows = [columns, ["---"] * len(columns), *frame[columns].itertuples(index=False)]
    return "\n".join("| " + " | ".join(str(cell).replace("|", "\\|") for cell in row) + " |" for row in rows)
