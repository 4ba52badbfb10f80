"""The text of actions and orders, there and back."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from notation import parse_action, parse_order

from profiles.errors import InputError
from profiles.machines.fabrics import OPERATIONS
from strategies.plans.actions import (
    CollectiveAction,
    FrozenAction,
    PatchAction,
    Piece,
    StageAction,
    format_order,
    format_torch,
)

counts = st.integers(0, 10**6)
any_action = st.one_of(
    st.builds(StageAction, counts, st.sampled_from("FBIWE"), counts),
    st.builds(lambda stage: StageAction(stage, "O"), counts),
    st.builds(FrozenAction, counts, counts, counts),
    st.builds(PatchAction, counts, counts, counts),
    st.builds(Piece, st.builds(PatchAction, counts, counts, counts), counts),
    st.builds(CollectiveAction, st.sampled_from(OPERATIONS), counts),
)


@pytest.mark.parametrize(
    ("text", "action"),
    [
        ("0F0", StageAction(0, "F", 0)),
        ("2B1", StageAction(2, "B", 1)),
        ("1I2", StageAction(1, "I", 2)),
        ("1W2", StageAction(1, "W", 2)),
        ("0E3", StageAction(0, "E", 3)),
        ("4O", StageAction(4, "O")),
        ("X1.4:32", FrozenAction(1, 4, 32)),
        ("2P1@7", PatchAction(2, 1, 7)),
        ("2P1@7.3", Piece(PatchAction(2, 1, 7), 3)),
        ("0F0.5", Piece(StageAction(0, "F", 0), 5)),
        ("all_to_all#12", CollectiveAction("all_to_all", 12)),
    ],
)
def test_each_kind_of_action_is_written_as_documented(text, action):
    assert parse_action(text) == action
    assert str(action) == text


@settings(derandomize=True)
@given(st.lists(st.lists(any_action, max_size=5), max_size=4))
def test_every_order_reads_back_exactly(rows):
    order = tuple(map(tuple, rows))
    assert parse_order(format_order(order)) == order


def test_torch_gets_forwards_and_backwards_alone():
    order = parse_order("X0.0:4 0F0 0B0 0O\n1F0 1I0 1W0 1O\n")
    assert format_torch(order) == "0F0,0B0\n1F0,1I0,1W0\n"


@pytest.mark.parametrize("text", ["0E0", "0P1@2"])
def test_torch_is_refused_what_it_has_no_word_for(text):
    with pytest.raises(InputError, match=r"has no counterpart in torch\.distributed\.pipelining"):
        format_torch(parse_order(text))
