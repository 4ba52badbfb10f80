"""Bubbles against the closed form of 1F1B and against a sweep over a grid."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from strategies.plans.bubbles import Bubble, bubble_ratio, find_bubbles

Spans = list[tuple[float, float]]


def one_forward_one_backward(num_positions: int, num_micro_batches: int, forward_s: float, backward_s: float):
    """Compute spans of a 1F1B pipeline with equal stages and free links, and its makespan."""
    orders = []
    for position in range(num_positions):
        warm_up = min(num_positions - 1 - position, num_micro_batches)
        order = [("F", index) for index in range(warm_up)]
        for index in range(num_micro_batches):
            if warm_up + index < num_micro_batches:
                order.append(("F", warm_up + index))
            order.append(("B", index))
        orders.append(order)
    end_s: dict[tuple[str, int, int], float] = {}
    spans: list[Spans] = [[] for _ in range(num_positions)]
    while any(orders):
        for position, order in enumerate(orders):
            while order:
                kind, index = order[0]
                outer = position - 1 if kind == "F" else position + 1
                needed = (kind, outer, index) if 0 <= outer < num_positions else None
                if needed is not None and needed not in end_s:
                    break
                own_s = spans[position][-1][1] if spans[position] else 0.0
                start_s = max(own_s, end_s[needed] if needed else 0.0)
                end_s[kind, position, index] = start_s + (forward_s if kind == "F" else backward_s)
                spans[position].append((start_s, end_s[kind, position, index]))
                order.pop(0)
    return spans, max(end_s.values())


def grid_bubbles(busy: list[Spans], num_cells: int) -> list[Bubble]:
    """Bubbles of spans with integer bounds, cell by cell."""
    bubbles: list[Bubble] = []
    for cell in range(num_cells):
        idle = tuple(
            position
            for position, spans in enumerate(busy)
            if not any(start <= cell and cell + 1 <= end for start, end in spans)
        )
        if idle and bubbles and bubbles[-1].positions == idle and bubbles[-1].end_s == cell:
            bubbles[-1] = Bubble(bubbles[-1].start_s, cell + 1, idle)
        elif idle:
            bubbles.append(Bubble(cell, cell + 1, idle))
    return bubbles


@st.composite
def spans_on_a_grid(draw: st.DrawFn) -> Spans:
    bounds = sorted(draw(st.lists(st.integers(0, 12), max_size=10)))
    return [(float(start), float(end)) for start, end in zip(bounds[::2], bounds[1::2], strict=False)]


def test_bubbles_of_two_positions_are_cut_where_the_idle_set_changes():
    busy = [[(0.0, 1.0), (4.0, 6.0)], [(1.0, 3.0)]]
    assert find_bubbles(busy, 6.0) == [
        Bubble(0.0, 1.0, (1,)),
        Bubble(1.0, 3.0, (0,)),
        Bubble(3.0, 4.0, (0, 1)),
        Bubble(4.0, 6.0, (1,)),
    ]


def test_a_position_without_compute_is_idle_all_the_time():
    assert find_bubbles([[]], 2.0) == [Bubble(0.0, 2.0, (0,))]


def test_touching_spans_and_spans_of_length_zero_cut_nothing():
    busy = [[(0.0, 1.0), (1.0, 2.0)], [(1.5, 1.5)]]
    assert find_bubbles(busy, 2.0) == [Bubble(0.0, 2.0, (1,))]


def test_a_gap_of_the_size_of_a_rounding_error_does_not_cut_the_bubble_of_another_position():
    busy = [[(0.0, 0.1 + 0.2), (0.3, 1.0)], []]
    assert 0.1 + 0.2 != 0.3
    assert find_bubbles(busy, 1.0) == [Bubble(0.0, 1.0, (1,))]
    assert find_bubbles([[(0.0, 0.3), (0.1 + 0.2, 1.0)], []], 1.0) == [Bubble(0.0, 1.0, (1,))]


def test_spans_beyond_the_end_are_cut_off():
    assert find_bubbles([[(0.0, 3.0)], [(2.5, 4.0)]], 2.0) == [Bubble(0.0, 2.0, (1,))]


def test_the_first_bubble_of_a_1f1b_pipeline_leaves_all_but_the_first_position_idle():
    busy, end_s = one_forward_one_backward(4, 4, 1.0, 1.0)
    assert find_bubbles(busy, end_s)[0] == Bubble(0.0, 1.0, (1, 2, 3))


@pytest.mark.parametrize("num_micro_batches", [1, 4, 8])
@pytest.mark.parametrize(("forward_s", "backward_s"), [(1.0, 1.0), (1.0, 2.0)])
def test_idle_time_of_1f1b_is_the_closed_form(num_micro_batches, forward_s, backward_s):
    num_positions = 4
    busy, end_s = one_forward_one_backward(num_positions, num_micro_batches, forward_s, backward_s)
    bubbles = find_bubbles(busy, end_s)
    idle_s = sum(bubble.duration_s * len(bubble.positions) for bubble in bubbles)
    assert idle_s == (num_positions - 1) * (forward_s + backward_s) * num_positions
    assert bubble_ratio(bubbles, end_s, num_positions) == (num_positions - 1) / (
        num_micro_batches + num_positions - 1
    )


def test_rounding_in_a_1f1b_pipeline_changes_no_bubble():
    exact, end_s = one_forward_one_backward(4, 16, 1.0, 2.0)
    rounded, rounded_end_s = one_forward_one_backward(4, 16, 0.1, 0.2)
    expected = find_bubbles(exact, end_s)
    found = find_bubbles(rounded, rounded_end_s)
    assert [bubble.positions for bubble in found] == [bubble.positions for bubble in expected]
    assert [bubble.start_s for bubble in found] == pytest.approx([bubble.start_s / 10 for bubble in expected])


def test_a_timeline_without_idle_time_has_the_ratio_zero():
    bubbles = find_bubbles([[(0.0, 2.0)], [(0.0, 2.0)]], 2.0)
    assert bubbles == []
    assert bubble_ratio(bubbles, 2.0, 2) == 0.0


@settings(derandomize=True)
@given(st.lists(spans_on_a_grid(), min_size=1, max_size=4), st.sampled_from([1.0, 0.125, 4096.0]))
def test_bubbles_equal_a_sweep_over_the_grid(busy, cell_s):
    scaled = [[(start * cell_s, end * cell_s) for start, end in spans] for spans in busy]
    expected = [
        Bubble(bubble.start_s * cell_s, bubble.end_s * cell_s, bubble.positions)
        for bubble in grid_bubbles(busy, 12)
    ]
    assert find_bubbles(scaled, 12 * cell_s) == expected


@settings(derandomize=True)
@given(st.lists(spans_on_a_grid(), min_size=1, max_size=4))
def test_idle_and_busy_time_fill_the_timeline(busy):
    bubbles = find_bubbles(busy, 12.0)
    busy_s = sum(end - start for spans in busy for start, end in spans)
    assert bubble_ratio(bubbles, 12.0, len(busy)) * 12.0 * len(busy) == pytest.approx(
        12.0 * len(busy) - busy_s
    )
