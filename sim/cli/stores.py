"""What is done with stores and results that are there: ``sim compare`` and ``sim merge``."""

import argparse
import json
import sys

from profiles.outputs import check_new
from sim.explore.store import StoreFile
from sim.report.comparisons import compare
from sim.report.tables import console


def compare_command(options: argparse.Namespace) -> int:
    """Print what changed between two files."""
    found = compare(options.before, options.after, question=options.question or ())
    if options.json:
        print(json.dumps(found.to_json(), allow_nan=False))
    else:
        found.show(console())
    return 0


def merge_command(options: argparse.Namespace) -> int:
    """Make one store of several."""
    check_new(options.out)
    for path in options.stores:
        with StoreFile(path, reads=True) as store:
            store.check()  # before anything is made
    with StoreFile(options.out) as store:
        for path in options.stores:
            print(f"sim: {store.merge(path)} answers from {path}", file=sys.stderr)
        questions = len(list(store.questions()))
    print(f"{options.out}: answers to {questions} question{'s' if questions > 1 else ''}")
    return 0
