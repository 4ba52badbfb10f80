"""Mixed shapes in words: the verdict, the ways of mixing them, and each shape alone."""

from profiles.errors import counted
from profiles.units import GIB
from sim.explore.balance import Balance
from sim.report.blocks import Block, Column, Panel, Table
from sim.report.numbers import band, milliseconds


def balance_blocks(balance: Balance) -> list[Block]:
    """Return what a mixture of shapes costs and what evens it out, best first below the verdict."""
    drawn, result = balance.ways[0], balance.results[0]
    best = max(balance.ways, key=lambda way: way.samples_per_s)
    at_random = f"ranks wait {drawn.waiting:.0%} of the time for the slowest, where each draws any shape"
    gain = f"{best.name}: {best.samples_per_s / drawn.samples_per_s:.2f} x the samples/s of {drawn.name}; {best.does}"
    lines = [("mixture", at_random), ("best", gain if best is not drawn else "none of these ways is faster")]
    slowest = max(balance.results, key=lambda of: of.iteration_s)
    lines.append(("error", f"of the slowest shape's iteration: {band(slowest)} ms"))
    where = f"{result.cluster}, {counted(balance.ranks, 'rank')}, stack {result.stack}"
    ways = sorted(balance.ways, key=lambda way: -way.samples_per_s)
    columns = [
        Column("way", [of.name for of in ways], words=True),
        Column("iteration", [milliseconds(of.iteration_s) for of in ways]),
        Column("samples", [f"{of.samples:,.4g}" for of in ways]),
        Column("samples/s", [f"{of.samples_per_s:,.4g}" for of in ways]),
        Column("waiting", [f"{of.waiting:.0%}" for of in ways]),
        Column("what it does", [of.does for of in ways], 1, words=True, widest=50),
    ]
    alone = [
        Column("shape", [of.words for of in balance.shapes], words=True),
        Column("share", [f"{of.share:.0%}" for of in balance.shapes]),
        Column("batch", [str(of.batch) for of in balance.shapes]),
        Column("iteration", [milliseconds(of.iteration_s) for of in balance.results]),
        Column("memory", [f"{of.peak_memory_bytes / GIB:.1f} GiB" for of in balance.results]),
    ]
    return [
        Panel(f"{result.model} by {result.strategy} on {where}", lines),
        Table("ways of giving samples to ranks, means of iterations", columns),
        Table("each shape alone, on all ranks", alone),
    ]
