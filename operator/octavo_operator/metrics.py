"""The operator's own metrics, on a registry of its own."""

from __future__ import annotations

from typing import Final

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram

REGISTRY: Final = CollectorRegistry()

LEADER: Final = Gauge("octavo_operator_leader", "1 while this process holds the lease", registry=REGISTRY)
SERVICES: Final = Gauge("octavo_operator_services", "InferenceServices being reconciled", registry=REGISTRY)
RECONCILE_SECONDS: Final = Histogram(
    "octavo_operator_reconcile_seconds", "One pass over one InferenceService", registry=REGISTRY
)
RECONCILE_FAILURES: Final = Counter(
    "octavo_operator_reconcile_failures_total", "Passes that ended early, by reason", ["reason"], registry=REGISTRY
)
LAST_RECONCILE: Final = Gauge(
    "octavo_operator_last_reconcile_timestamp_seconds", "Unix time of the last finished pass", registry=REGISTRY
)
API_REQUESTS: Final = Counter(
    "octavo_operator_api_requests_total", "Requests to the API server", ["method", "code"], registry=REGISTRY
)
DECISIONS: Final = Counter(
    "octavo_operator_scaling_decisions_total", "Decisions of the autoscaler", ["direction", "branch"], registry=REGISTRY
)
