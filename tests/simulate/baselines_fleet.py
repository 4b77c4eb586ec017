"""Fleets of a few pods as a policy sees them, for the baselines' worked examples."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from octavo_operator.autoscale.types import KVBlocks, Pod, PodState
from octavo_operator.simulate.policy import Buckets, FleetSample, GatewaySample, PodMetrics, PodSample, Policy, Wanted

BLOCKS = 1000


def metrics(
    kv: float = 0.0,
    *,
    at: float = 0.0,
    running: int = 0,
    waiting: int = 0,
    tokens: int = 0,
    ended: int = 0,
    prompt: int = 0,
    generated: int = 0,
    ttft: Sequence[float] = (),
    itl: Sequence[float] = (),
) -> PodMetrics:
    """A scrape of a pool of 1,000 blocks of which the share `kv` is held."""
    active = round(kv * BLOCKS)
    return PodMetrics(
        at=at,
        running=running,
        waiting=waiting,
        kv=KVBlocks(active, 0, BLOCKS - active),
        queue_tokens=tokens,
        prompt_tokens_total=prompt,
        generated_tokens_total=generated,
        requests_total=ended,
        ttft=Buckets.ttft(ttft),
        itl=Buckets.itl(itl),
    )


def pod(name: str, state: PodState = PodState.READY, scraped: PodMetrics | None = None, **fields: object) -> PodSample:
    """A pod that was created at 0."""
    return PodSample(Pod(f"uid-{name}", name, state, 0.0), scraped, **fields)  # type: ignore[arg-type]


def fleet(
    at: float,
    ready: Iterable[PodMetrics | None],
    *,
    replicas: int | None = None,
    starting: int = 0,
    unschedulable: int = 0,
    others: Iterable[PodSample] = (),
    held: int = 0,
    in_flight: int = 0,
    held_tokens: int = 0,
    held_blocks: int = 0,
) -> FleetSample:
    """Ready pods with these scrapes (None: did not answer), and pods without any."""
    pods = [pod(f"ready-{n}", PodState.READY, scraped) for n, scraped in enumerate(ready)]
    pods += [pod(f"starting-{n}", PodState.STARTING) for n in range(starting)]
    pods += [pod(f"pending-{n}", PodState.UNSCHEDULABLE) for n in range(unschedulable)]
    pods += others
    gateway = GatewaySample(in_flight=in_flight, held_requests=held, held_tokens=held_tokens, held_blocks=held_blocks)
    listed = sum(pod.pod.present and not pod.ghost for pod in pods)
    return FleetSample(at, listed if replicas is None else replicas, tuple(pods), gateway)


def last(policy: Policy, samples: Iterable[FleetSample]) -> Wanted:
    """What the policy wants after the last of these samples."""
    wanted = [policy.desired(sample) for sample in samples]
    return wanted[-1]
