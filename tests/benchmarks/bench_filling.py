"""Time to find the bubbles of a schedule and to fill them; the target of the design is 10 ms for both."""

import pytest

from strategies.pipelining.filling import FrozenChain, fill_bubbles
from strategies.plans.bubbles import Bubble, find_bubbles


def chains(num_components: int, num_layers: int = 25) -> list[FrozenChain]:
    """Independent components of unlike layers, one of them extra long, about 3 ms each at local batch 32."""

    def forward_s(layer: int, local_batch: int) -> float:
        per_sample_s = 1e-3 if layer == 8 else 5e-5 + 1e-5 * ((7 * layer) % 11) / 1.1
        return 1e-4 + per_sample_s * local_batch

    return [
        FrozenChain(component, num_layers, (), lambda layer, batch, c=component: forward_s(layer, batch + c))
        for component in range(num_components)
    ]


def bubbles(num_bubbles: int, duration_s: float) -> list[Bubble]:
    """Bubbles of 1, 2, 3, 1, ... idle positions."""
    return [Bubble(index, index + duration_s, tuple(range(1 + index % 3))) for index in range(num_bubbles)]


@pytest.mark.parametrize("duration_s", [0.011, 0.04])
@pytest.mark.parametrize("partial", [False, True])
def test_two_components_in_sixty_bubbles(benchmark, duration_s, partial):
    benchmark(fill_bubbles, bubbles(60, duration_s), chains(2), 256, 4, 2, partial=partial)


@pytest.mark.parametrize("num_components", [4, 5, 6])
def test_many_ready_components_in_twenty_bubbles(benchmark, num_components):
    benchmark.pedantic(
        fill_bubbles,
        args=(bubbles(20, 0.05), chains(num_components), 256, 4, 2),
        kwargs={"partial": True},
        rounds=3,
    )


def test_bubbles_of_eight_positions_with_sixty_four_micro_batches(benchmark):
    busy = [
        [(position + 3.0 * index, position + 3.0 * index + 2.5) for index in range(128)]
        for position in range(8)
    ]
    benchmark(find_bubbles, busy, 400.0)


def test_bubbles_of_sixty_four_positions_with_five_hundred_and_twelve_micro_batches(benchmark):
    busy = [
        [(position + 3.0 * index, position + 3.0 * index + 2.5) for index in range(1024)]
        for position in range(64)
    ]
    benchmark.pedantic(find_bubbles, args=(busy, 3200.0), rounds=3)
