"""Graphs: the ops of an iteration captured once, one CUDA graph each, and replayed ever after.

The ops of a device are captured in the order of its list, on its stream and in one pool of memory, as they are
replayed: what a backward no longer needs is there for the next forward, as without graphs. Outputs and gradients of
inputs are held until the next capture, for messages are copied from there.
"""

from collections.abc import Sequence

import torch

from strategies.plans.plan import Plan
from validate.green.partitions import GreenLanes
from validate.green.work import LayerWork


class GraphWork:
    """Replays the ops of other work; messages and sums, which are few kernels, are enqueued as they are."""

    def __init__(self, work: LayerWork, plan: Plan, lanes: GreenLanes) -> None:
        self.work = work
        lanes.settle()
        self._graphs = [self._capture(plan, device, lanes) for device in range(plan.num_devices)]
        lanes.settle()

    def _capture(self, plan: Plan, device: int, lanes: GreenLanes) -> Sequence[torch.cuda.CUDAGraph]:
        pool = torch.cuda.graph_pool_handle()
        graphs = []
        for index in range(len(plan.ops[device])):
            graph = torch.cuda.CUDAGraph()
            with torch.cuda.graph(graph, pool=pool, stream=lanes.stream(device)):
                self.work.op(device, index)
            graphs.append(graph)
        return graphs

    def reset(self) -> None:
        """Empty what an iteration fills."""
        self.work.reset()

    def op(self, device: int, index: int) -> None:
        """Replay an op."""
        self._graphs[device][index].replay()

    def message(self, slot: int) -> None:
        """Copy what a message holds."""
        self.work.message(slot)

    def reduce(self, number: int) -> None:
        """Sum up what a collective sums up."""
        self.work.reduce(number)
