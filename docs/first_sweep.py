"""Write what the first sweep says into README and docs: ``python docs/first_sweep.py``."""

import os
import re
import subprocess
import sys
from collections.abc import Iterable, Iterator
from pathlib import Path

import sim
from sim.report.numbers import banded

ROOT = Path(__file__).parents[1]
PAGES = (ROOT / "README.md", ROOT / "docs/pages/accuracy.md")
ASKED = {"model": "sd21", "gpus": 64}
STACKS = ("eager-2023", "eager", "compiled")
HEADER = (
    "encoders",
    "stack",
    "first",
    "iteration",
    "ties with it",
    "`diffusionpipe` over `gpipe`",
    "over `ddp`",
)


def rows() -> Iterator[list[str]]:
    """One row per way to have encoders, and stack: who is first, ties, and ``diffusionpipe`` over two others."""
    for frozen in ("online", "cached"):
        for stack in STACKS:
            sweep = sim.sweep(**ASKED, frozen=frozen, stack=stack)
            best = sweep.best
            ties = [row["strategy"] for row in sweep.rows(best_of_each=True) if row["tie"]]
            others = [name for name in dict.fromkeys(ties) if name != best.strategy]
            filled_s = sweep.best_of("diffusionpipe").iteration_s
            gains = (sweep.best_of(other).iteration_s / filled_s for other in ("gpipe", "ddp"))
            yield [
                frozen,
                f"`{stack}`",
                f"`{best.strategy}`",
                banded(best),
                ", ".join(others) or "none",
                *(f"{gain:.2f}" for gain in gains),
            ]


def answer() -> str:
    """The verdict of the first sweep, as a terminal of 80 columns shows it."""
    flags = [word for key, value in ASKED.items() for word in (f"--{key}", str(value))]
    command = [sys.executable, "-m", "sim", "sweep", *flags]
    wide = {**os.environ, "COLUMNS": "80"}
    said = subprocess.run(command, capture_output=True, text=True, check=True, env=wide, cwd=ROOT).stdout
    return f"```text\n{said[: said.index('╯') + 1]}\n```"


def table(lines: Iterable[list[str]]) -> str:
    """A table of Markdown."""
    cells = [list(HEADER), ["---"] * len(HEADER), *lines]
    return "\n".join(f"| {' | '.join(line)} |" for line in cells)


def write(words: dict[str, str]) -> None:
    """Put texts between their marks, in every page that has these."""
    for page in PAGES:
        text = page.read_text(encoding="utf-8")
        for mark, said in words.items():
            between = f"(<!-- first sweep: {mark} -->\n).*?(<!-- end of it -->)"
            text = re.sub(between, lambda m, said=said: f"{m[1]}\n{said}\n\n{m[2]}", text, flags=re.DOTALL)
        page.write_text(text, encoding="utf-8")


if __name__ == "__main__":
    write({"answer": answer(), "table": table(rows())})
