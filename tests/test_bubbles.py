"""Bubbles against a sweep over a grid."""

from hypothesis import given, settings
from hypothesis import strategies as st

from strategies.plans.bubbles import Bubble, find_bubbles

Spans = list[tuple[float, float]]


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


def test_a_gap_of_the_size_of_a_rounding_error_does_not_cut_the_bubble_of_another_position():
    busy = [[(0.0, 0.1 + 0.2), (0.3, 1.0)], []]
    assert 0.1 + 0.2 != 0.3
    assert find_bubbles(busy, 1.0) == [Bubble(0.0, 1.0, (1,))]
    assert find_bubbles([[(0.0, 0.3), (0.1 + 0.2, 1.0)], []], 1.0) == [Bubble(0.0, 1.0, (1,))]


@settings(derandomize=True)
@given(st.lists(spans_on_a_grid(), min_size=1, max_size=4), st.sampled_from([1.0, 0.125, 4096.0]))
def test_bubbles_equal_a_sweep_over_the_grid(busy, cell_s):
    scaled = [[(start * cell_s, end * cell_s) for start, end in spans] for spans in busy]
    expected = [Bubble(of.start_s * cell_s, of.end_s * cell_s, of.positions) for of in grid_bubbles(busy, 12)]
    assert find_bubbles(scaled, 12 * cell_s) == expected
