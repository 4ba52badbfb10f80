"""Rounds of patches through a line of stages, against closed forms."""

from hypothesis import given
from hypothesis import strategies as st

from strategies.bounds.patch_rounds import least_seconds
from strategies.bounds.patch_ways import PatchPass

ONE_S = PatchPass(1.0, 1.0)


def test_the_whole_image_goes_through_one_stage_after_another():
    assert least_seconds([ONE_S] * 3, [], 4, 0) == 12.0


def test_as_many_patches_as_stages_leave_only_the_ramp_idle():
    stages, rounds = 4, 5
    assert (
        least_seconds([ONE_S] * stages, [[ONE_S] * stages] * stages, 0, rounds)
        == stages * rounds + stages - 1
    )


def test_fewer_patches_than_stages_wait_for_their_way_back():
    stages, rounds = 4, 5
    assert least_seconds([ONE_S] * stages, [[ONE_S] * stages] * 2, 0, rounds) == stages * rounds + 1


def test_patches_begin_when_the_whole_image_is_back():
    way = [ONE_S, ONE_S]
    assert least_seconds(way, [way], 3, 1) == least_seconds(way, [], 4, 0) == 8.0
    travelling = [PatchPass(1.0, 1.5), PatchPass(1.0, 3.0)]
    assert least_seconds(travelling, [way], 1, 1) == 1.5 + 3.0 + 2.0


def test_a_stage_that_waits_for_a_collective_delays_its_next_patch_but_not_the_stage_after_it():
    held = [PatchPass(3.0, 1.0), ONE_S]
    assert least_seconds(held, [held, held], 0, 1) == 3.0 + 3.0  # while stage 1 is done at 5
    assert least_seconds([PatchPass(3.0, 3.0), ONE_S], [[PatchPass(3.0, 3.0), ONE_S]] * 2, 0, 1) == 7.0


def test_a_stage_that_waits_for_the_last_message_is_late_and_one_that_is_busy_is_not():
    late = ONE_S._replace(late_s=0.25)
    assert least_seconds([ONE_S, late], [], 1, 0) == 2.25
    assert (
        least_seconds([late, ONE_S], [], 2, 0) == 4.25
    )  # not before the first round: nobody sends it anything
    busy = [[PatchPass(1.0, 1.0), PatchPass(3.0, 3.0, late_s=0.25)]] * 4
    assert least_seconds(busy[0], busy, 0, 1) == 1.0 + 0.25 + 4 * 3.0


def test_a_host_that_falls_behind_holds_up_a_long_run_once_its_lead_is_gone():
    whole, patch = PatchPass(5.0, 5.0, host_s=2.0), PatchPass(1.0, 1.0, host_s=2.0)
    led = 40 * (5 - 2)  # rounds of a patch, in each of which the host loses a second of its lead
    assert least_seconds([whole], [[patch]], 40, 200, ahead_s=1000.0) == 40 * 5.0 + led + (200 - led) * 2.0


def test_the_next_stage_has_a_patch_once_the_host_has_dispatched_it():
    dispatched = PatchPass(1.0, 1.0, host_s=5.0)
    assert least_seconds([dispatched, ONE_S], [], 1, 0) == 5.0 + 1.0


def test_one_stage_works_without_a_pause():
    assert least_seconds([ONE_S], [[PatchPass(0.25, 0.25)]] * 4, 2, 3) == 5.0


times = st.floats(0.1, 2.0)


@given(st.lists(st.lists(times, min_size=3, max_size=3), min_size=1, max_size=5), st.integers(1, 4))
def test_no_run_beats_its_busiest_stage_or_the_longest_way_of_a_patch(seconds, rounds):
    rows = [[PatchPass(s, s) for s in row] for row in seconds]
    least = least_seconds(rows[0], rows, 0, rounds)
    busiest = max(rounds * sum(row[stage] for row in seconds) for stage in range(3))
    longest = max(rounds * sum(row) for row in seconds)
    assert least >= max(busiest, longest) - 1e-9
    assert least <= rounds * sum(map(sum, seconds)) + 1e-9
