"""Pages: HTML that needs nothing else, its figures inline; every text in it is escaped."""

from base64 import b64encode
from collections.abc import Sequence
from dataclasses import dataclass
from html import escape
from io import BytesIO
from typing import Final

from pandas import DataFrame

from sim.report.plots.charts import Chart
from validate.reporting.sections import Section

STYLE: Final = """
body { font: 15px/1.5 system-ui, sans-serif; color: #222; margin: 2rem auto; max-width: 76rem; padding: 0 1rem; }
h1 { font-size: 1.7rem; } h2 { margin-top: 2.4rem; border-bottom: 2px solid #0072B2; } h3 { margin-bottom: .3rem; }
table { border-collapse: collapse; font-size: 13px; display: block; overflow-x: auto; }
th, td { border-bottom: 1px solid #e6e6e6; padding: .2rem .7rem .2rem 0; text-align: left; vertical-align: top; }
td { font-variant-numeric: tabular-nums; } th { border-bottom: 2px solid #9a9a9a; }
img { max-width: 100%; } details > summary { cursor: pointer; color: #0072B2; } nav a { margin-right: 1.2rem; }
@media print { details { display: block; } }
"""
LONG: Final = 40
"""Rows beyond which a table is folded."""


@dataclass(frozen=True, slots=True)
class Chapter:
    """One chapter: its heading, a paragraph, figures with what they say, and tables."""

    title: str
    words: str
    sections: Sequence[Section] = ()
    figures: Sequence[tuple[str, Chart]] = ()

    @property
    def anchor(self) -> str:
        """What a link to it says."""
        return "".join(letter if letter.isalnum() else "-" for letter in self.title.lower())


def page(title: str, chapters: Sequence[Chapter]) -> str:
    """The whole document."""
    links = "".join(f'<a href="#{one.anchor}">{escape(one.title)}</a>' for one in chapters)
    body = "\n".join(map(_chapter, chapters))
    return (
        f'<!doctype html>\n<html lang="en"><head><meta charset="utf-8"><title>{escape(title)}</title>'
        f"<style>{STYLE}</style></head>\n<body><h1>{escape(title)}</h1><nav>{links}</nav>\n{body}\n</body></html>\n"
    )


def _chapter(chapter: Chapter) -> str:
    parts = [f'<h2 id="{chapter.anchor}">{escape(chapter.title)}</h2>', f"<p>{escape(chapter.words)}</p>"]
    parts += [picture(words, figure) for words, figure in chapter.figures]
    parts += map(_table, chapter.sections)
    return "\n".join(parts)


def picture(words: str, figure: Chart) -> str:
    """A figure inline, with what it says for those who cannot see it."""
    buffer = BytesIO()
    figure.savefig(buffer, format="svg", metadata={"Date": None})
    data = b64encode(buffer.getvalue()).decode("ascii")
    return f'<img alt="{escape(words, quote=True)}" src="data:image/svg+xml;base64,{data}">'


def _table(section: Section) -> str:
    table = DataFrame(section.rows, columns=list(section.header)).to_html(
        index=False, border=0, justify="left"
    )
    if len(section.rows) > LONG:
        table = f"<details><summary>{len(section.rows)} rows</summary>{table}</details>"
    remark = f"<p>{escape(section.remark)}</p>" if section.remark else ""
    return f"<h3>{escape(section.title)}</h3>{table}{remark}"
