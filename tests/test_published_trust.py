"""What is shipped as trust: independent numbers alone, grouped by kind, as the command writes them."""

from dataclasses import replace

import pytest

from profiles.costs.trust import read_trust
from validate.published.bands import errors, trusts, write_trust
from validate.published.ledger import Ledger
from validate.published.records import Conditions, Record, Standing, all_published

A100, L20 = "a100-80gb-sxm", "l20-48gb"


def latency(predicted, device=A100, kind="sequence", standing=Standing.INDEPENDENT):
    row = replace(all_published()[0], task="sample", quantity="latency_s", value=2.0)
    reason = "" if standing is Standing.INDEPENDENT else "why"
    return Record(row, predicted, standing, reason, conditions=Conditions(device, "eager", kind))


def test_errors_are_of_independent_times_alone():
    records = [latency(2.2), latency(1.0, standing=Standing.IN_VIEW), latency(9.0, standing=Standing.FITTED)]
    (found,) = errors(records)
    assert (found.task, found.family, found.kind) == ("sample", "measured", "sequence")
    assert found.error == pytest.approx(0.1)


def test_kinds_and_families_are_told_apart_and_other_strategies_left_out():
    records = [latency(2.2), latency(1.6), latency(3.0, device=L20), latency(3.0, kind="other")]
    derived, measured = trusts(records)
    assert (measured.numbers, measured.median_error, measured.worst_error) == (
        2,
        pytest.approx(0.15),
        pytest.approx(0.2),
    )
    assert (derived.family, derived.numbers) == ("derived", 1)
    assert measured.strategies == ("ulysses", "ring", "usp"), "no row is of Attention2D"


def test_what_is_written_is_read(tmp_path):
    ledger = Ledger((latency(2.2), latency(3.0, device=L20)))
    write_trust(tmp_path / "trust.csv", ledger)
    found = read_trust(tmp_path / "trust.csv")
    assert [(one.family, round(one.median_error, 4)) for one in found] == [
        ("derived", 0.5),
        ("measured", 0.1),
    ]
