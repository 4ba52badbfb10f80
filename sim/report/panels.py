"""Panels: an answer in a few lines, each a word and what it says; for the terminal, for Markdown and for HTML."""

import re
from collections.abc import Sequence
from html import escape
from io import StringIO
from typing import Final, NamedTuple

from rich.box import ROUNDED
from rich.console import Console
from rich.panel import Panel as Frame
from rich.table import Table
from rich.text import Text

from profiles.costs.trust import Trust, trust_of
from profiles.errors import counted
from profiles.units import GIB
from sim.outcomes.results import Result
from sim.report.numbers import band, duration, image_words, throughput
from sim.report.reasons import Account
from strategies.strategy import Sampler

CELLS: Final = 20
"""Characters of a bar."""
WIDEST: Final = 100
"""Characters of a line that can still be read."""
NARROW: Final = 80
"""Characters of a panel that is text, for no terminal at all."""
FULL, HOST, PART, NONE = "█", "▓", "▒", "░"
"""What bars are made of: compute or memory taken, the host awaited, data awaited, and nothing."""

LEAST_SHARE: Final = 0.005
"""Shares of the time that the host takes and that are below this count as compute."""

NEARLY: Final = 0.97
"""Share of a device's memory beyond which a point may not fit after all: estimates are within 3 % of torch's bytes."""

MARKDOWN: Final = r"([\\`*_{}\[\]<>#|])"
"""Letters that Markdown would take for its own."""

Line = tuple[str, str]
"""A label and its text; a line without a label goes on with the one above."""


class Panel(NamedTuple):
    """An answer in a few lines, for the terminal, for Markdown and for HTML; text is never taken for markup."""

    title: str
    lines: Sequence[Line]

    def show(self, screen: Console) -> None:
        """Print the panel, no wider than can be read; a title too long for its edge stands within."""
        width = min(screen.width, WIDEST)
        within = len(self.title) > width - 6
        grid = Table.grid(padding=(0, 2, 0, 0))
        grid.add_column(no_wrap=True)
        grid.add_column(overflow="fold")
        for number, (label, text) in enumerate([*([("", self.title)] if within else []), *self.lines]):
            grid.add_row(Text(label, style="dim"), Text(text, style="bold" if number == 0 else ""))
        title = Text("" if within else self.title)
        screen.print(Frame(grid, title=title, title_align="left", box=ROUNDED, padding=(0, 1)), width=width)

    def text(self) -> str:
        """The panel without colours."""
        stream = StringIO()
        self.show(Console(file=stream, width=NARROW, highlight=False, emoji=False, color_system=None))
        return stream.getvalue().rstrip("\n")

    def markdown(self) -> str:
        """The panel as a Markdown list."""
        title, *texts = (
            re.sub(MARKDOWN, r"\\\1", text) for text in (self.title, *(text for _, text in self.lines))
        )
        lines = zip((label for label, _ in self.lines), texts, strict=True)
        items = [f"- **{label}** {text}" if label else f"  - {text}" for label, text in lines]
        return "\n".join([f"**{title}**", "", *items])

    def html(self) -> str:
        """The panel as a table."""
        left = ' style="text-align: left"'  # where notebooks put cells at the right
        rows = (
            f"<tr><th{left}>{escape(label)}</th><td{left}>{escape(text)}</td></tr>"
            for label, text in self.lines
        )
        return f"<b>{escape(self.title)}</b><table>{''.join(rows)}</table>"


def bar(*shares: float, marks: str = FULL + PART) -> str:
    """A bar of shares of a whole, each in its own shade; the rest is empty."""
    text, filled = "", 0.0
    for share, mark in zip(shares, marks, strict=False):
        filled += max(0.0, share)
        text += mark * (min(CELLS, round(CELLS * filled)) - len(text))
    return text.ljust(CELLS, NONE)


def speed_words(result: Result) -> str:
    """The duration with its band, and what is done in a second."""
    if result.task == "sample":
        one, more = image_words(result.options)
        article = "an" if one == "image" else "a"
        images = (
            f"{article} {one}" if result.batch_size == 1 else f"for {counted(result.batch_size, one, more)}"
        )
        cost = f"{result.gpu_s_per_sample:,.2f} GPU-seconds each"
        return f"{duration(result)} {images}{_in_brackets(result, 's')}, {cost}"
    took = f"{duration(result)} an iteration{_in_brackets(result, 'ms')}"
    several = result.num_backbones > 1
    each = f", each counted once for each of {result.num_backbones} backbones" if several else ""
    return f"{took}, {throughput(result.samples_per_s)} samples/s{each}"


def _in_brackets(result: Result, unit: str) -> str:
    words = band(result, unit)
    return f" ({words})" if words else ""


def _memory_words(result: Result) -> str:
    """Peak memory of the fullest device, as a bar of what it has."""
    peak = result.expected.peak_memory_bytes
    if result.memory_bytes is None:
        return f"{peak / GIB:.1f} GiB"
    share, remark = peak / result.memory_bytes, ""
    if not result.fits_memory:
        remark = ": does not fit"
    elif share > NEARLY:
        remark = ": nearly full"
    return f"{bar(share)} {peak / GIB:.1f} of {result.memory_bytes / GIB:.1f} GiB{remark}"


def time_words(account: Account) -> str:
    """Where the devices' time goes."""
    host, wire, idle = account.host, account.wire, account.idle
    behind = f", host {host:.1%}" if host >= LEAST_SHARE else ""
    compute = account.compute if behind else account.compute + host
    shares = bar(compute, host, wire, marks=FULL + HOST + PART)
    return f"{shares} compute {compute:.1%}{behind}, bubble: wire {wire:.1%}, idle {idle:.1%}"


def trust_in(result: Result, device: str) -> Trust | None:
    """What published numbers say of estimates like a result; None where there is nothing to estimate."""
    timed = result.provenance == "measured"
    return trust_of(result.task, device, result.strategy, result.num_gpus, timed=timed)


def _phase_words(result: Result) -> str:
    """Seconds and peak memory of each phase of a run; empty where it has no phases."""
    names = [key.removesuffix("_s") for key in result.phases if key.endswith("_s")]
    words = (
        f"{name} {result.phases[f'{name}_s']:,.3f} s, {result.phases[f'{name}_peak_memory_bytes'] / GIB:.1f} GiB"
        for name in names
    )
    return "; ".join(words)


def runs_in_words(names: Sequence[str]) -> str:
    """The runtimes that run a point, and how it is started there."""
    if not names:
        return "no runtime that is known here"
    return f"{', '.join(names)}; `sim launch` in place of `sim run` starts it"


class ImageGroups(NamedTuple):
    """How GPUs draw images.

    Attributes:
        groups: of GPUs that each draw images of their own.
        approximation: why an image is not the one that a single GPU draws, in words; empty where it is.
    """

    groups: int = 1
    approximation: str = ""


TOGETHER: Final = ImageGroups()
"""All GPUs draw the images that one draws."""


def image_groups_of(result: Result) -> ImageGroups:
    """How the GPUs of a result draw; together, where nobody says otherwise."""
    if result.source is None or not isinstance(strategy := result.source.strategy, Sampler):
        return TOGETHER
    scenario = result.source.scenario
    return ImageGroups(strategy.image_groups(scenario), strategy.approximation(scenario))


def _groups_line(result: Result, groups: int) -> list[Line]:
    """How many GPUs draw an image together, where others draw other images."""
    if groups == 1:
        return []
    together, each = (
        result.num_gpus // groups,
        counted(result.batch_size // groups, *image_words(result.options)),
    )
    return [("", f"{groups} groups of {counted(together, 'GPU')} draw {each} each")]


def result_lines(result: Result, account: Account, image_groups: ImageGroups = TOGETHER) -> list[Line]:
    """Speed, how GPUs draw, memory, where the time goes and why, and what each phase of a run takes."""
    lines = [
        ("speed", speed_words(result)),
        *_groups_line(result, image_groups.groups),
        ("memory", _memory_words(result)),
        ("time", time_words(account)),
        *(("" if number else "why", words) for number, words in enumerate(account.reasons)),
    ]
    if image_groups.approximation:
        lines.append((image_words(result.options)[0], f"approximate: {image_groups.approximation}"))
    return [*lines, ("phases", words)] if (words := _phase_words(result)) else lines
