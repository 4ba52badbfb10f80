"""Pages: values as HTML, for notebooks."""

from collections.abc import Mapping
from html import escape
from typing import Any


def html_table(title: str, values: Mapping[str, Any]) -> str:
    """A title over a table of two columns, names and values; what is None is left out."""
    rows = "".join(
        f"<tr><td>{escape(name.replace('_', ' '))}</td><td>{escape(_words(value))}</td></tr>"
        for name, value in values.items()
        if value is not None
    )
    return f"<b>{escape(title)}</b><table>{rows}</table>"


def _words(value: Any) -> str:  # noqa: ANN401
    return f"{value:.4g}" if isinstance(value, float) else str(value)
