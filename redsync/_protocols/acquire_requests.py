"""Acquire requests: what to claim and how, and the outcome in which an acquire records its success."""

from __future__ import annotations

import math
from collections.abc import Callable

from redsync._core.claims import ClaimKind
from redsync._core.holds import HoldState
from redsync._core.keys import LockKeys
from redsync._core.observing import AcquireRecord
from redsync._core.ownership import Owner
from redsync._protocols.places import Arrival, Place, Waiting

__all__ = ["AcquireRequest", "Outcome"]


class Outcome:
    """Shows an interrupted caller whether its acquire succeeded.

    An interruption may strike when the protocol has ended and its result is on the way. So the acquire writes its
    outcome in the very step in which it counts the claim: between the two stores, and until the protocol has ended,
    the interpreter does not check for signals.

    Attributes:
        state: The hold that was acquired; None if there is none.
        record: Where the acquire records its steps, for observers; None if it is not observed.
    """

    state: HoldState | None = None
    record: AcquireRecord | None = None


class AcquireRequest:
    """The arguments of one acquire; no protocol changes them.

    Not a named tuple, whose fields are found more slowly: an acquire reads them 25 times.

    Attributes:
        name: The lock's name, for messages.
        kind: The kind of claim.
        keys: The lock's keys.
        owner: The owner that acquires.
        outcome: Where the acquire records its success.
        lease: Seconds for which nodes keep the claim; None for the client's lease, renewed by the watchdog.
        timeout: Seconds to wait; 0.0 for one try, None for no limit.
        max_hold: Seconds after which the hold ends whatever the renewals say; None for no limit.
        on_lost: The callback for a loss of the hold.
        holds: The number of acquisitions to make at once.
        queue: Makes the place in which the acquire waits for a lock that others hold.
    """

    __slots__ = (
        "holds",
        "keys",
        "kind",
        "lease",
        "max_hold",
        "name",
        "on_lost",
        "outcome",
        "owner",
        "queue",
        "timeout",
    )

    def __init__(  # noqa: PLR0917  (keywords would cost the hot path half a microsecond)
        self,
        name: str | bytes,
        kind: ClaimKind,
        keys: LockKeys,
        owner: Owner,
        outcome: Outcome,
        lease: float | None = None,
        timeout: float | None = None,
        max_hold: float | None = None,
        on_lost: Callable[[HoldState], object] | None = None,
        holds: int = 1,
        queue: Callable[[Waiting], Place] = Arrival,
    ) -> None:
        self.name = name
        self.kind = kind
        self.keys = keys
        self.owner = owner
        self.outcome = outcome
        self.lease = lease
        self.timeout = timeout
        self.max_hold = max_hold
        self.on_lost = on_lost
        self.holds = holds
        self.queue = queue

    @property
    def renewed(self) -> bool:
        """True if the watchdog renews the hold."""
        return self.lease is None

    def deadline(self, started: float) -> float:
        """Return the deadline of an acquire that began at `started`."""
        return math.inf if self.timeout is None else started + self.timeout
