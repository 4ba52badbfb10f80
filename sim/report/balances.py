"""Mixed shapes in words: the verdict, the ways of mixing them, and each shape alone."""

from profiles.errors import counted
from profiles.units import GIB
from sim.explore.balance import Balance
from sim.report.blocks import Block, Column, Panel, Table
from sim.report.words import band, milliseconds


def balance_blocks(balance: Balance) -> list[Block]:
    """Return what a mixture of shapes costs and what evens it out, best first below the verdict."""
    drawn, result = balance.ways[0], balance.results[0]
    best = max(balance.ways, key=lambda way: way.samples_per_s)
    at_random = f"ranks wait {drawn.waiting:.0%} of the time for the slowest, where each draws any shape"
    gain = f"{best.name}: {best.samples_per_s / drawn.samples_per_s:.2f} x the samples/s of {drawn.name}; {best.does}"
    lines = [("mixture", at_random), ("best", gain if best is not drawn else "none of these ways is faster")]
    slowest = max(balance.results, key=lambda result: result.iteration_s)
    lines.append(("error", f"of the slowest shape's iteration: {band(slowest)} ms"))
    where = f"{result.cluster}, {counted(balance.ranks, 'rank')}, stack {result.stack}"
    columns = [
        Column("way", words=True),
        *map(Column, ("iteration", "samples", "samples/s", "waiting")),
        Column("what it does", 1, words=True, widest=50),
    ]
    ways = [
        (
            way.name,
            milliseconds(way.iteration_s),
            f"{way.samples:,.4g}",
            f"{way.samples_per_s:,.4g}",
            f"{way.waiting:.0%}",
            way.does,
        )
        for way in sorted(balance.ways, key=lambda way: -way.samples_per_s)
    ]
    heads = [Column("shape", words=True), *map(Column, ("share", "batch", "iteration", "memory"))]
    alone = [
        (
            shape.words,
            f"{shape.share:.0%}",
            str(shape.batch),
            milliseconds(result.iteration_s),
            f"{result.peak_memory_bytes / GIB:.1f} GiB",
        )
        for shape, result in zip(balance.shapes, balance.results, strict=True)
    ]
    return [
        Panel(f"{result.model} by {result.strategy} on {where}", lines),
        Table("ways of giving samples to ranks, means of iterations", columns, ways),
        Table("each shape alone, on all ranks", heads, alone),
    ]
