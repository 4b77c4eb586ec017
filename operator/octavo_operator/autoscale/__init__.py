"""collect -> estimate -> decide -> actuate. One period of one service:

scrapes = await collector.collect(pods)                          # collect.py, the only I/O
decision = state.advance(policy, pods, scrapes, held, now)       # state.py: learn, estimate, decide, remember
step = actuate(desired=decision.desired, replicas=live, ...)     # actuate.py: marks and the Deployment's replicas
"""

from .actuate import Action, Actuation, actuate, pod_patch
from .collect import Collector
from .decide import decide
from .estimate import estimate
from .pods import format_time, observe_pod, parse_time
from .policy import Policy, ScaleDown, ScaleUp, policy_from_spec
from .record import to_record
from .state import PERIOD_SECONDS, ServiceState, SteadyClock
from .types import (
    Decision,
    Estimate,
    Held,
    History,
    KVBlocks,
    Learned,
    Pod,
    PodSample,
    PodState,
    Queue,
    Scrape,
    ScrapeFailure,
)

__all__ = [
    "PERIOD_SECONDS",
    "Action",
    "Actuation",
    "Collector",
    "Decision",
    "Estimate",
    "Held",
    "History",
    "KVBlocks",
    "Learned",
    "Pod",
    "PodSample",
    "PodState",
    "Policy",
    "Queue",
    "ScaleDown",
    "ScaleUp",
    "Scrape",
    "ScrapeFailure",
    "ServiceState",
    "SteadyClock",
    "actuate",
    "decide",
    "estimate",
    "format_time",
    "observe_pod",
    "parse_time",
    "pod_patch",
    "policy_from_spec",
    "to_record",
]
