"""Time to find the bubbles of a schedule and to fill them; the target of the design is 10 ms for both."""

import pytest

from strategies.pipelining.filling import FrozenChain, fill_bubbles
from strategies.plans.bubbles import Bubble


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
