"""What the leader keeps of one service in memory, and one period of the autoscaler over it.

Lost on restart on purpose: the window is rebuilt from nothing, and nothing shrinks until a full one was seen.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Final, NamedTuple

from .decide import decide
from .estimate import estimate
from .learn import learn
from .policy import Policy
from .record import is_news, restore_learned, scaling_status
from .types import Decision, Estimate, Held, History, Learned, Pod, PodSample, PodState, Scrape

PERIOD_SECONDS: Final = 10
MEMORY_SECONDS: Final = 3600
"""Longer where a window or the idle time is longer."""
DECISIONS_KEPT: Final = 200
SAMPLE_MAX_AGE_SECONDS: Final = 3 * PERIOD_SECONDS
"""A pod's last valid sample stands in for lost scrapes this long: one lost packet must not freeze a fleet."""


class SteadyClock:
    """Unix seconds that never jump: the wall clock at construction, advanced by the monotonic one."""

    def __init__(self, wall: Callable[[], float] = time.time, monotonic: Callable[[], float] = time.monotonic) -> None:
        self._monotonic = monotonic
        self._offset = wall() - monotonic()

    def __call__(self) -> float:
        """Return the time in Unix seconds."""
        return self._offset + self._monotonic()


class Moment(NamedTuple):
    """One period, for the console: what each pod said and what was made of it."""

    at: float
    scrapes: dict[str, Scrape]
    estimate: Estimate


class ServiceState:
    """The memory of one InferenceService: one hour of moments, 200 decisions, what was learned, the desired count."""

    def __init__(self, *, desired: int, now: float, scaling: Mapping[str, Any] | None = None) -> None:
        """Start with the live replicas as `desired`, and with `status.scaling` as the last leader left it, if any."""
        self.desired = desired
        self._inherited: int = (scaling or {}).get("desiredReplicas", desired)
        self.started_at = now
        self.learned: Learned = restore_learned(scaling or {})
        self.moments: deque[Moment] = deque()
        self.decisions: deque[Decision] = deque(maxlen=DECISIONS_KEPT)
        self.samples: dict[str, PodSample] = {}
        self.scaling_status: dict[str, Any] = dict(scaling or {})
        self._ever_ready: frozenset[str] = frozenset()
        self._starting: frozenset[str] = frozenset()

    def history(self) -> History:
        """Return the memory as the frozen value that `decide` takes."""
        points = tuple(moment.estimate for moment in self.moments)
        return History(self.started_at, self.desired, points, tuple(self.decisions))

    def observe(self, scrapes: Iterable[Scrape], pods: Sequence[Pod], now: float) -> None:
        """Take in fresh samples; keep a pod's last one while it is young enough, and nothing of pods that are gone.

        In the modes without a built-in autoscaler this alone is called, while pods are marked: `actuate` needs it.
        """
        present = {pod.uid for pod in pods if pod.present}
        self.samples.update((scrape.uid, scrape) for scrape in scrapes if isinstance(scrape, PodSample))
        self.samples = {
            uid: sample
            for uid, sample in self.samples.items()
            if uid in present and now - sample.at <= SAMPLE_MAX_AGE_SECONDS
        }

    def advance(
        self, policy: Policy, pods: Sequence[Pod], scrapes: Mapping[str, Scrape], held: Held, now: float
    ) -> Decision:
        """Run one period: take in the scrapes, learn, estimate, decide, remember. Return the decision that holds now.

        Call it once every `PERIOD_SECONDS`, and at once when a gateway reports held requests for a service at zero.
        `scaling_status` is what to write afterwards; it equals the former one when there is no news.
        """
        self.observe(scrapes.values(), pods, now)
        if not self.moments:
            self._resume(pods)
        recent = [moment.scrapes for moment in self.moments][-2:]
        self.learned = learn(self.learned, policy, pods, self.samples, recent, self._starting, now)
        self._remember_starts(pods)
        history = self.history()
        current = estimate(policy, pods, self.samples, held, self.learned, history.points, now)
        decision = decide(policy, current, history, now)
        self._remember(policy, Moment(now, dict(scrapes), current), decision)
        return decision

    def _resume(self, pods: Sequence[Pod]) -> None:
        """Go on with a scale-down that the last leader had decided: its victims still count in the live replicas.

        Marks that its decision does not explain are nobody's, and will be taken back.
        """
        marked = sum(pod.present and pod.cordoned for pod in pods)
        self.desired = min(self.desired, max(self._inherited, self.desired - marked))

    def _remember_starts(self, pods: Sequence[Pod]) -> None:
        """Only a pod's first way to Ready is a cold start, and only one that this process saw from before its end."""
        present = [pod for pod in pods if pod.present]
        ready = {pod.uid for pod in present if pod.state is PodState.READY}
        self._ever_ready = frozenset(pod.uid for pod in present if pod.uid in ready or pod.uid in self._ever_ready)
        self._starting = frozenset(pod.uid for pod in present if pod.uid not in self._ever_ready)

    def _remember(self, policy: Policy, moment: Moment, decision: Decision) -> None:
        self.moments.append(moment)
        kept = max(MEMORY_SECONDS, policy.scale_down.stabilization_seconds, policy.idle_seconds) + PERIOD_SECONDS
        while moment.at - self.moments[0].at > kept:
            self.moments.popleft()
        self.desired = decision.desired
        news = decision if is_news(decision, self.scaling_status.get("lastDecision") or {}) else None
        if news is not None:
            self.decisions.append(news)
        self.scaling_status = scaling_status(self.scaling_status, news, self.desired, self.learned)
