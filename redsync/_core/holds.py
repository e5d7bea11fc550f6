"""The holds in which this client believes: one record per key and owner, for all kinds of synchronizers.

Invariants:

* A record is in the table from the step in which a quorum granted the claim until the step that begins its last
  release. A renewal looks at `live` at the instant of sending, and a release ends `live` before it is sent. So no
  renewal is sent after the release. One that was sent before may be executed after it; `renewal` rolls that back.
* `valid_until` only moves forward, and only while the hold is not lost.
* `lost` is set once and never cleared. A lost hold stays in the table until its owner has released each of its
  acquisitions, so that each release raises the loss.

Guarded by the atomicity of protocol steps (see `effects`); any thread may read single attributes at any time.

**What is due.** The table knows instants before which no renewal and no end is due. New holds and failed renewals bring
them closer; once such an instant has come, a look at all holds finds the next. For ten thousand holds that takes 4 to
9 ms: every few seconds, and up to four times a second while locks come and go. Of the holds that are due, the one that
ends first is renewed first, with others of its script. Ends come before each command of renewals: a loss is reported
right after the round under way, however many renewals wait. A watchdog begins with a look at all holds: it takes over
whatever an earlier one failed to finish.

`_protocols/watchdog.py` decides when to renew what.

**Owners and claims** are identities that are never mistaken for one another.

An owner is `<client uuid>:<serial>`. The serial numbers the threads (tasks) of one process and, unlike the thread ids
of an operating system, is never reused: a new thread can't inherit the holds of one that ended.

Nodes keep a *claim* for an owner, `<client uuid>:<serial>:<number>`, a field of a hash as in Redisson's RLock, so that
Java and Python could share locks. Each outermost hold has its own number, and so has each try after a rollback. A late
command, over a connection that was given up long ago, can only touch the claim for which it was sent: nothing rests on
the order between two connections. Numbers only grow. By the numbers, nodes recognize a command that is older than its
owner's place in a queue; places are kept under the owner alone.
"""

from __future__ import annotations

import math
import weakref
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import islice
from operator import attrgetter
from typing import Any, Final, Self
from weakref import ReferenceType

from redsync._core.keys import HoldKey, LockKeys, wake_channel
from redsync._core.scripts import ClaimKind, Command
from redsync.exceptions import ClientClosedError

__all__ = ["MOST", "HoldState", "HoldTable", "Owner", "soon"]

MOST = 200
"""The most claims per renewal command: about 0.5 ms of a node's time, which hardly delays other clients' commands."""


def soon(lease: float) -> float:
    """Return how many seconds early a hold may be renewed along with others, so that commands are few and full."""
    return lease / 12


class Owner:
    """One thread or task of one client. Compared by identity: the driver keeps exactly one object for each.

    Attributes:
        client_id: The client's UUID as text.
        serial: The thread's or task's number within its process, from 1.
        wire: The owner in the nodes' queues, UTF-8.
        channel: The channel over which nodes wake this owner.
        holds: Its holds, lost or not, by `LockKeys.hold`; see `HoldTable`.
        object: The object to which its hold belongs; None for a thread or task.
        ended: True once the client knows that it has ended; see `HoldTable.orphan`.
    """

    __slots__ = ("channel", "client_id", "ended", "holds", "object", "serial", "wire")

    def __init__(self, client_id: str, serial: int) -> None:
        self.client_id: Final = client_id
        self.serial: Final = serial
        self.wire: Final = f"{client_id}:{serial}".encode()
        self.channel: Final = wake_channel(client_id)
        self.holds: Final[dict[HoldKey, HoldState]] = {}
        self.object: weakref.ref[object] | None = None
        self.ended = False

    @property
    def is_gone(self) -> bool:
        """True if it has ended, or its object was dropped: Python swallows a finalizer that is interrupted."""
        return self.ended or (self.object is not None and self.object() is None)

    def claim(self, number: int, mode: bytes = b"") -> bytes:
        """Return the owner's claim of that number, behind its mode, as nodes store it."""
        return b"%b%b:%d" % (mode, self.wire, number)

    def __str__(self) -> str:
        return f"{self.client_id}:{self.serial}"


@dataclass(slots=True, weakref_slot=True, eq=False, repr=False)
class HoldState:
    """One owner's hold of one key.

    Attributes:
        name: The synchronizer's name as the caller gave it.
        kind: The kind of its claim.
        keys: The keys on the nodes.
        owner: The holder.
        claim: The claim as nodes keep it; no other claim is equal.
        count: The number of acquisitions not yet released.
        released: The number of acquisitions that calls of `holding.release` have ended.
        lease: The seconds for which nodes keep the claim, from each renewal on.
        valid_until: The instant until which the hold may be believed; never after `ends_at`.
        renew_at: The instant of the watchdog's next renewal; infinity if there is none.
        ends_at: The instant at which `max_hold` ends the hold, whatever the renewals say.
        may_keep: Bit set of the nodes that may keep the claim.
        since: The instant from which it is held; infinity if that is not known.
        live: True while renewals may be sent.
        lost: Why the hold ended before its release; None if it did not.
        on_lost: The callbacks for a loss: one for each acquisition that brought one.
        loss_callbacks: Further callbacks for a loss: they wake code that sleeps until the hold ends, or cancel a body.
        fencing_token: The token of a fenced lock; None for other kinds.
        end_waiters: The number of callers that sleep until the hold ends.
        what: The noun for it in messages.
        entered: The objects that open `with` statements returned, each with a weak reference to its context manager.
        task: The asyncio task in which a thread last acquired it, as a weak reference; None outside of tasks.
        keep_until: The instant before which its release waits, for `min_hold`; minus infinity without that.
        hurried: True if its release must not wait for that instant.
        left: True if it ended before that instant: nodes keep the claim until its lease ends.
        renewed: True if the watchdog lengthens it, False if it has its own lease.
        rolled_back: True once a renewal has rolled back the claim of a hold that had ended. From then on a node without
            the claim is no sign of a loss.
    """

    what = "hold"

    name: str | bytes
    kind: ClaimKind
    keys: LockKeys
    owner: Owner
    claim: bytes
    count: int
    lease: float
    valid_until: float
    renew_at: float
    ends_at: float
    may_keep: int
    since: float = math.inf
    live: bool = True
    lost: str | None = None
    on_lost: list[Callable[[HoldState], object]] = field(default_factory=list)
    loss_callbacks: list[Callable[[HoldState], object]] = field(default_factory=list)
    end_waiters: int = 0
    entered: dict[Any, ReferenceType[object]] = field(default_factory=dict)
    rolled_back: bool = False
    released: int = 0
    task: ReferenceType[Any] | None = None
    fencing_token: int | None = None
    keep_until: float = -math.inf
    hurried: bool = False
    left: bool = False
    renewed: bool = True

    def valid(self, now: float) -> bool:
        """Return whether the hold may be believed at that instant."""
        return self.live and self.lost is None and now < self.valid_until

    def ended(self, now: float) -> bool:
        """Return whether the hold is lost, or its validity is over at that instant, even if unnoticed so far."""
        return self.lost is not None or (self.live and now >= self.valid_until)

    def forget_callback(self, on_lost: Callable[[HoldState], object] | None) -> None:
        """Forget the callback of an acquisition that was released; keep no more callbacks than acquisitions.

        An object with another callback, or with none, may have released the acquisition.
        """
        if on_lost in self.on_lost:
            self.on_lost.remove(on_lost)
        del self.on_lost[self.count :]

    @property
    def open_withs(self) -> int:
        """The number of `with` statements that will release it: each keeps its context manager alive to its end."""
        return sum(manager() is not None for manager in list(self.entered.values()))

    @property
    def holder(self) -> str:
        """The holder as text; the claim as nodes keep it, if it belongs to no thread."""
        return str(self.owner) if self.kind.is_threads else self.claim.decode()

    def count_command(self) -> Command:
        """Return the command that makes nodes keep `count` acquisitions; if there are none, release the claim."""
        return Command(self.kind.release, self.keys.all, (self.claim, self.count, self.rest))

    @property
    def rest(self) -> bytes:
        """The argument of a release after the count: Redisson's channel."""
        return self.keys.channel

    @property
    def end_key(self) -> bytes:
        """The key of the signal within this process that the hold has ended."""
        return b"end " + self.claim + b" " + self.keys.lock

    def learn(self, limit: bytes) -> None:
        """Adopt the limit that a node told with a renewal.

        Raises:
            ValueError: It is none, or the hold is not a permit.
        """
        raise ValueError(f"a {self.kind.label} has no limit, and a node told {limit!r:.80}")

    @classmethod
    def renewal_of(cls, holds: Sequence[Self], leases_ms: Sequence[int]) -> Command:
        """Return the command that renews several holds of one kind, each for its lease; the guard is yet to add."""
        args: list[bytes | int] = []
        for state, lease_ms in zip(holds, leases_ms, strict=True):
            args += (state.claim, state.kind.hold_count(state.count), lease_ms)
        return Command(holds[0].kind.renew, tuple(state.keys.lock for state in holds), tuple(args))


class HoldTable:
    """All holds of one client.

    Attributes:
        orphans: Owners that have ended, with or without holds; filled by `orphan`, emptied by the watchdog.
        closed: True once nothing may be held any more: a closing client is releasing all holds.
    """

    def __init__(self, alarm: Callable[[], None]) -> None:
        """Make an empty table; `alarm` wakes the watchdog, from any thread, without blocking."""
        # Oldest first. Each owner also knows its own.
        self._holds: dict[HoldState, None] = {}
        self._renew_from = self._ends_from = math.inf
        self._alarm = alarm
        self.orphans: deque[Owner] = deque()
        self.closed = False

    def __len__(self) -> int:
        return len(self._holds)

    def __iter__(self) -> Iterator[HoldState]:
        return iter(list(self._holds))

    def oldest(self, most: int) -> list[HoldState]:
        """Return the oldest holds, that many at most."""
        return list(islice(self._holds, most))

    def add(self, state: HoldState) -> None:
        """Add a new hold.

        Raises:
            ClientClosedError: The client is closing.
        """
        if self.closed:
            raise ClientClosedError
        state.owner.holds[state.keys.hold] = state
        self._holds[state] = None
        self.watch(state)

    def watch(self, state: HoldState) -> None:
        """Make the watchdog look in time after a hold's renewal or end has come closer.

        The instant at which it looks stays even if that hold is gone. So a lock that is acquired and released all the
        time wakes it once per period, not once per acquire.
        """
        is_next = min(state.renew_at, state.valid_until) < self.next_due()
        self._expect(state)
        if is_next:
            self._alarm()

    def _expect(self, state: HoldState) -> None:
        self._renew_from = min(self._renew_from, state.renew_at)
        self._ends_from = min(self._ends_from, state.valid_until)

    def orphan(self, owner: Owner) -> None:
        """Record that an owner has ended: only a `with` in another thread or task can still release what it holds.

        Finalizers call it, in any thread at any point: it takes no lock, and its look-up is one step.
        """
        owner.ended = True
        if owner.holds:
            self.orphans.append(owner)
            self._alarm()

    def begin_watch(self) -> None:
        """Begin to watch all holds; an earlier watchdog may have failed half-way."""
        self._renew_from = self._ends_from = -math.inf

    def _watched(self) -> list[HoldState]:
        return [state for state in self._holds if state.live and state.lost is None]

    def take_ended(self, now: float) -> list[HoldState]:
        """Take the holds whose validity is over, but which are not yet lost; the caller must `lose` each of them."""
        if now < self._ends_from:
            return []
        watched = self._watched()
        self._ends_from = min([state.valid_until for state in watched if state.valid_until > now], default=math.inf)
        return [state for state in watched if state.valid_until <= now]

    def due(self, now: float, last: float) -> list[list[HoldState]]:
        """Take the holds to renew now: a list for each command, the most urgent first; then `put` each of them back.

        With those that are due come others that are due by the instant `last`, so that commands are few and full.
        """
        if now < self._renew_from:
            return []
        watched = self._watched()
        if all(state.renew_at > now for state in watched):
            last = -math.inf
        self._renew_from = min([state.renew_at for state in watched if state.renew_at > last], default=math.inf)
        found: dict[tuple[str, bool], list[HoldState]] = {}
        for state in sorted([state for state in watched if state.renew_at <= last], key=attrgetter("valid_until")):
            # A short own lease must not shorten the round for the others.
            found.setdefault((state.kind.renew.name, state.renewed), []).append(state)
        batches = [each[i : i + MOST] for each in found.values() for i in range(0, len(each), MOST)]
        return sorted(batches, key=lambda batch: batch[0].valid_until)

    def put(self, holds: Sequence[HoldState]) -> None:
        """Put back holds that were taken."""
        for state in holds:
            if state.live and state.lost is None:
                self._expect(state)

    def remove(self, state: HoldState) -> None:
        """Forget a hold whose last acquisition is being released; no renewal is sent from now on."""
        state.live = False
        # In a late step of its release, its owner may have the next one.
        if state.owner.holds.get(state.keys.hold) is state:
            del state.owner.holds[state.keys.hold]
        self._holds.pop(state, None)

    def clear(self) -> None:
        """Forget everything, in the child of a fork: it holds nothing."""
        for state in self:
            self.remove(state)
            state.count = 0
            state.lost = "this process is a fork of the holder"

    def next_due(self) -> float:
        """Return an instant before which no hold is due, but for those taken; infinity if none ever will be."""
        return min(self._renew_from, self._ends_from)
