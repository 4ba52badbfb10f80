"""Sharing: which groups take turns, and how long that takes at least."""

from strategies.bounds.sharing import in_turn_s, joined_by_others

TRIANGLE = [{1: 2.0, 2: 2.0}, {2: 3.0, 3: 1.0}, {3: 4.0, 1: 4.0}, {4: 9.0}, {1: 5.0}]
"""Each two of the first three share another port; the last one shares one with the first and the third."""


def test_who_shares_some_port_with_each_takes_turns_with_all():
    assert joined_by_others([0, 1], TRIANGLE) == (0, 1, 2)
    assert joined_by_others([0, 2, 4], TRIANGLE) == (0, 2, 4)
    assert joined_by_others([3], TRIANGLE) == (3,)


def test_each_keeps_the_others_waiting_for_as_long_as_it_holds_what_they_share():
    assert in_turn_s((0, 1, 2), TRIANGLE) == 2.0 + 1.0 + 4.0
    assert in_turn_s((0, 2, 4), TRIANGLE) == 2.0 + 4.0 + 5.0


def test_of_several_ports_that_two_share_the_one_held_longest_counts():
    assert in_turn_s((0, 1), [{1: 2.0, 2: 3.0}, {1: 5.0, 2: 4.0}]) == 3.0 + 5.0


def test_who_shares_nothing_with_one_of_them_keeps_nobody_waiting():
    assert in_turn_s((0, 3), TRIANGLE) == 0.0
