"""ZeRO-3: data parallelism whose weights, too, are divided among the GPUs and gathered whenever they are used."""

from dataclasses import dataclass
from typing import ClassVar, Final

from strategies.pipelining.data_parallel import BucketedDataParallel
from strategies.pipelining.footprint import TRAINED_STATE
from strategies.pipelining.layout import Layout
from strategies.pipelining.mesh import Mesh
from strategies.pipelining.units import Exchange
from strategies.scenario import Scenario

UNIT_PARAMETERS: Final = 5 * 10**7
"""Blocks are gathered together until they have at least so many parameters.

Source: DeepSpeed, default ``stage3_prefetch_bucket_size``.
"""


@dataclass(frozen=True, slots=True)
class Zero3(BucketedDataParallel):
    """Units of blocks are gathered before their forward and again before their backward, and freed after each.

    While one unit is used the next is gathered; one that was just freed, though, is gathered only then. After the
    backward of a unit its gradients are scattered. With ``overlap = none`` nothing is computed while anything is
    gathered or scattered. A unit is a stage of the plan. DeepSpeed frees less where it has room: parameters that it
    needs again soon (``stage3_max_reuse_distance``). What was gathered is copied, part by part, into whole weights, and
    gradients into the contiguous buffer that is scattered; this on a stream beside, of the same memory (``stage3.py``).

    Source: Rajbhandari et al., ZeRO, 2020, sections 5 and 7; Zhao et al., PyTorch FSDP, 2023, section 3.3; DeepSpeed,
    ``runtime/zero/partition_parameters.py``, ``AllGatherCoalescedHandle`` (``torch.cat``).
    """

    name: ClassVar[str] = "zero3"
    summary: ClassVar[str] = (
        "data parallelism: weights, gradients and optimizer states are divided among the GPUs"
    )

    def layout(self, scenario: Scenario) -> Layout:
        """Blocks of every backbone, each in parts on all GPUs."""
        return self.units(scenario, Mesh(1, scenario.workload.num_gpus), TRAINED_STATE, UNIT_PARAMETERS)

    def way(self, layout: Layout) -> Exchange:
        """Weights are gathered one unit ahead."""
        return Exchange(overlap=self.overlap == "buckets", gathers=True)
