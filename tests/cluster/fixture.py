"""`get_cluster()`: the cluster that tests talk to, started on demand."""

import os
import sys
from functools import cache
from pathlib import Path

from . import lifecycle
from .build import configuration_hash
from .cluster import Cluster, LocalCluster, local_cluster
from .foreign import foreign_cluster
from .layout import Layout

__all__ = ["Cluster", "LocalCluster", "get_cluster"]

NAME = "test"


@cache
def get_cluster() -> Cluster:
    """The cluster under test: this machine's own, or the one OCTAVO_TEST_KUBECONFIG names (never plain KUBECONFIG).

    Another's cluster must hold no InferenceService that is not a test's, and images reach it by OCTAVO_TEST_REGISTRY.
    """
    if kubeconfig := os.environ.get("OCTAVO_TEST_KUBECONFIG"):
        cluster = foreign_cluster(Path(kubeconfig), os.environ.get("OCTAVO_TEST_REGISTRY", ""))
        print(f"tests run against context {cluster.name!r} of {kubeconfig}", file=sys.stderr)
        return cluster
    layout = Layout(os.environ.get("OCTAVO_TEST_CLUSTER", NAME))
    facts = lifecycle.state(layout)
    if facts and facts.get("configuration") != configuration_hash():
        print(f"cluster {layout.name!r} was started by older sources: starting it anew", file=sys.stderr)
        lifecycle.down(layout)
    return local_cluster(layout.name)
