"""The scene: what a training and a sampling scenario have in common."""

from collections.abc import Callable, Hashable
from dataclasses import dataclass, fields, replace
from functools import cached_property
from typing import Any, Generic, Self, TypeVar

from profiles.clusters import Cluster
from profiles.errors import InfeasibleError, InputError
from profiles.models import Model

W = TypeVar("W")
T = TypeVar("T")


@dataclass(frozen=True)
class Scene(Generic[W]):
    """A model on a cluster under a workload; it checks itself when it is made.

    ``asked_model`` and ``asked_cluster`` are the folder or file they were read from, where they are not shipped.
    All else is derived, and stays with this one object: neither a copy with other fields nor a pickled one takes
    it along. What strategies would derive again for every point is kept with ``remember``.
    """

    model: Model
    cluster: Cluster
    workload: W
    asked_model: str = ""
    asked_cluster: str = ""

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self.model_name} on {self.cluster_name}: {self.workload}>"

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), tuple(getattr(self, item.name) for item in fields(self))

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

    @cached_property
    def _memo(self) -> dict[Hashable, Any]:
        return {}

    def remember(self, key: Hashable, make: Callable[[], T]) -> T:
        """What ``make`` makes, made once for each key."""
        if key not in self._memo:
            self._memo[key] = make()
        value: T = self._memo[key]
        return value

    def _under(self, workload: W, *alike: str) -> Self:
        """The scene under another workload, with those derived quantities that are alike under both."""
        other = replace(self, workload=workload)
        vars(other).update({name: getattr(self, name) for name in alike})
        return other


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
