"""Bubble filling: which layers of the frozen components run in which pipeline bubble.

Bubbles are filled one after the other in chronological order. Into each goes the candidate with the longest
execution time: some whole layers of every ready component, data-parallel over the idle devices, and at most
one layer on a part of the batch. What no bubble could take runs after the pipeline.

Source: DiffusionPipe, section 5 with algorithms 1 and 2; appendix B for layers spread over several bubbles.
"""

from bisect import bisect_right
from collections.abc import Callable, Iterator, Sequence
from functools import cache
from itertools import islice
from math import inf
from typing import NamedTuple

from strategies.plans.bubbles import Bubble
from strategies.plans.plan import FilledLayer

# Regular values, which kernels run well at; below 4 the handling of inputs and outputs would not be repaid.
# Source: DiffusionPipe, section 5 (principles of getValidNumSamples).
LOCAL_BATCHES = (4, 8, 12, 16, 24, 32, 48, 64, 96)

# Setting up inputs and outputs costs nearly as much. Source: DiffusionPipe, section 5, footnote 3.
MIN_BUBBLE_S = 0.010

# A bubble with less than this left idle counts as full: it is shorter than the launch of any kernel.
RESOLUTION_S = 1e-6

# Four ready components of 25 layers have at most 26**3 candidates; beyond this many the best so far is taken.
MAX_CANDIDATES = 20_000


class FrozenChain(NamedTuple):
    """A frozen component, the frozen ones that it waits for, and seconds of (layer, local batch) on one device."""

    component: int
    num_layers: int
    inputs: tuple[int, ...]
    forward_s: Callable[[int, int], float]


def fill_bubbles(
    bubbles: Sequence[Bubble],
    chains: Sequence[FrozenChain],
    batch_size: int,
    num_positions: int,
    replicas: int,
    *,
    partial: bool,
) -> list[FilledLayer]:
    """Return the layers of the frozen components for one batch in execution order: bubble by bubble, then the rest.

    Greedy over the bubbles, as published; see ``_longest`` for how far the choice within one bubble is exact.

    Inputs come before the components that need them. With ``partial`` a bubble may also take one layer on a part of the
    batch of a pipeline group, each of whose positions has so many replicas.
    """
    work = [_Progress(chain, batch_size) for chain in chains]
    filled: list[FilledLayer] = []
    for bubble in bubbles:
        if bubble.duration_s >= MIN_BUBBLE_S:
            place = _Place(bubble, bubble.positions, len(bubble.positions) * replicas)
            filled += _fill_bubble(work, place, bubble.duration_s, partial)
    everywhere = _Place(None, tuple(range(num_positions)), num_positions * replicas)
    for progress in work:
        filled += progress.take_layers(progress.layers_left, everywhere)
    return filled


class _Place(NamedTuple):
    """A place for layers: a bubble (None: after the pipeline), its positions, and the devices at those."""

    bubble: Bubble | None
    positions: tuple[int, ...]
    devices: int


class _Progress:
    """The progress of one component: its next layer, and the samples that layer has yet to see."""

    def __init__(self, chain: FrozenChain, batch_size: int) -> None:
        self.chain, self.batch_size = chain, batch_size
        self.next_layer, self.samples_left = 0, batch_size
        self.forward_s = cache(chain.forward_s)
        self.partial_options = cache(self._partial_options)

    @property
    def layers_left(self) -> int:
        """Layers that have not seen the whole batch."""
        return self.chain.num_layers - self.next_layer

    def samples_of(self, layer: int) -> int:
        """Samples that ``layer`` has yet to see."""
        return self.samples_left if layer == self.next_layer else self.batch_size

    def prefix_times(self, time_s: float, devices: int) -> list[float]:
        """Times of the next 0, 1, 2, ... layers on all their remaining samples, as many as fit ``time_s``."""
        times = [0.0]
        for layer in range(self.next_layer, self.chain.num_layers):
            total_s = times[-1] + self.forward_s(layer, -(-self.samples_of(layer) // devices))
            if total_s > time_s:
                break
            times.append(total_s)
        return times

    def _partial_options(self, layer: int, samples: int, devices: int) -> list[tuple[float, int]]:
        """Durations, ascending, and local batches that process fewer than ``samples`` of ``layer``.

        A local batch that a larger one matches in time is left out, even where measured times fall with the batch.
        """
        options: list[tuple[float, int]] = []
        for local_batch in reversed(LOCAL_BATCHES if layer < self.chain.num_layers else ()):
            duration_s = self.forward_s(layer, local_batch) if local_batch * devices < samples else inf
            if duration_s < (options[0][0] if options else inf):
                options.insert(0, (duration_s, local_batch))
        return options

    def take_layers(self, num_layers: int, place: _Place) -> list[FilledLayer]:
        """Place the next layers on all their remaining samples."""
        return [self.take_samples(self.samples_left, place) for _ in range(num_layers)]

    def take_samples(self, samples: int, place: _Place) -> FilledLayer:
        """Place the next layer on some of its remaining samples."""
        layer = self.next_layer
        self.samples_left -= samples
        if self.samples_left == 0:
            self.next_layer += 1
            self.samples_left = self.batch_size
        duration_s = self.forward_s(layer, -(-samples // place.devices))
        return FilledLayer(place.bubble, self.chain.component, layer, samples, place.positions, duration_s)


def _fill_bubble(work: Sequence[_Progress], place: _Place, time_s: float, partial: bool) -> list[FilledLayer]:
    """Fill one bubble with the ready components, then with those that became ready by it.

    Components of an earlier round cannot add to a later one: what still fitted would have made a longer candidate.
    The bubble takes one partial-batch layer in all.
    """
    filled: list[FilledLayer] = []
    seen: set[int] = set()
    while True:
        complete = {progress.chain.component for progress in work if not progress.layers_left}
        due = [progress for progress in work if progress.layers_left and progress.chain.component not in seen]
        if not (ready := [progress for progress in due if complete.issuperset(progress.chain.inputs)]):
            return filled
        seen.update(progress.chain.component for progress in ready)
        time_s, counts, part = _longest(ready, time_s, place.devices, partial)
        for progress, num_layers in zip(ready, counts, strict=True):
            filled += progress.take_layers(num_layers, place)
        if part is not None:
            progress, local_batch = part
            filled.append(progress.take_samples(local_batch * place.devices, place))
            partial = False


class _Candidate(NamedTuple):
    """Seconds left idle by full-batch layers of each ready component and perhaps a partial one, on a local batch."""

    idle_s: float
    counts: tuple[int, ...]
    part: tuple[_Progress, int] | None


def _longest(ready: Sequence[_Progress], time_s: float, devices: int, partial: bool) -> _Candidate:
    """Return the candidate that leaves the least of one bubble idle.

    Every candidate gets the partial-batch layer on the spot, so that only the best is ever held. Of equals the first
    stays: more layers of earlier components, then no partial layer, then that of the earlier component.

    The walk ends early when less than RESOLUTION_S is left idle, or when a candidate takes all that is left
    of the ready components. It also ends after MAX_CANDIDATES, which four components of up to 25 layers never
    reach: up to there the choice is exact to RESOLUTION_S, beyond it is the best of those seen.

    Source: DiffusionPipe, algorithm 1, lines 2 to 7.
    """
    everything = tuple(progress.layers_left for progress in ready)
    prefixes = [progress.prefix_times(time_s, devices) for progress in ready]
    best = _Candidate(inf, (0,) * len(ready), None)
    for counts, rest_s in islice(_candidates(prefixes, time_s), MAX_CANDIDATES):
        if rest_s < best.idle_s:
            best = _Candidate(rest_s, counts, None)
        for progress, count in zip(ready, counts, strict=True) if partial else ():
            layer = progress.next_layer + count
            options = progress.partial_options(layer, progress.samples_of(layer), devices)
            option = bisect_right(options, (rest_s, inf)) - 1
            if option >= 0 and rest_s - options[option][0] < best.idle_s:
                duration_s, local_batch = options[option]
                best = _Candidate(rest_s - duration_s, counts, (progress, local_batch))
        if best.idle_s < RESOLUTION_S or best.counts == everything:
            break
    return best


def _candidates(prefixes: Sequence[list[float]], rest_s: float) -> Iterator[tuple[tuple[int, ...], float]]:
    """Layers of each component that fit some time, and the seconds left of it.

    Most layers of the first component come first, and the last component always takes what fits.

    Source: DiffusionPipe, algorithm 2.
    """
    prefix, *others = prefixes
    most = bisect_right(prefix, rest_s) - 1
    if not others:
        yield (most,), rest_s - prefix[most]
        return
    for count in range(most, -1, -1):
        for counts, left_s in _candidates(others, rest_s - prefix[count]):
            yield (count, *counts), left_s
