"""A simulated InferenceService: trace -> gateway -> pods, scrapes -> policy -> actuation -> Deployment -> pods.

The policy's answer goes to the pods as design.md 3.4 says, by production's own `autoscale.actuate`: uncordon first,
cordon the pod with the least work, lower the count when it is empty. With `Removal.DRAIN` and `TERMINATE` it goes
straight to the Deployment, and the ReplicaSet chooses.
"""

from __future__ import annotations

import random
from collections.abc import Generator
from dataclasses import dataclass, field, replace
from typing import Any, Final

import simpy

from octavo_engine import contract
from octavo_operator.autoscale import PERIOD_SECONDS, Queue, actuate
from octavo_operator.autoscale import PodSample as ActuatorSample
from octavo_operator.autoscale.types import PodState

from .baselines.ours import Octavo
from .calibrate import Calibration
from .deployment import Deployment
from .faults import Faults
from .gateway import Fewest, Gateway, HoldLimits, Router
from .pod import Nodes, PodSettings, SimPod, Startup
from .policy import FleetSample, PodMetrics, PodSample, Policy, Removal
from .result import Change, Count, Result
from .ticket import Ticket
from .trace import Trace

TERMINATION_GRACE_SECONDS: Final = 30.0
"""Kubernetes' default: a project that sets no other cuts what streams longer."""
SAMPLE_MAX_AGE_SECONDS: Final = 3.0 * PERIOD_SECONDS
AFTERMATH_SECONDS: Final = 3600.0
"""So long after the trace's end a request may still be served; what is not over by then never will be."""


@dataclass(frozen=True, slots=True)
class FleetSettings:
    """One fleet. `initial_replicas` are warm at the start. `nodes`: pods that the cluster has room for.

    `removal` overrules what the policy's project does with a pod too many; None leaves it.
    """

    calibration: Calibration = field(default_factory=Calibration)
    startup: Startup = field(default_factory=Startup)
    faults: Faults = field(default_factory=Faults)
    hold: HoldLimits = field(default_factory=HoldLimits)
    initial_replicas: int = 1
    nodes: int = 64
    drain_timeout_seconds: int = contract.DEFAULT_DRAIN_TIMEOUT_SECONDS
    removal: Removal | None = None
    seed: int = 0


class Fleet:
    """One run of one trace under one policy. Use `simulate`."""

    def __init__(self, trace: Trace, policy: Policy, settings: FleetSettings, router: Router | None = None) -> None:
        """Set it up. Raises ValueError if the trace's prefixes do not fit the pods' block size."""
        self._block_size = trace.checked_block_size(settings.calibration.block_size)
        self._trace = trace
        self._router = router or Fewest()
        self._policy = policy
        self._settings = settings
        self._removal = settings.removal or policy.removal
        self._env = simpy.Environment()
        self._rng = random.Random(f"fleet {settings.seed}")
        pods = PodSettings(
            settings.calibration, settings.startup, settings.faults, settings.seed, self._router.watches_starts
        )
        self._deployment = Deployment(self._env, pods, Nodes(self._env, settings.nodes), self)
        self._gateway = Gateway(
            lambda: float(self._env.now), settings.calibration, self._router, settings.hold, self._held
        )
        self._scraped: dict[str, PodMetrics] = {}
        self._scraped_at = float("-inf")
        self._wanted = settings.initial_replicas
        self._counts: list[Count] = []
        self._changes: list[Change] = []
        self._tickets: list[Ticket] = []
        self._done = self._env.event()

    def run(self) -> Result:
        """Run the whole trace, and what is left of its requests after its end."""
        env, trace = self._env, self._trace
        self._deployment.scale(self._settings.initial_replicas, 0.0, warm=True)
        env.process(self._arrivals())
        env.process(self._periods())
        env.process(self._actuations())
        if self._router.scrape_seconds:
            env.process(self._router_scrapes())
        for at in self._settings.faults.restarts:
            env.process(self._restart(at))
        for at, ordinal in self._settings.faults.kills:
            env.process(self._kill(at, ordinal))
        env.run(until=trace.seconds)
        if not self._done.triggered:
            env.run(until=simpy.AnyOf(env, [self._done, env.timeout(AFTERMATH_SECONDS)]))
        pods = [*self._deployment.past, *self._deployment.pods]
        return Result(
            trace=trace.name,
            policy=self._policy.name,
            seconds=trace.seconds,
            tickets=tuple(self._tickets),
            counts=tuple(self._counts),
            changes=tuple(self._changes),
            gpu_seconds=sum(pod.gpu_seconds(trace.seconds) for pod in pods),
            preemptions=sum(pod.engine.tally.preemptions for pod in pods if pod.engine is not None),
            hit_tokens=sum(pod.engine.tally.hit_tokens for pod in pods if pod.engine is not None),
            prompt_tokens=sum(pod.engine.tally.prompt_tokens for pod in pods if pod.engine is not None),
        )

    # --- What happens by itself ------------------------------------------------------------------------------------
    def _arrivals(self) -> Generator[simpy.Event, Any, None]:
        env, trace = self._env, self._trace
        for number, request in enumerate(trace.requests):
            if request.at > env.now:
                yield env.timeout(request.at - env.now)
            ticket = Ticket(number, request, trace.digests(request, self._block_size))
            self._tickets.append(ticket)
            self._gateway.arrive(ticket)
        self._settle()

    def _periods(self) -> Generator[simpy.Event, Any, None]:
        """Scrape and decide, each at its own period."""
        env, next_scrape, next_look = self._env, 0.0, 0.0
        while True:
            if env.now >= next_scrape - 1e-9:
                self._scrape()
                next_scrape += self._policy.scrape_seconds
            if env.now >= next_look - 1e-9:
                self._gateway.expire()
                self._decide()
                next_look += self._policy.period_seconds
            yield env.timeout(max(0.0, min(next_scrape, next_look) - env.now))

    def _actuations(self) -> Generator[simpy.Event, Any, None]:
        """Follow the pods between the policy's looks: a marked one becomes empty, a pod is missing."""
        while True:
            yield self._env.timeout(PERIOD_SECONDS)
            self._gateway.expire()
            self._act()
            self._settle()

    def _router_scrapes(self) -> Generator[simpy.Event, Any, None]:
        while True:
            self._router.scraped(list(self._deployment.pods), self._env.now)
            yield self._env.timeout(self._router.scrape_seconds)

    def _restart(self, at: float) -> Generator[simpy.Event, Any, None]:
        yield self._env.timeout(at)
        self._policy = self._policy.restarted()
        self._scraped.clear()

    def _kill(self, at: float, ordinal: int) -> Generator[simpy.Event, Any, None]:
        yield self._env.timeout(at)
        for pod in [pod for pod in self._deployment.pods if pod.ordinal == ordinal]:
            pod.kill()
        self._deployment.replace_gone(self._grace)

    # --- Who tells us ----------------------------------------------------------------------------------------------
    def pod_ready(self, pod: SimPod) -> None:
        """See `Owner`."""
        self._spread()
        self._note()

    def pod_gone(self, pod: SimPod) -> None:
        """See `Owner`."""
        self._deployment.forget(pod)
        self._spread()
        self._note()

    def answered(self, ticket: Ticket) -> None:
        """See `Owner`."""
        self._gateway.answered(ticket)

    def ended(self, ticket: Ticket, pod: SimPod) -> None:
        """See `Owner`."""
        self._gateway.ended(ticket)

    def _held(self) -> None:
        if self._policy.wakes and self._deployment.replicas == 0:
            self._decide()

    def _spread(self) -> None:
        """Let the gateway know of pods and marks."""
        self._gateway.set_pods(self._deployment.pods)

    def _settle(self) -> None:
        arrived = len(self._tickets) == len(self._trace.requests)
        if arrived and len(self._gateway.ended_tickets) == len(self._tickets) and not self._done.triggered:
            self._done.succeed()

    # --- The control loop ------------------------------------------------------------------------------------------
    def _scrape(self) -> None:
        now, faults = self._env.now, self._settings.faults
        self._scraped_at = now
        for pod in list(self._deployment.pods):
            metrics = pod.metrics()
            if metrics is not None and faults.scrape_answers(now, self._rng):
                self._scraped[pod.uid] = metrics

    def _decide(self) -> None:
        wanted = self._policy.desired(self._sample())
        if wanted.replicas != self._wanted:
            branch = self._policy.last.branch if isinstance(self._policy, Octavo) and self._policy.last else ""
            self._changes.append(Change(self._env.now, self._wanted, wanted.replicas, wanted.reason, branch))
        self._wanted = wanted.replicas
        self._act()

    def _sample(self) -> FleetSample:
        """Return what the policy sees now."""
        now, ghosts = self._env.now, self._settings.faults.ghost_seconds
        cordons = self._policy.removal is Removal.CORDON
        pods = [self._seen(pod, cordons) for pod in self._deployment.pods]
        if ghosts:
            gone = [pod for pod in self._deployment.past if pod.gone_at is not None and now - pod.gone_at < ghosts]
            pods += [self._seen(pod, cordons, ghost=True) for pod in gone if pod.uid in self._scraped]
        replicas = self._deployment.replicas if cordons else self._wanted
        return FleetSample(now, replicas, tuple(pods), self._gateway.sample())

    def _seen(self, pod: SimPod, cordons: bool, *, ghost: bool = False) -> PodSample:
        """Return a pod as the policy sees it. One that knows no marks sees a marked pod as one that goes."""
        shown = pod.observed()
        if shown.cordoned and not cordons:
            shown = replace(shown, state=PodState.TERMINATING, cordoned=False, cordoned_at=None)
        metrics = self._scraped.get(pod.uid)
        if ghost and metrics is not None:
            # A metrics store repeats the last value of a series that has not gone yet.
            metrics = replace(metrics, at=self._scraped_at)
        age = 0.0 if metrics is None else self._env.now - metrics.at
        return PodSample(shown, metrics, age, ghost)

    @property
    def _grace(self) -> float:
        terminates = self._removal is Removal.TERMINATE
        return TERMINATION_GRACE_SECONDS if terminates else float(self._settings.drain_timeout_seconds)

    def _act(self) -> None:
        """Take the next step towards what is wanted."""
        if self._removal is Removal.CORDON:
            self._cordon()
        elif self._deployment.replicas != self._wanted:
            self._deployment.scale(self._wanted, self._grace)
            self._spread()
        self._note()

    def _cordon(self) -> None:
        now, deployment = self._env.now, self._deployment
        step = actuate(
            desired=self._wanted,
            replicas=deployment.replicas,
            pods=[pod.observed() for pod in deployment.pods],
            samples=self._actuator_samples(now),
            drain_timeout_seconds=self._settings.drain_timeout_seconds,
            now=now,
        )
        by_uid = {pod.uid: pod for pod in deployment.pods}
        for action in step.actions:
            pod = by_uid[action.uid]
            marked = action.kind != "Uncordon"
            pod.cordoned_at = now if marked else None
            pod.deletion_cost = contract.CORDONED_DELETION_COST - (action.kind == "GiveUp") if marked else 0
        if step.actions:
            self._spread()
        if step.replicas != deployment.replicas:
            deployment.scale(step.replicas, self._grace)
            self._spread()

    def _actuator_samples(self, now: float) -> dict[str, ActuatorSample]:
        """Return the last scrapes as the actuator takes them: none that is too old."""
        samples = {}
        for uid, metrics in self._scraped.items():
            if now - metrics.at <= SAMPLE_MAX_AGE_SECONDS:
                oldest = round(metrics.oldest_wait_seconds * 1000)
                queue = Queue(metrics.running, metrics.waiting, metrics.queue_tokens, oldest)
                samples[uid] = ActuatorSample(uid, metrics.at, metrics.kv, queue)
        return samples

    def _note(self) -> None:
        """Write the counts down when they change."""
        pods = self._deployment.pods
        ready = sum(pod.serving for pod in pods)
        count = Count(self._env.now, self._wanted, self._deployment.replicas, ready)
        if not self._counts or self._counts[-1][1:] != count[1:]:
            self._counts.append(count)


def simulate(trace: Trace, policy: Policy, settings: FleetSettings, router: Router | None = None) -> Result:
    """Return what becomes of `trace` under `policy`. Equal arguments give equal results."""
    return Fleet(trace, policy, settings, router).run()
