"""The Deployment of a simulated fleet: it has as many pods as it is told, and takes away those Kubernetes would."""

from __future__ import annotations

import simpy

from octavo_operator.autoscale.types import PodState

from .pod import Nodes, Owner, PodSettings, SimPod


class Deployment:
    """`replicas` pods that are neither terminating nor gone, as a ReplicaSet keeps them."""

    def __init__(self, env: simpy.Environment, settings: PodSettings, nodes: Nodes, owner: Owner) -> None:
        """Start without a pod; `scale` makes them."""
        self._env = env
        self._settings = settings
        self._nodes = nodes
        self._owner = owner
        self._created = 0
        self.replicas = 0
        self.pods: list[SimPod] = []
        """Those that are not gone, terminating ones included, in the order of their creation."""
        self.past: list[SimPod] = []
        """Those that are gone."""

    @property
    def present(self) -> list[SimPod]:
        """Those that count against `replicas`."""
        return [pod for pod in self.pods if pod.state is not PodState.TERMINATING]

    def scale(self, replicas: int, grace_seconds: float, *, warm: bool = False) -> None:
        """Have `replicas` pods: create new ones, or delete in the ReplicaSet's order, each with its grace."""
        self.replicas = replicas
        present = self.present
        for _ in range(replicas - len(present)):
            self._create(warm)
        for pod in sorted(present, key=_deletion_order)[: max(0, len(present) - replicas)]:
            pod.delete(grace_seconds)

    def replace_gone(self, grace_seconds: float) -> None:
        """Create what is missing after a pod died."""
        if len(self.present) < self.replicas:
            self.scale(self.replicas, grace_seconds)

    def forget(self, pod: SimPod) -> None:
        """A pod is gone."""
        self.pods.remove(pod)
        self.past.append(pod)

    def _create(self, warm: bool) -> None:
        # The pod reports Ready from its constructor when it is warm: it must be listed by then.
        pod = SimPod(self._env, self._created, self._settings, self._nodes, self._owner)
        self._created += 1
        self.pods.append(pod)
        pod.begin(warm=warm)


def _deletion_order(pod: SimPod) -> tuple[bool, bool, int, float, int]:
    """Sort key: no node, not ready, the lowest deletion cost, ready for the shortest time, the youngest."""
    ready = pod.state is PodState.READY
    return pod.scheduled_at is not None, ready, pod.deletion_cost, -(pod.ready_at or 0.0), -pod.ordinal
