"""The summary: all published numbers by source, by source and method, and why some of them judge nothing."""

import csv
from collections.abc import Callable, Iterator, Sequence
from io import StringIO
from math import inf
from pathlib import Path
from statistics import median
from typing import Final

from profiles.errors import InputError
from profiles.units import GIB
from validate.published.accounts import ABOUT, Account, Standing, source_names
from validate.published.rows import Section, percent
from validate.published.sampling_sections import NEAR
from validate.writing import write_file

COUNTED: Final = (
    "numbers",
    "predicted",
    "judged",
    "median error",
    "worst error",
    f"within {NEAR:.0%}",
    "fitted",
    "apart",
    "not covered",
)
REMARK: Final = (
    "Each number stands in one of the columns judged, fitted, apart and not covered. Errors, simulated over published"
    " less one, are of judged numbers alone; the median is of absolute values. Fitted: a rate, a link, a constant or"
    " the way to count was set by the number, or with it in view. Apart: predicted, but a bound, a zero, seconds of a"
    " solver, memory that ran out, or printed before."
)
COLUMNS: Final = (
    "task",
    "source",
    "item",
    *ABOUT,
    "quantity",
    "published",
    "predicted",
    "error",
    "standing",
    "reason",
    "provenance",
    "setting",
    "predicted_memory_GiB",
    "miss",
)


def print_summary(accounts: Sequence[Account]) -> None:
    """Print the summary as Markdown."""
    for section in summary(accounts):
        print(section.markdown(), end="\n\n", flush=True)


def summary(accounts: Sequence[Account]) -> list[Section]:
    """Return the tables of the summary."""
    return [by_source_and_method(accounts), not_judged(accounts), by_source(accounts)]


def by_source(accounts: Sequence[Account]) -> Section:
    """Return one line per source."""
    rows = [[name, *_counts(group)] for name, group in _grouped(accounts, lambda one: one.name)]
    return Section(f"By source: {len(accounts)} published numbers", ("source", *COUNTED), rows, REMARK)


def by_source_and_method(accounts: Sequence[Account]) -> Section:
    """Return one line per source and method; where it is no latency, with what was measured."""
    rows = [
        [name if not number else "", method, *_counts(methods)]
        for name, group in _grouped(accounts, lambda one: one.name)
        for number, (method, methods) in enumerate(_grouped(group, _method))
    ]
    title = f"By source and method: {len(accounts)} published numbers"
    return Section(title, ("source", "method", *COUNTED), rows)


def _method(account: Account) -> str:
    return account.method


def _grouped(
    accounts: Sequence[Account], key: Callable[[Account], str]
) -> Iterator[tuple[str, Sequence[Account]]]:
    """Yield groups: sources in the order of their list, others by name."""
    groups: dict[str, list[Account]] = {}
    for one in accounts:
        groups.setdefault(key(one), []).append(one)
    order = {name: number for number, name in enumerate(source_names())}
    for name in sorted(groups, key=lambda name: (order.get(name, inf), name)):
        yield name, groups[name]


def _counts(accounts: Sequence[Account]) -> list[str]:
    numbers = {standing: sum(one.standing is standing for one in accounts) for standing in Standing}
    errors = judged_errors(accounts)
    near = sum(abs(error) <= NEAR for error in errors)
    said = ["-", "-", "-"]
    if errors:
        said = [percent(median(map(abs, errors))), f"{max(errors, key=abs):+.1%}", f"{near}"]
    return [
        f"{len(accounts)}",
        f"{len(accounts) - numbers[Standing.UNCOVERED]}",
        f"{numbers[Standing.JUDGED]}",
        *said,
        *(f"{numbers[one]}" for one in (Standing.FITTED, Standing.APART, Standing.UNCOVERED)),
    ]


def judged_errors(accounts: Sequence[Account]) -> list[float]:
    """Return the errors of the judged numbers."""
    return [one.error for one in accounts if one.standing is Standing.JUDGED and one.error is not None]


def not_judged(accounts: Sequence[Account]) -> Section:
    """Return why numbers judge nothing: how many, and which."""
    groups: dict[tuple[str, str], list[Account]] = {}
    for one in accounts:
        if one.standing is not Standing.JUDGED:
            groups.setdefault((one.standing, kind(one.reason)), []).append(one)
    order = list(Standing)
    rows = [
        [standing, why, f"{len(group)}", "; ".join(dict.fromkeys(map(_which, group)))]
        for (standing, why), group in sorted(
            groups.items(), key=lambda item: (order.index(Standing(item[0][0])), -len(item[1]), item[0][1])
        )
    ]
    left = sum(len(group) for group in groups.values())
    header = ("", "why", "numbers", "which")
    return Section(f"Not judged: {left} of {len(accounts)} numbers", header, rows)


def kind(reason: str) -> str:
    """Return a reason without the thing that is missing."""
    return reason.partition(" of ")[0] if reason.startswith("no ") else reason


def _which(account: Account) -> str:
    missing = account.reason.removeprefix(kind(account.reason)).removeprefix(" of ")
    return missing or account.name


def write_accounts(accounts: Sequence[Account], path: Path | None) -> None:
    """Write one line per published number if a file is given.

    Raises:
        InputError: the file cannot be written.
    """
    if path is None:
        return
    text = StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(COLUMNS)
    writer.writerows(map(_cells, accounts))
    write_file(path, text.getvalue())


def check_output(path: Path | None) -> None:
    """Refuse a file that could not be written at the end.

    Raises:
        InputError: it is a folder, or its folder is missing.
    """
    if path is not None and (path.is_dir() or not path.parent.is_dir()):
        raise InputError(f"--output is '{path}', must be a file in a folder that exists")


def _cells(one: Account) -> list[str]:
    return [
        one.task,
        one.source,
        one.item,
        *one.about,
        one.quantity,
        _number(one.published),
        _number(one.predicted),
        "" if one.error is None else f"{one.error:.4f}",
        one.standing,
        one.reason,
        one.provenance,
        one.setting,
        "" if one.memory_bytes is None else f"{one.memory_bytes / GIB:.2f}",
        one.miss,
    ]


def _number(value: float | None) -> str:
    if value is None:
        return ""
    return "OOM" if value == inf else f"{value:.6g}"
