"""The holds in which this client believes: one record per key and owner, for all kinds of synchronizers.

Invariants:

* A record is in the table from the step in which a quorum granted the claim until the step that begins its last
  release. A renewal looks at `live` at the instant of sending, and a release ends `live` before it is sent. So no
  renewal is sent after the release. One that was sent before may be executed after it; `renewal` rolls that back.
* `valid_until` only moves forward, and only while the hold is not lost.
* `lost` is set once and never cleared. A lost hold stays in the table until its owner has released each of its
  acquisitions, so that each release raises the loss.

Guarded by the atomicity of protocol steps (see `effects`); any thread may read single attributes at any time.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from itertools import islice
from typing import TYPE_CHECKING, Any, NamedTuple, Self
from weakref import ReferenceType

from redsync._core.claims import ClaimKind
from redsync._core.cohorts import Cohort, Schedule
from redsync._core.effects import Command
from redsync._core.keys import LockKeys
from redsync._core.ownership import Owner
from redsync._core.prepared import Forms, Prepared
from redsync._core.quorum import Tally, Votes

if TYPE_CHECKING:
    from redsync._core.limits import Limit

__all__ = ["HoldState", "HoldTable", "Renewal"]


class Renewal(NamedTuple):
    """The call that renews several holds of one kind.

    Attributes:
        keys: The script's KEYS.
        args: The script's ARGV, without the last one, which all kinds share.
        limits: The limits that the call carries: for each semaphore, in the order of its keys, one for each permit.
    """

    keys: tuple[bytes, ...]
    args: tuple[bytes | int, ...]
    limits: list[list[Limit]]


class HoldState:
    """One owner's hold of one key.

    Attributes:
        name: The synchronizer's name as the caller gave it.
        kind: The kind of its claim.
        keys: The keys on the nodes.
        owner: The holder.
        claim: The claim as nodes keep it; no other claim is equal.
        count: The number of acquisitions not yet released.
        forms: Its prepared commands.
        lease: The seconds for which nodes keep the claim, from each renewal on.
        valid_until: The instant until which the hold may be believed; never after `ends_at`.
        renew_at: The instant of the watchdog's next renewal; infinity if it does not renew it.
        fill_at: The instant at which to check whether more than a bare majority keeps the claim; infinity once it does.
        fill_pause: Seconds between the last two such checks.
        tally: The round that won the hold, which records late votes; None once the watchdog has checked it, or a
            renewal has shown again which nodes keep the claim.
        ends_at: The instant at which `max_hold` ends the hold, whatever the renewals say.
        touched: Bit set of the nodes that may keep the claim.
        kept_until: The instant at which the last of them forgets it; later than `valid_until` by at least the drift
            allowance, and much later if `max_hold` ends the hold early.
        since: The instant from which it is held; infinity if that is not known.
        live: True while renewals may be sent.
        lost: Why the hold ended before its release; None if it did not.
        on_lost: The callbacks for a loss: one for each acquisition that brought one.
        watching: Further callbacks for a loss, for code that sleeps until the hold ends, or for a body to cancel.
        fencing_token: The token of a fenced lock; None for other kinds (a class attribute, as few holds have one).
        watchers: The number of callers that sleep until the hold ends.
        what: The noun for it in messages.
        cohort: The cohort with which the watchdog looks at it; None once it has ended.
        entered: The objects that open `with` statements returned, each with a weak reference to its context manager.
        task: The asyncio task in which a thread acquired it, as a weak reference; None outside of tasks.
        dropped: True once a renewal has rolled back the claim of a hold that had ended: that a node lacks it no longer
            shows a loss.
    """

    __slots__ = (
        "claim",
        "cohort",
        "count",
        "dropped",
        "ends_at",
        "entered",
        "fill_at",
        "fill_pause",
        "forms",
        "kept_until",
        "keys",
        "kind",
        "lease",
        "live",
        "lost",
        "name",
        "on_lost",
        "owner",
        "renew_at",
        "since",
        "tally",
        "task",
        "touched",
        "valid_until",
        "watchers",
        "watching",
    )

    what = "hold"
    fencing_token: int | None = None

    def __init__(  # noqa: PLR0917  (keywords would cost the hot path half a microsecond)
        self,
        name: str | bytes,
        kind: ClaimKind,
        keys: LockKeys,
        owner: Owner,
        claim: bytes,
        count: int,
        forms: Forms,
        valid_until: float,
        renew_at: float,
        ends_at: float,
        touched: int,
        kept_until: float,
        since: float = math.inf,
    ) -> None:
        self.name = name
        self.kind = kind
        self.keys = keys
        self.owner = owner
        self.claim = claim
        self.count = count
        self.forms = forms
        self.lease = forms.terms.lease
        self.valid_until = valid_until
        self.renew_at = renew_at
        self.ends_at = ends_at
        self.touched = touched
        self.kept_until = kept_until
        self.since = since
        self.live = True
        self.lost: str | None = None
        self.fill_at = math.inf
        self.fill_pause = 0.0
        self.tally: Tally | None = None
        self.on_lost: list[Callable[[HoldState], object]] = []
        self.watching: list[Callable[[HoldState], object]] = []
        self.watchers = 0
        self.entered: dict[object, ReferenceType[object]] = {}
        self.dropped = False
        self.cohort: Cohort | None = None
        self.task: ReferenceType[Any] | None = None

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
    def renewed(self) -> bool:
        """True if the watchdog renews it."""
        return self.renew_at != math.inf

    @property
    def holder(self) -> str:
        """The holder as text; the claim as nodes keep it, if it belongs to no thread."""
        return str(self.owner) if self.kind.is_threads else self.claim.decode()

    def release_command(self, prepared: Prepared) -> Command:
        """Return the command that leaves `count` acquisitions."""
        if self.count:
            return Command(self.kind.release, self.keys.all, (self.claim, self.count, self.rest))
        release = self.forms.release
        if release is None:
            self.forms.release = release = prepared.spell(self.kind.release, self.keys.all, (0, self.rest))
        return release.command(self.claim)

    @property
    def rest(self) -> bytes:
        """The argument of a release after the count: Redisson's channel."""
        return self.keys.channel

    def mismatched(self, votes: Votes) -> int:  # noqa: ARG002  (of a lock, nodes grant all or nothing)
        """Return the bit set of the nodes that granted something else than this hold."""
        return 0

    @property
    def end_key(self) -> bytes:
        """The key of the signal within this process that the hold has ended."""
        return b"end " + self.claim + b" " + self.keys.lock

    def note_sent(self, nodes: int, kept_until: float) -> None:
        """Record the nodes that may keep the claim, whatever they answered, and until when."""
        self.touched |= nodes
        self.kept_until = max(self.kept_until, kept_until)

    def lengthen(self, valid_until: float) -> None:
        """Believe until that instant, if it is later than before and within `ends_at`."""
        self.valid_until = max(self.valid_until, min(valid_until, self.ends_at))

    @classmethod
    def renewal_of(cls, holds: Sequence[Self], leases_ms: Sequence[int]) -> Renewal:
        """Return the call that renews several holds of one kind, each for its lease."""
        args: list[bytes | int] = []
        for state, lease_ms in zip(holds, leases_ms, strict=True):
            args += (state.claim, state.count, lease_ms)
        return Renewal(tuple(state.keys.lock for state in holds), tuple(args), [])

    @classmethod
    def marks_of(cls, holds: Sequence[Self]) -> list[Any]:
        """Return for each hold the values in its part of such a call that may change."""
        return [state.count for state in holds]

    def enlist(self, permits: dict[bytes, dict[HoldState, None]]) -> None:
        """Add the hold to the table of permits by key, if it is a permit."""

    def delist(self, permits: dict[bytes, dict[HoldState, None]]) -> None:
        """Remove the hold from that table."""

    @property
    def due(self) -> float:
        """When the watchdog must look at the hold: to renew it, to fill up its majority, or to report its loss."""
        # Not `min`: this runs in every acquire and every renewal of every hold.
        due = self.renew_at if self.renew_at < self.valid_until else self.valid_until  # noqa: FURB136
        return due if due < self.fill_at else self.fill_at  # noqa: FURB136


class HoldTable(Schedule):
    """All holds of one client.

    Attributes:
        orphans: Owners that have ended, with or without holds; filled by `orphan`, emptied by the watchdog.
        watched_until: The instant at which the watchdog will look next. A hold that is due earlier moves it and calls
            the alarm. It stays even if that hold is gone: so a lock that is acquired and released all the time wakes
            the watchdog once per period, not once per acquire.
    """

    def __init__(self, alarm: Callable[[], None]) -> None:
        """Make an empty table; `alarm` wakes the watchdog, from any thread, without blocking."""
        super().__init__()
        # Oldest first. Each owner also knows its own.
        self._holds: dict[HoldState, None] = {}
        # Permits also by key: any thread may release the latest one.
        self._permits: dict[bytes, dict[HoldState, None]] = {}
        self._alarm = alarm
        self.orphans: deque[Owner] = deque()
        self.watched_until = math.inf

    def __len__(self) -> int:
        return len(self._holds)

    def __iter__(self) -> Iterator[HoldState]:
        return iter(list(self._holds))

    def oldest(self, most: int) -> list[HoldState]:
        """Return the oldest holds, that many at most."""
        return list(islice(self._holds, most))

    def permits(self, key: bytes) -> Iterator[HoldState]:
        """Return the permits of that key, lost or not: latest first, those that a `with` will release at the end.

        Lazy, so the latest of thousands costs one step. No permit may be added or removed meanwhile.
        """
        ours = self._permits.get(key, {})
        return (state for entered in (False, True) for state in reversed(ours) if bool(state.entered) is entered)

    def add(self, state: HoldState) -> None:
        """Add a new hold."""
        state.owner.holds[state.keys.hold] = state
        self._holds[state] = None
        state.enlist(self._permits)
        state.cohort = fresh = self._fresh
        fresh.holds[state] = None
        # Not `due`, which is a call.
        until = self.watched_until
        if state.fill_at < until or state.renew_at < until or state.valid_until < until:
            self._alarm_before(state.due)

    def watch(self, state: HoldState) -> None:
        """Make the watchdog look in time after a hold's `due` has changed."""
        if state.cohort is not None:
            self.hasten(state)
            self._alarm_before(state.due)

    def _alarm_before(self, due: float) -> None:
        if due < self.watched_until:
            self.watched_until = due
            self._alarm()

    def orphan(self, owner: Owner) -> None:
        """Record that an owner has ended: only a `with` in another thread or task can still release what it holds.

        Finalizers call it, in any thread at any point: it takes no lock, and its look-up is one step.
        """
        owner.ended = True
        if owner.holds:
            self.orphans.append(owner)
            self._alarm()

    def due(self, now: float) -> Cohort | None:
        """Return the holds to look at first; None if they are not due at `now`."""
        cohort = self.first()
        return cohort if cohort is not None and cohort.due <= now else None

    def watch_next(self, now: float) -> float:
        """Return and record when the watchdog must look next, after it has looked at `now`."""
        asked = self.watched_until if self.watched_until > now else math.inf
        self.watched_until = min(self.next_due(), asked)
        return self.watched_until

    def remove(self, state: HoldState) -> None:
        """Forget a hold whose last acquisition is being released; no renewal is sent from now on."""
        state.live = False
        state.owner.holds.pop(state.keys.hold, None)
        self._holds.pop(state, None)
        if self._permits:
            state.delist(self._permits)
        cohort = state.cohort
        if cohort is not None:
            cohort.holds.pop(state, None)
            state.cohort = None

    def clear(self) -> None:
        """Forget everything, in the child of a fork: it holds nothing."""
        for state in self:
            self.remove(state)
            state.count = 0
            state.lost = "this process is a fork of the holder"

    def next_due(self) -> float:
        """Return the earliest instant at which a hold is due; infinity if there is none."""
        cohort = self.first()
        return math.inf if cohort is None else cohort.due
