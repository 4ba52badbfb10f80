"""The scene: what a training and a sampling scenario have in common."""

from collections.abc import Hashable
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, Generic, TypeVar

from profiles.clusters import Cluster
from profiles.errors import InfeasibleError, InputError
from profiles.models import Model

W = TypeVar("W")
C = TypeVar("C")


@dataclass(frozen=True)
class Scene(Generic[W, C]):
    """A model on a cluster under a workload, with the costs of the layers there.

    ``asked_model`` and ``asked_cluster`` are the folder or file they were read from, where they are not shipped.
    What strategies derive from it and would else derive again for every point is kept with ``remember``.
    """

    model: Model
    cluster: Cluster
    workload: W
    costs: C
    asked_model: str = ""
    asked_cluster: str = ""
    _memo: dict[Hashable, Any] = field(default_factory=dict, compare=False, repr=False)

    @property
    def model_name(self) -> str:
        """What to ask for to have this model again: its name or its folder."""
        return self.asked_model or self.model.name

    @property
    def cluster_name(self) -> str:
        """What to ask for to have this cluster again: its name or its file."""
        return self.asked_cluster or self.cluster.name

    @cached_property
    def backbone_index(self) -> int:
        """The index of the only backbone.

        Raises:
            InfeasibleError: the model has none or several.
        """
        backbones = self.model.backbones
        if len(backbones) != 1:
            names = ", ".join(self.model.components[i].name for i in backbones) or "none"
            raise InfeasibleError(
                f"needs one backbone, the model has {len(backbones)} ({names})", "needs one backbone"
            )
        return backbones[0]


def check_gpus(cluster: Cluster, num_gpus: int) -> None:
    """Refuse more GPUs than a cluster has.

    Raises:
        InputError: it has fewer.
    """
    if num_gpus > cluster.max_devices:
        raise InputError(
            f"--gpus is {num_gpus}, but cluster {cluster.name} has at most"
            f" max_nodes({cluster.max_nodes}) * devices_per_node({cluster.devices_per_node})"
            f" = {cluster.max_devices}"
        )
