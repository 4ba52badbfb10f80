"""What is done with stores and results that are there: ``sim compare`` and ``sim merge``."""

import argparse
import json
import sys
from collections.abc import Sequence
from typing import Final

from rich.table import Table

from profiles.errors import InputError
from profiles.files import path_kind
from sim.explore.comparison import Comparison, compare
from sim.explore.records import CODE, Recorded
from sim.explore.store import StoreFile
from sim.report.tables import console

SHOWN: Final = 10
"""Points that are listed of those that moved."""


def compare_command(options: argparse.Namespace) -> int:
    """Print what changed between two files."""
    found, before, after = compare(options.before, options.after, options.question or ())
    if options.json:
        compared = [one.to_json() for one in found]
        told = {"compared": compared, "only_before": before, "only_after": after}
        print(json.dumps(told, allow_nan=False))
        return 0
    for one in found:
        _print(one)
    for path, alone in ((options.before, before), (options.after, after)):
        for words in alone:
            print(f"only in {path}: {words}")
    return 0


def _print(one: Comparison) -> None:
    screen, moved = console(), one.moved
    screen.print(one.words, soft_wrap=True)
    for line in _reasons(one):
        screen.print(f"  {line}", soft_wrap=True)
    screen.print(f"  best: {_winner(one)}", soft_wrap=True)
    turned = "".join(f", {count} {words}" for words, count in one.turned.items())
    screen.print(
        f"  points simulated in both: {one.same} as they were, {len(moved)} moved{turned}", soft_wrap=True
    )
    if one.unlisted:
        said = "of the store have no row, such as those with the result of another"
        screen.print(f"  points: {one.unlisted} {said}", soft_wrap=True)
    if moved:
        table = Table(
            "point", "before", "after", "change", "rank", title=f"largest {min(SHOWN, len(moved))} changes"
        )
        for point in moved[:SHOWN]:
            ranks = " -> ".join(map(str, dict.fromkeys(point.ranks)))
            times = f"{point.before_s:.6g} s", f"{point.after_s:.6g} s"
            table.add_row(str(point.key), *times, f"{point.change:+.2%}", ranks)
        screen.print(table)


def _reasons(one: Comparison) -> Sequence[str]:
    """What differs between the two, in words."""
    differing = one.differing
    lines = [f"{key}: {before or 'none'} -> {after or 'none'}" for key, (before, after) in differing.items()]
    if "model" in differing:
        return ["two models are compared:", *lines]
    if lines:
        return lines
    hashed = (one.before.inputs.keys() & one.after.inputs.keys()) - {CODE}
    if not hashed:
        return ["asked the same; which inputs differ is not known: one of the two has no hashes of them"]
    if not one.moved:
        return ["the same is asked, of the same inputs"]
    return ["the same is asked, of the same inputs: the code that simulated differs"]


def _winner(one: Comparison) -> str:
    before, after = (_best(record) for record in (one.before, one.after))
    return before if before == after else f"{before} -> {after}"


def _best(record: Recorded) -> str:
    key = record.winner
    return "none" if key is None else f"{key} ({record.points[key].seconds:.6g} s)"


def merge_command(options: argparse.Namespace) -> int:
    """Make one store of several."""
    if path_kind(options.out) != "nothing":
        raise InputError(f"{options.out}: is there already, must be a new file")
    for path in options.stores:
        with StoreFile(path, reads=True) as store:
            store.check_whole()  # before anything is made
    with StoreFile(options.out) as store:
        for path in options.stores:
            print(f"sim: {store.merge(path)} answers from {path}", file=sys.stderr)
        questions = len(list(store.questions()))
    print(f"{options.out}: answers to {questions} question{'s' if questions > 1 else ''}")
    return 0
