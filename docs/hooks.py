"""What MkDocs fills in while it builds: the help of each command, tables of what is shipped, and notebooks.

A page asks with ``<!-- help: sim sweep -->`` or ``<!-- table: models -->``, on a line of its own. Notebooks are shown
as they were run: ``cp -r notebooks build/ && python -m pytest --nbmake --overwrite build/notebooks`` before. Without
that they are shown without outputs.
"""

import re
import subprocess
import sys
from pathlib import Path

import pandas as pd
from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files
from nbconvert import MarkdownExporter

import sim
from profiles.software.runtimes import all_runtimes

ROOT = Path(__file__).parents[1]

MARK = re.compile(r"^<!-- (?P<kind>help|table): (?P<what>[\w -]+) -->$", re.MULTILINE)
TABLES = {
    "models": (sim.models, ["name", "component", "trainable", "layers", "parameters", "skips"]),
    "clusters": (sim.clusters, ["name", "device", "devices_per_node", "max_nodes", "source"]),
    "devices": (sim.devices, ["name", "memory_bytes", "source"]),
    "stacks": (sim.stacks, ["name", "summary", "source"]),
    "strategies": (sim.strategies, ["name", "task", "summary", "parameters"]),
}


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
    return files


def on_page_markdown(markdown: str, **_: object) -> str:
    """The page with every mark replaced by what it asks for.

    Raises:
        KeyError: A mark asks for a table that is not known.
        subprocess.CalledProcessError: A command has no help.
    """
    return MARK.sub(_filled, markdown)


def _filled(mark: re.Match[str]) -> str:
    return _table(mark["what"]) if mark["kind"] == "table" else _help(mark["what"])


def _help(command: str) -> str:
    package, *words = command.split()
    said = subprocess.run(
        [sys.executable, "-m", package, *words, "--help"], capture_output=True, text=True, check=True
    )
    return f"```text\n{said.stdout.rstrip()}\n```"


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
