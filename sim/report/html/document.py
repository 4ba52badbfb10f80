"""Documents: the page, its style, its script, Plotly and the values in one file."""

import json
from collections.abc import Mapping
from html import escape
from importlib.resources import files
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Final

from profiles.errors import InputError

PLOTLY: Final = "plotly"
SCRIPTS: Final = ("theme.js", "charts.js", "filters.js", "page.js")
POLICY: Final = "; ".join(
    (
        "default-src 'none'",
        "script-src 'unsafe-inline' 'unsafe-eval'",
        "style-src 'unsafe-inline'",
        "img-src data: blob:",
    )
)
"""What a browser lets the page do: nothing but itself. Plotly compiles its shaders."""


def check_plotly(asked: str = "a report") -> None:
    """Refuse to make a report, or what else was asked, without Plotly.

    Raises:
        InputError: it is not installed.
    """
    if find_spec(PLOTLY) is None:
        raise InputError(f"{asked} needs plotly: pip install 'diffusim[report]'")


def check_ending(flag: str, path: Path) -> None:
    """Refuse a report that no browser would take for a page.

    Raises:
        InputError: the ending is not .html.
    """
    if path.suffix.lower() != ".html":
        raise InputError(f"{flag} is '{path}', must end in .html")


def document(values: Mapping[str, Any]) -> str:
    """The text of the page that draws some values; ``title`` is the one that it must have."""
    check_plotly()
    from plotly.offline import get_plotlyjs

    parts = {
        "TITLE": escape(str(values["title"])),
        "POLICY": escape(POLICY),
        "STYLE": _text("style.css"),
        "PLOTLY": get_plotlyjs(),
        "VALUES": embedded(values),
        "SCRIPT": "\n".join(map(_text, SCRIPTS)),
    }
    head, *rest = _text("page.html").split("{{")
    pieces = [head]
    for piece in rest:
        name, _, tail = piece.partition("}}")
        pieces += [parts[name], tail]
    return "".join(pieces)


def embedded(values: Mapping[str, Any]) -> str:
    """Values as JSON that no HTML parser takes for anything else."""
    text = json.dumps(values, allow_nan=False, separators=(",", ":"))
    return text.replace("<", "\\u003c").replace(">", "\\u003e").replace("&", "\\u0026")


def _text(name: str) -> str:
    return files("sim.report.html").joinpath(name).read_text(encoding="utf-8")


def write_document(path: Path, values: Mapping[str, Any]) -> None:
    """Write the page.

    Raises:
        InputError: its ending is another, it cannot be written, or Plotly is not installed.
    """
    check_ending("path", path)
    text = document(values)
    draft = path.with_name(f".{path.name}.draft")
    try:
        draft.write_text(text, encoding="utf-8")
        draft.replace(path)
    except OSError as error:
        raise InputError(f"report '{path}' cannot be written: {error.strerror or error}") from None
