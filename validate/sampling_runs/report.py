"""What the command prints of a run: image, bytes and ages beside what they should be."""

from collections.abc import Iterator

from rich.console import Console
from rich.table import Table

from profiles.errors import DiffusimError
from validate.sampling_runs.comparison import SAME, Comparison
from validate.sampling_runs.launch import launched, run_all, run_as_rank
from validate.sampling_runs.settings import HIDDEN, LAYERS, ROWS, Settings


class ComparisonError(DiffusimError):
    """A run is not what it should have been."""


def report_sample(settings: Settings) -> None:
    """Run settings, print the comparison.

    Raises:
        ComparisonError: something differs.
    """
    outcomes = run_as_rank(settings) if launched() else run_all([settings])[0]
    if outcomes is None:
        return  # another rank speaks for all
    comparison = Comparison(settings, outcomes)
    console = Console(width=120)
    for table in (image_table(comparison), byte_table(comparison)):
        console.print(table)
    for line in age_lines(comparison):
        print(line)
    failures = comparison.failures()
    for failure in failures:
        print(f"fails: {failure}")
    if failures:
        raise ComparisonError(f"sample: {len(failures)} checks failed, the first: {failures[0]}")
    print("all checks hold")


def image_table(comparison: Comparison) -> Table:
    """Return how far the image is from those of one process."""
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
    """Return the bytes of each step that were sent and that are simulated."""
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
    """Yield for each patch of a displaced step how many steps old the keys and values were that it saw."""
    settings, shown = comparison.settings, set()
    for outcome in comparison.outcomes:
        for seen in outcome.seen:
            if seen.step >= settings.warmup_steps and (seen.patch, seen.ages) not in shown:
                shown.add((seen.patch, seen.ages))
                first_rows = [settings.patch_rows(patch).start for patch in range(settings.num_patches)]
                ages = " ".join(str(seen.ages[row]) for row in first_rows)
                yield f"patch {seen.patch} of a displaced step sees patches that are {ages} steps old"
