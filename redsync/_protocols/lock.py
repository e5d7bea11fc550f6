"""The reentrant lock: acquire, release, extend, look.

An acquire that finds no hold of this owner asks for a *new* claim and wins with a quorum of GRANTED. One that finds a
hold is a *re-entry* and wins only with a quorum of nodes that had the claim already: it never re-wins a lost lock.

Whatever the reason a round was not won for, its claims are undone on all nodes before anything else happens. Then:

* *without quorum* (too many nodes failed): an error at once when not blocking; else try again, with growing pauses,
  until the deadline;
* *split vote* (contenders hold a minority each, so nobody can win): try again after a short random pause that grows;
* *held*: sleep until a node wakes us, the holder's time is up, or a jittered second has passed. Each try queues in the
  same atomic step in which a node refuses it, so a release can't slip through between the try and the sleep.

The lock lets newcomers barge: whoever asks while it is free gets it, waiter or not.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable
from typing import Any, NamedTuple

from redsync._core.effects import Broadcast, Command, Steps, Tell, Wait, broadcast, tell, wait
from redsync._core.holds import HoldState
from redsync._core.keys import LockKeys
from redsync._core.ownership import Owner
from redsync._core.quorum import Tally
from redsync._core.runner import Session
from redsync._core.scripts import Script
from redsync._core.timing import retry_delay
from redsync._protocols.lease import EXPIRED, abandon, lose, milliseconds, renew, renew_at, tell_end
from redsync._protocols.rounds import no_quorum, refusals, type_error
from redsync.exceptions import LeaseLostError, NotOwnedError

__all__ = ["Demand", "acquire", "check", "extend", "farewell", "release"]

ACQUIRE = Script.load("lock_acquire")
RELEASE = Script.load("lock_release")

_FOREIGN, _EXISTING = 0, 2
_CODES = (1, 2, 0)

_PLACE_KEPT = 5.0
"""Seconds for which a node keeps a waiter's place; each of its tries, at most 1.5 s apart, renews it."""

_GRACE = 0.003
"""Seconds to wait for more nodes' wake-ups after the first: a release reaches the nodes one after the other."""

_CROWDED = 0.001
"""Seconds in the queue after which a lock counts as crowded: the next acquire asks for a place with its first try."""

_LAST_TRY = 0.03
"""Seconds that a try may take when the caller's time is already up, so that timeouts are kept within 50 ms."""


def _is_granted(reply: Any) -> bool:
    if reply.__class__ is int and reply in _CODES:
        return bool(reply != _FOREIGN)
    if reply.__class__ is not list or [word.__class__ for word in reply] != [int, bytes]:
        raise ValueError("an acquire is answered by an integer, or by the remaining time in ms and the holder")
    return False


def _is_existing(reply: Any) -> bool:
    return _is_granted(reply) and bool(reply == _EXISTING)


def _had(reply: Any) -> bool:
    if reply.__class__ is not int or reply not in (1, 0):
        raise ValueError("a release is answered by 1 or 0")
    return bool(reply == 1)


class Demand(NamedTuple):
    """What an acquire wants.

    Attributes:
        name: The lock's name, for messages.
        keys: The lock's keys.
        owner: For whom.
        lease: Seconds that the nodes shall keep the claim; None for the client's lease, renewed by the watchdog.
        timeout: Seconds to wait; 0.0 for one try, None for ever.
        max_hold: Seconds after which the hold ends whatever the renewals say; None for no limit.
        on_lost: What to call when the hold is lost.
        holds: How many holds to take at once.
        crowded: Others are expected to hold it: the first try asks for a place in the queue at once.
    """

    name: str | bytes
    keys: LockKeys
    owner: Owner
    lease: float | None = None
    timeout: float | None = None
    max_hold: float | None = None
    on_lost: Callable[[HoldState], object] | None = None
    holds: int = 1
    crowded: bool = False


def acquire(session: Session, demand: Demand, now: float) -> Steps[HoldState | None]:
    """Take the lock; return the hold, or None when others held it all the time.

    Raises:
        LeaseLostError: The owner held it, and that hold is lost.
        QuorumError: Too few nodes answered: at once for one try, else at the deadline.
        KeyTypeError: The key holds a value of another type.
    """
    state = session.holds.get(demand.keys.lock, demand.owner)
    started = now
    if state is not None:
        now = yield from _reenter(session, demand, state, now)
        if state.live:
            return state
        # Another thread gave the last hold back meanwhile, through a Hold object: this is a first acquire after all.
    return (yield from _acquire_new(session, demand, started, now))


class _Attempt:
    """What one acquire has done so far: enough to undo it at any point.

    Attributes:
        lease: Seconds that the nodes shall keep the claim.
        deadline: When the caller's timeout is over.
        queues: Whether to ask for a place in the queue.
        state: The hold, once it was won.
    """

    __slots__ = (
        "_asking",
        "_demand",
        "_failures",
        "_kept_until",
        "_placed",
        "_session",
        "_splits",
        "_started",
        "_touched",
        "deadline",
        "lease",
        "queues",
        "state",
    )

    def __init__(self, session: Session, demand: Demand, started: float) -> None:
        self._session = session
        self._demand = demand
        self._started = started
        self._touched = 0
        self._kept_until = 0.0
        self._asking = self._placed = False
        self.state: HoldState | None = None
        self._failures = self._splits = 0
        lease, timeout = demand.lease, demand.timeout
        self.lease = session.timing.lease if lease is None else lease
        self.deadline = math.inf if timeout is None else started + timeout
        self.queues = demand.crowded and timeout != 0

    @property
    def wake_key(self) -> bytes:
        """What the nodes' wake-ups for this attempt say."""
        return self._demand.owner.wire + b" " + self._demand.keys.lock

    def ask(self, now: float) -> Broadcast:
        """Return the effect that asks all nodes for a new claim, or else for a place in the queue."""
        demand, lease = self._demand, self.lease
        owner, keys = demand.owner, demand.keys
        patience = self._session.timing.round_timeout(lease)
        if demand.timeout:
            patience = min(patience, max(self.deadline - now, _LAST_TRY))
        self._asking = True
        self._kept_until = now + patience + max(lease, _PLACE_KEPT)
        if not self.queues:
            args: tuple[bytes | int, ...] = (owner.wire, demand.holds, milliseconds(lease))
            command = Command(ACQUIRE, (keys.lock,), args)
            return Broadcast(command, owner.lane, owner, _is_granted, patience, True, thorough=True)
        self._placed = True
        waited = milliseconds(now - self._started)
        args = (owner.wire, demand.holds, milliseconds(lease), milliseconds(_PLACE_KEPT), waited, owner.channel)
        command = Command(ACQUIRE, keys.all, args)
        return Broadcast(command, owner.lane, owner, _is_granted, patience, True, listen=self.wake_key, thorough=True)

    def note(self, tally: Tally) -> None:
        """Take note of which nodes were asked."""
        self._asking = False
        self._touched |= tally.sent
        self._kept_until = max(self._kept_until, tally.at + self.lease)

    def undo(self, *, leave: bool) -> Steps[None]:
        """Drop what any node may have granted, and our place in the queues if we `leave` and ever asked for one."""
        leave = leave and self._placed
        # A round that was interrupted may have been sent to any node.
        owed_to = self._session.all_nodes if self._asking else self._touched
        yield from tell(
            abandon(self._demand.keys, self._demand.owner, leave=leave, owed_to=owed_to, owed_until=self._kept_until)
        )

    def valid_until(self, tally: Tally) -> float:
        """Return until when what was won may be believed."""
        believed = self._session.timing.valid_until(tally.sent_at, self.lease)
        max_hold = self._demand.max_hold
        return believed if max_hold is None else min(believed, tally.sent_at + max_hold)

    def pause(self, tally: Tally, mute: bool) -> float:
        """Return how many seconds to sleep before the next try; 0.0 for none, which then asks for a place."""
        luck = self._session.luck()
        if mute:
            self._failures += 1
            return retry_delay(self._failures, luck, shortest=0.02, longest=0.25)
        # Others are about: from now on each try takes a place in the queue, in the same step that refuses it.
        queued, self.queues = self.queues, True
        if _is_split(tally):
            self._splits += 1
            return retry_delay(self._splits, luck, longest=0.05)
        self._failures = self._splits = 0
        return _patience(tally, luck) if queued else 0.0

    def hold(self, tally: Tally) -> HoldState:
        """Take up the hold that was won."""
        session, demand, lease, sent_at = self._session, self._demand, self.lease, tally.sent_at
        state = HoldState(
            demand.name,
            demand.keys,
            demand.owner,
            demand.holds,
            lease,
            self.valid_until(tally),
            renew_at(sent_at, lease) if demand.lease is None else math.inf,
            math.inf if demand.max_hold is None else sent_at + demand.max_hold,
            self._touched | tally.sent,
            tally.at + lease,
        )
        state.queued = self._placed and tally.sent_at - self._started > _CROWDED
        _listen(state, demand)
        self.state = state
        session.holds.add(state)
        return state


def _acquire_new(session: Session, demand: Demand, started: float, now: float) -> Steps[HoldState | None]:
    attempt = _Attempt(session, demand, started)
    settled = False
    try:
        while True:
            tally = yield from broadcast(attempt.ask(now))
            now = tally.at
            if tally.won and now < attempt.valid_until(tally):
                return attempt.hold(tally)
            attempt.note(tally)
            foreign = None if tally.won else type_error(demand.name, tally)
            over = now >= attempt.deadline or foreign is not None
            yield from attempt.undo(leave=over)
            settled = over
            # A round that was won too late tells as little as one without answers: the nodes are too slow now.
            mute = tally.without_quorum or tally.won
            if foreign is not None:
                raise foreign
            if over:
                if mute:
                    raise no_quorum(demand.name, tally)
                return None
            key = attempt.wake_key if attempt.queues and not mute else None
            pause = attempt.pause(tally, mute)
            if not pause:
                continue
            until = min(attempt.deadline, now + pause)
            wake = yield from wait(Wait(until, demand.owner.lane, key, session.quorum, _GRACE))
            now = wake.at
    except BaseException:
        if not settled:
            # Interrupted: a claim may be on its way to any node, and a place in any queue.
            if attempt.state is not None:
                session.holds.remove(attempt.state)
            yield from attempt.undo(leave=True)
        raise


def _listen(state: HoldState, demand: Demand) -> None:
    # However often one lock object is re-entered, its holder is told once.
    if demand.on_lost is not None and demand.on_lost not in state.on_lost:
        state.on_lost.append(demand.on_lost)


def _is_split(tally: Tally) -> bool:
    """Whether no other owner can be seen to have a quorum: then waiting for its release would most likely be vain.

    An owner's claims on nodes that failed are not seen. Who takes a holder for a split vote asks once too often; who
    takes a split vote for a holder sleeps while nobody is left to wake anybody.
    """
    # A foreign value counts as an owner of its own: it keeps the lock away as well.
    holders = Counter(reply[1] if reply else b"" for reply in refusals(tally))
    unheard = tally.choices.count(None)
    return max(holders.values(), default=0) + unheard < tally.quorum


def _patience(tally: Tally, luck: float) -> float:
    """Return for how many seconds to wait for a wake-up: until the holder's time is up on a quorum, or a second."""
    # -1 stands for a claim without an end, and a foreign value tells none.
    remaining = sorted(reply[0] if reply and reply[0] >= 0 else math.inf for reply in refusals(tally))
    expiry = remaining[min(tally.quorum - tally.granted, len(remaining)) - 1] / 1000
    return min(expiry + 0.001 + 0.02 * luck, 0.5 + luck)


def _lost(state: HoldState) -> LeaseLostError:
    return LeaseLostError(
        state.name, f"the hold of lock {state.name!r} was lost: {state.lost}; stop the work it protected"
    )


def _reenter(session: Session, demand: Demand, state: HoldState, now: float) -> Steps[float]:
    """Take further holds of a lock that this owner holds; whatever happens, the holds it had are not touched.

    Returns the instant of the answer. If the hold is not live by then, what was asked for has been undone.
    """
    deadline = math.inf if demand.timeout is None else now + demand.timeout
    lease = state.lease if demand.lease is None else demand.lease
    failures = 0
    while state.live:
        yield from check(state, now)
        tally = yield from _ask_again(session, demand, state, now, lease)
        now = tally.at
        if not state.live:
            break
        if tally.refused > len(tally.nodes) - tally.quorum:
            yield from lose(state, f"{tally.refused} of {len(tally.nodes)} nodes no longer keep the claim")
        yield from check(state, now)
        if tally.won:
            state.count += demand.holds
            state.lengthen(session.timing.valid_until(tally.sent_at, lease))
            _listen(state, demand)
            session.holds.watch(state)
            break
        if now >= deadline:
            raise no_quorum(demand.name, tally)
        failures += 1
        pause = retry_delay(failures, session.luck(), shortest=0.02, longest=0.25)
        now = (yield from wait(Wait(min(deadline, now + pause, state.valid_until), demand.owner.lane))).at
    return now


def _ask_again(session: Session, demand: Demand, state: HoldState, now: float, lease: float) -> Steps[Tally]:
    """Ask all nodes for one count more; undo it if the hold was given back meanwhile."""
    args = (demand.owner.wire, state.count + demand.holds, milliseconds(lease))
    timeout = session.timing.round_timeout(lease)
    command = Command(ACQUIRE, (demand.keys.lock,), args)
    try:
        tally = yield from broadcast(
            Broadcast(command, demand.owner.lane, demand.owner, _is_existing, timeout, thorough=True)
        )
        state.note_sent(tally.sent, tally.at + lease)
    except BaseException:
        state.note_sent(session.all_nodes, now + timeout + lease)
        raise
    finally:
        if not state.live:
            yield from tell(
                abandon(demand.keys, demand.owner, leave=False, owed_to=state.touched, owed_until=state.kept_until)
            )
    return tally


def check(state: HoldState, now: float) -> Steps[None]:
    """Return if the hold may be believed at that instant.

    Raises:
        LeaseLostError: It may not, now or any more.
    """
    if state.lost is None and now >= state.valid_until:
        yield from lose(state, EXPIRED)
    if state.lost is not None:
        raise _lost(state)


def release(session: Session, state: HoldState, now: float, holds: int = 1) -> Steps[None]:
    """Give that many holds back, all of them in one command.

    Raises:
        LeaseLostError: It had been lost; the holds are given back all the same.
    """
    try:
        state.count -= holds
        if state.lost is None and now >= state.valid_until:
            yield from lose(state, EXPIRED)
        if not state.count:
            session.holds.remove(state)
        if state.lost is not None:
            raise _lost(state)
        tally = yield from broadcast(
            Broadcast(
                Command(RELEASE, state.keys.all, (state.owner.wire, state.count, state.keys.channel)),
                state.owner.lane,
                state.owner,
                _had,
                session.timing.round_timeout(state.lease),
                owed_to=state.touched,
                owed_until=state.kept_until,
                thorough=True,
            )
        )
    except LeaseLostError:
        raise
    except BaseException:
        # Interrupted, perhaps before a byte was sent: renewals end, so nothing may be left on the nodes.
        if not state.count:
            session.holds.remove(state)
            yield from tell(
                abandon(state.keys, state.owner, leave=True, owed_to=state.touched, owed_until=state.kept_until)
            )
        raise
    finally:
        yield from tell_end(state)
    if tally.won:
        return
    # Too few nodes could be reached: they get the release later, or the claim expires there. That is no loss while
    # the claim was still to be believed.
    if tally.refused > len(tally.nodes) - tally.quorum or tally.at >= state.valid_until:
        reason = f"at its release {tally.refused} of {len(tally.nodes)} nodes no longer kept the claim"
        if state.live:
            yield from lose(state, reason)
        state.lost = state.lost or reason
        raise _lost(state)


def farewell(session: Session) -> Steps[None]:
    """Give back everything that any owner of this client holds, without a word about what was lost."""
    for state in session.holds:
        session.holds.remove(state)
        if state.lost is None:
            command = Command(RELEASE, state.keys.all, (state.owner.wire, 0, state.keys.channel))
            yield from tell(Tell(command, state.owner.lane, state.owner, state.touched, state.kept_until))
        yield from tell_end(state)


def extend(session: Session, state: HoldState, lease: float | None, now: float) -> Steps[None]:
    """Lengthen a hold now, on a quorum.

    Raises:
        LeaseLostError: It is lost.
        NotOwnedError: Another thread gave it back meanwhile.
        QuorumError: Too few nodes answered; the hold stays as it was.
    """
    yield from check(state, now)
    wanted = state.lease if lease is None else lease
    confirmed, tally = yield from renew(session, [state], lambda _: wanted)
    if not state.live and state.lost is None:
        raise NotOwnedError(state.name, f"the hold of lock {state.name!r} was released while it was being extended")
    yield from check(state, tally.at)
    if not confirmed:
        raise no_quorum(state.name, tally)
    session.holds.watch(state)
