"""The set of instruments: every metric of a client, named in the style of OpenTelemetry's semantic conventions.

The names here are those for OpenTelemetry. For Prometheus each dot becomes `_`, and the unit or `_total` is appended. A
label such as `kind` is the attribute `redsync.kind` in OpenTelemetry.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, Literal

__all__ = ["INSTRUMENTS", "Instrument"]


@dataclass(frozen=True, eq=False, slots=True)  # Compared by identity: each count looks one up.
class Instrument:
    """One metric.

    Attributes:
        name: Its name.
        sort: Its type.
        unit: The unit of its values, in UCUM notation; "{...}" for counts.
        help: Its meaning, as a sentence.
        labels: The names of its labels.
        buckets: The upper bounds of a histogram's buckets.
    """

    name: str
    sort: Literal["counter", "histogram", "gauge"]
    unit: str
    help: str
    labels: tuple[str, ...]
    buckets: tuple[float, ...] = ()


_WHOSE = ("kind", "name_group")
_WAITS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 300.0)
_HOLDS = (0.001, 0.01, 0.1, 0.5, 1.0, 5.0, 10.0, 30.0, 60.0, 300.0, 1800.0, 3600.0)
_TRIPS = (0.0001, 0.00025, 0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0)
_LAGS = (0.001, 0.005, 0.01, 0.05, 0.1, 0.5, 1.0, 5.0, 10.0)
_PARTS = (0.05, 0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9)


def _counter(name: str, unit: str, text: str, *labels: str) -> Instrument:
    return Instrument(name, "counter", unit, text, labels)


def _gauge(name: str, unit: str, text: str, *labels: str) -> Instrument:
    return Instrument(name, "gauge", unit, text, labels)


def _histogram(name: str, unit: str, text: str, buckets: tuple[float, ...], *labels: str) -> Instrument:
    return Instrument(name, "histogram", unit, text, labels, buckets)


ATTEMPTS: Final = _counter(
    "redsync.acquire.attempts",
    "{attempt}",
    "Acquires that ended, by outcome: won, busy, no_quorum or error.",
    *_WHOSE,
    "outcome",
)
WAIT: Final = _histogram(
    "redsync.acquire.duration", "s", "How long acquires took, including all waiting.", _WAITS, *_WHOSE, "outcome"
)
ROUNDS: Final = _counter(
    "redsync.acquire.rounds", "{round}", "Rounds (one command to all nodes) that acquires needed.", *_WHOSE
)
SPLITS: Final = _counter(
    "redsync.acquire.splits", "{round}", "Rounds in which no contender could win a quorum.", *_WHOSE
)
HAND_OVERS: Final = _counter(
    "redsync.acquire.handovers", "{handover}", "Acquires to which nodes handed the claim over.", *_WHOSE
)
WAITING: Final = _gauge("redsync.acquire.waiting", "{acquire}", "Acquires that are waiting for others now.", *_WHOSE)
HELD: Final = _gauge("redsync.hold.active", "{hold}", "Holds that have not ended.", *_WHOSE)
HOLD: Final = _histogram(
    "redsync.hold.duration", "s", "How long holds lasted, from success to release or loss.", _HOLDS, *_WHOSE
)
MARGIN: Final = _histogram(
    "redsync.hold.renewal.margin",
    "1",
    "Share of the lease that was left when a renewal was confirmed; after a hand-over, of what the claim lasted.",
    _PARTS,
    *_WHOSE,
)
LOSSES: Final = _counter(
    "redsync.hold.losses",
    "{hold}",
    "Holds that ended before their release, by reason: max_hold, lease_ended, no_quorum, taken, superseded or other.",
    *_WHOSE,
    "reason",
)
ORPHANS: Final = _counter("redsync.hold.orphans", "{hold}", "Holds whose owner ended without a release.", "name_group")
VOTES: Final = _counter(
    "redsync.node.votes.failed",
    "{vote}",
    "Votes that failed, by node and reason: down, timeout, suspect, quarantined, unconfirmed, interrupted, reply or "
    "error.",
    "node",
    "reason",
)
ROUND_TRIP: Final = _histogram(
    "redsync.node.round_trip.duration",
    "s",
    "Time until a node's reply arrived, for replies that a round waited for.",
    _TRIPS,
    "node",
)
NODE_STATE: Final = _gauge(
    "redsync.node.state", "{client}", "Clients that see a node up, down, suspect or quarantined now.", "node", "state"
)
QUARANTINE: Final = _gauge(
    "redsync.node.quarantine.remaining",
    "s",
    "Seconds until a node takes part in new grants again; infinity while that is not known.",
    "node",
)
PENDING: Final = _gauge(
    "redsync.node.releases.pending", "{command}", "Releases and rollbacks that a node has yet to execute.", "node"
)
LAG: Final = _histogram("redsync.watchdog.lag", "s", "How much later than planned the watchdog woke up.", _LAGS)
LIMITED: Final = _counter(
    "redsync.limiter.permits",
    "{permit}",
    "Permits requested from rate limiters, by outcome: admitted or refused.",
    "name_group",
    "outcome",
)
PERMITS: Final = _gauge(
    "redsync.semaphore.permits.used", "{permit}", "Permits that these clients have now.", "name_group"
)
PERMIT_LIMIT: Final = _gauge(
    "redsync.semaphore.permits.limit",
    "{permit}",
    "Permits of the semaphore of the group's latest acquire, as known then.",
    "name_group",
)
LINE: Final = _gauge(
    "redsync.semaphore.permits.awaited",
    "{permit}",
    "Permits for which acquires of these clients are waiting now.",
    "name_group",
)

INSTRUMENTS: Final = tuple(value for value in list(globals().values()) if isinstance(value, Instrument))
"""All instruments, in the order of this module."""
