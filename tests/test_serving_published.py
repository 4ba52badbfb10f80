"""Published servers under load, and real ones."""

from statistics import median

import numpy as np
import pytest

from validate.serving import live, mlperf, systems

RUNS = list(mlperf.read_runs())


def test_the_seed_of_a_round_gives_the_printed_rates_of_arrivals():
    arrived = [run.arrived().trace.arrival_s for run in RUNS]
    rates = [len(of) / of[-1] for of in arrived]
    assert rates == pytest.approx([run.scheduled_per_s for run in RUNS], abs=0.0101)


def test_server_runs_below_capacity_are_predicted_from_offline_rates():
    quiet = [run for run in RUNS if run.load < mlperf.HIGH and not run.apart]
    errors = [run.percentiles_s(run.arrived()) / np.array(run.measured_s) - 1 for run in quiet]
    assert len(quiet) == 4
    assert median(np.abs(errors).ravel()) < 0.03


def test_serial_requests_lie_inside_the_draws_of_their_mix_and_near_the_one_that_was_run():
    (serial,) = (of for of in systems.served() if of.what == "makespan")
    drawn = systems.drawn(serial.place)
    assert serial.predicted() == pytest.approx(2087.1, abs=0.1)
    was = list(systems.SERIAL.values())
    assert drawn[systems.SEED] == pytest.approx(was, rel=0.06)
    assert ((drawn.min(axis=0) < was) & (was < drawn.max(axis=0))).all()


@pytest.mark.timed
def test_real_workers_behind_a_real_queue_answer_as_replayed():
    (row,) = live.compare("sleep", 20, 2, (0.7,))
    assert max(abs(float(row[at].rstrip("%"))) for at in (5, 8)) < 5
