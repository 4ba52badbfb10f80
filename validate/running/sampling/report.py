"""What the command prints of a run: image, bytes and ages beside what they should be."""

from collections.abc import Iterator

from rich.console import Console
from rich.table import Table

from profiles.errors import DiffusimError
from validate.running.comparison import compare
from validate.running.rank import run_job
from validate.running.sampling.comparison import ROUNDING, SAME, Comparison
from validate.running.sampling.faults import job_of
from validate.running.sampling.settings import HIDDEN, LAYERS, ROWS, Settings


class ComparisonError(DiffusimError):
    """A run is not what it should have been."""


def report_sample(settings: Settings) -> None:
    """Run settings, print the comparison."""
    found = run_job(lambda: job_of(settings), settings.device, "sample")
    if found is None:
        return  # another rank speaks for all
    comparison = Comparison(settings, found[1].found)
    console = Console(width=120)
    for table in (image_table(comparison), byte_table(comparison)):
        console.print(table)
    for line in age_lines(comparison):
        print(line)
    mismatch = compare(*found).mismatch
    print(f"order: engine and executor agree on all but {mismatch:.0e} of the time")
    failures = comparison.failures()
    if mismatch > ROUNDING:
        failures.append(f"the order is not that of the simulation: {mismatch:.2g} of the time")
    for failure in failures:
        print(f"fails: {failure}")
    if failures:
        raise ComparisonError(f"sample: {len(failures)} checks failed, the first: {failures[0]}")
    print("all checks hold")


def image_table(comparison: Comparison) -> Table:
    """How far the image is from those of one process."""
    settings = comparison.settings
    given = "".join(f", {name} {value}" for name, value in settings.parameters)
    table = Table(
        caption=None if settings.exact else "allowed: what patches make that never see one another",
        caption_justify="left",
        title=f"{settings.strategy} on {settings.ranks} ranks, {settings.steps} steps{given}; a transformer of"
        f" {LAYERS} blocks, hidden size {HIDDEN}, {ROWS} x {ROWS} tokens, float32 on {settings.device}",
        title_justify="left",
        min_width=100,
    )
    for column in ("image beside that of", "relative difference", "allowed"):
        table.add_column(column, justify="left" if column.startswith("image") else "right")
    table.add_row("one device", f"{comparison.error:.2e}", f"{comparison.allowed:.2g}")
    if not settings.exact:
        table.add_row("the same patches in one process", f"{comparison.displaced_error:.2e}", f"{SAME:g}")
    return table


def byte_table(comparison: Comparison) -> Table:
    """The bytes of each step that were sent and that are simulated."""
    table = Table(
        title="bytes that all ranks sent; latents count to the step they begin",
        caption="counted from the tensors of the passes; collectives are carried out as point-to-point messages",
        caption_justify="left",
        min_width=64,
        title_justify="left",
    )
    for column in ("step", "sent", "simulated, in float32"):
        table.add_column(column, justify="right")
    for step, (sent, simulated) in enumerate(
        zip(comparison.sent_bytes, comparison.simulated_bytes, strict=True)
    ):
        table.add_row(str(step), f"{sent:,}", f"{simulated:,.0f}")
    table.add_row("all", f"{sum(comparison.sent_bytes):,}", f"{sum(comparison.simulated_bytes):,.0f}")
    return table


def age_lines(comparison: Comparison) -> Iterator[str]:
    """Lines that say of each patch of a displaced step how many steps old the keys and values were that it saw."""
    seen = [seen for own in comparison.drawn for seen in own.seen]
    displaced = [one for one in seen if one.step >= comparison.settings.warmup_steps]
    for patch, ages in sorted({(one.patch, one.ages) for one in displaced}):
        yield f"patch {patch} of a displaced step sees patches that are {' '.join(map(str, ages))} steps old"
