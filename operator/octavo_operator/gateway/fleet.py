"""The endpoints of one InferenceService as one picker knows them, and its one decision: where does this request go.

    control plane ──► update ─┐
    scrapes ─────────► sampled ├─► candidates by standing ─► policy ─► pick ─► counted at once
    count filter ────► begun … ended ┘

Pure: time comes in as an argument. The simulator and the picker drive the same object.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final, NamedTuple

from .durations import Durations
from .in_flight import Flight, InFlight
from .types import Candidate, Endpoint, Outcome, Policy, Sample, Standing, Wanted
from .vitals import Vitals

HORIZON_SECONDS: Final = 2.0
"""How far ahead `Candidate.soon` looks: about the time in which a quarter of the answers in flight end."""
FORECAST_SECONDS: Final = 0.25
"""A forecast of an endpoint is kept this long, moved only by what begins and ends: a pick costs no walk over all."""
ANSWERED_SECONDS: Final = 3.0
"""If all endpoints are not ready by the control plane, those are used whose own `/ready` said 200 within this."""


class Pick(NamedTuple):
    """Where a request goes: `order[0]`, and after a refusal that began nothing the next one."""

    order: tuple[Endpoint, ...]
    reason: str
    matched_tokens: int
    standing: Standing


class Fleet:
    """The state and the decision. Times are the picker's seconds and never run backwards."""

    def __init__(self, policy: Policy) -> None:
        """Start with no endpoint."""
        self._policy = policy
        self._endpoints: dict[str, Endpoint] = {}
        self._vitals: dict[str, Vitals] = {}
        self._others: dict[str, int] = {}
        self._forecasts: dict[str, tuple[float, float]] = {}
        self._streams = Durations()
        self._whole = Durations()
        self.in_flight = InFlight()

    def update(self, endpoints: Iterable[Endpoint]) -> None:
        """Take the endpoints that there are now. What is gone is forgotten, its open requests go on being counted."""
        self._endpoints = {endpoint.uid: endpoint for endpoint in endpoints}
        for uid in [uid for uid in self._vitals if uid not in self._endpoints]:
            del self._vitals[uid]
            self._others.pop(uid, None)
            self._forecasts.pop(uid, None)
            self._policy.forget(uid)
            self.in_flight.forget(uid)
        for uid in self._endpoints:
            self._vitals.setdefault(uid, Vitals())

    def sampled(self, sample: Sample) -> None:
        """Take in a scrape, however late it comes: what was ours at its time is taken off, the rest is others'."""
        vitals = self._vitals.get(sample.uid)
        if vitals is None:
            return
        vitals.sampled(sample, self.in_flight.oldest_unanswered(sample.uid))
        if vitals.sample is sample:
            ours = self.in_flight.count_at(sample.uid, sample.at)
            self._others[sample.uid] = max(0, sample.running + sample.waiting - ours)

    def routable(self, now: float) -> tuple[Endpoint, ...]:
        """Return the endpoints that may be sent a new request, in the order of their UIDs.

        If the control plane says that none is ready, those that say themselves that they are: its silence must not
        empty the fleet. A cordoned or a terminating one is never used: it would be growing again that brings it back.
        """
        usable = [e for _, e in sorted(self._endpoints.items()) if e.known and not e.cordoned and not e.terminating]
        ready = tuple(e for e in usable if e.ready)
        return ready or tuple(
            e for e in usable if e.answered_ready_at is not None and now - e.answered_ready_at <= ANSWERED_SECONDS
        )

    def pick(self, wanted: Wanted, now: float, subset: frozenset[str] | None = None) -> Pick | None:
        """Choose for a request and count it; None if there is nobody to choose (hold it, or refuse it).

        `subset` holds addresses, if the gateway restricts the choice to some; an empty one leaves nobody.
        """
        self.in_flight.expire(now)
        endpoints = [e for e in self.routable(now) if subset is None or e.address in subset]
        if not endpoints:
            return None
        by_standing: dict[Standing, list[Candidate]] = {}
        for endpoint in endpoints:
            standing = self.standing(endpoint.uid, now)
            by_standing.setdefault(standing, []).append(self.candidate(endpoint.uid, now))
        best = min(by_standing)
        ranking = self._policy.rank(wanted, tuple(by_standing[best]))
        order = [*ranking.order]
        for standing in sorted(by_standing)[1:]:
            order += self._policy.rank(wanted, tuple(by_standing[standing])).order
        chosen = next(c for c in by_standing[best] if c.uid == order[0])
        self.in_flight.picked(wanted.request_id, chosen.uid, now, wanted.streamed)
        self._expect(chosen.uid, 1.0)
        self._policy.sent(wanted, chosen)
        return Pick(tuple(self._endpoints[uid] for uid in order), ranking.reason, ranking.matched_tokens, best)

    def heard(self, wanted: Wanted, uid: str, now: float) -> None:
        """Take another picker's news that it sent a request to `uid`: count it, and believe its prefix there.

        Its answer and its end are told like our own; when a picker is lost, the ends of all that it had are.
        """
        if uid in self._endpoints:
            self.in_flight.begun(wanted.request_id, uid, now)
            self._expect(uid, 1.0)
            self._policy.sent(wanted, self.candidate(uid, now))

    def begun(self, request_id: str, uid: str, now: float) -> None:
        """Note which endpoint served a request in the end."""
        self.in_flight.begun(request_id, uid, now)

    def answered(self, request_id: str, now: float) -> None:
        """Note a request's response headers."""
        self.in_flight.answered(request_id, now)

    def ended(self, request_id: str, now: float, outcome: Outcome, retry_after: float = 1.0) -> None:
        """Uncount a request and learn from its end. An id that is not in flight changes nothing."""
        flight = self.in_flight.ended(request_id, now)
        if flight is None:
            return
        self._expect(flight.uid, -self._survival(flight, now))
        if outcome is Outcome.DONE:
            if not flight.streamed:
                self._whole.add(now - flight.picked_at)
            elif flight.answered_at is not None:
                self._streams.add(now - flight.answered_at)
        vitals = self._vitals.get(flight.uid)
        if vitals is not None:
            vitals.ended(outcome, now, retry_after)

    def standing(self, uid: str, now: float) -> Standing:
        """Return how far an endpoint is trusted."""
        return self._vitals[uid].standing(now, self.in_flight.count(uid))

    def candidate(self, uid: str, now: float) -> Candidate:
        """Return an endpoint as the policies see it."""
        sample = self._vitals[uid].sample
        others = self._others.get(uid, 0)
        room = sample.total_blocks * sample.block_size if sample else 0
        return Candidate(uid, self.in_flight.count(uid) + others, self._soon(uid, now) + others, room)

    def _soon(self, uid: str, now: float) -> float:
        forecast = self._forecasts.get(uid)
        if forecast is None or now - forecast[0] > FORECAST_SECONDS:
            forecast = (now, sum(self._survival(flight, now) for flight in self.in_flight.flights(uid)))
            self._forecasts[uid] = forecast
        return max(0.0, forecast[1])

    def _expect(self, uid: str, change: float) -> None:
        forecast = self._forecasts.get(uid)
        if forecast is not None:
            self._forecasts[uid] = (forecast[0], forecast[1] + change)

    def _survival(self, flight: Flight, now: float) -> float:
        """Return the chance that a request is still there after the horizon; one that waits for its prefill is."""
        if not flight.streamed:
            return self._whole.survival(now - flight.picked_at, HORIZON_SECONDS)
        if flight.answered_at is None:
            return 1.0
        return self._streams.survival(now - flight.answered_at, HORIZON_SECONDS)
