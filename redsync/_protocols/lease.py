"""What all leased things share: being renewed, being lost, and the watchdog that sees to both.

Renewal rules:

* A renewal counts only if a quorum of nodes said *existing* before the old deadline. Nodes that had forgotten the claim
  are healed by the same command but count from the next renewal on. So a held lock survives a rolling restart of every
  node, and one that has lapsed is never won back.
* `n - quorum + 1` definite "not yours" mean lost, at once: no quorum of *existing* is possible any more. Silence is not
  definite: the hold goes on until `valid_until`, and renewals are retried quickly.
* The next renewal is due a third of the lease after the last was *sent*.

The commands of many holds on one lane travel as one script call. The call is made at the instant of sending and takes
in only what is live at that instant; a release ends `live` before it is sent. As one lane keeps the order, a renewal
can not revive what was released.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from typing import Any

from redsync._core.effects import Broadcast, Command, Steps, Tell, Wait, broadcast, notify, signal, tell, wait
from redsync._core.events import HoldLost
from redsync._core.holds import HoldState
from redsync._core.keys import LockKeys
from redsync._core.ownership import Owner
from redsync._core.quorum import Tally, Verdict
from redsync._core.runner import Session
from redsync._core.scripts import Script
from redsync._core.timing import Timing

__all__ = ["EXPIRED", "abandon", "lose", "milliseconds", "renew", "renew_at", "tell_end", "wait_end", "watchdog"]

RENEW = Script.load("lock_renew")
ABANDON = Script.load("lock_abandon")

_BATCH = 200
"""Claims per renewal command: some 0.5 ms of a node's time, so that other clients' commands are not held up."""

_CODES = frozenset((-1, 0, 1, 2))
_OURS = 2

EXPIRED = "its lease ended without a renewal"


def milliseconds(seconds: float) -> int:
    """Return whole milliseconds, rounded up: a claim never ends on a node before its holder stops believing."""
    return math.ceil(seconds * 1000)


def renew_at(sent_at: float, lease: float) -> float:
    """Return when a claim sent at that instant is due for renewal."""
    return sent_at + lease / 3


def abandon(keys: LockKeys, owner: Owner, *, leave: bool, owed_to: int, owed_until: float) -> Tell:
    """Return the effect that drops a claim, and a place in the queue if `leave`, on all nodes."""
    return Tell(Command(ABANDON, keys.all, (owner.wire, int(leave))), owner.lane, owner, owed_to, owed_until)


def lose(state: HoldState, reason: str) -> Steps[None]:
    """End a hold that can't be believed any more: once, for ever, on every node, and not silently."""
    if state.lost is not None or not state.live:
        return
    state.lost = reason
    try:
        yield from tell(
            abandon(state.keys, state.owner, leave=False, owed_to=state.touched, owed_until=state.kept_until)
        )
    finally:
        # Also if an interruption comes first: that the hold is lost is told in any case.
        try:
            yield from tell_end(state)
        finally:
            yield from notify(HoldLost(state.name, str(state.owner), reason, state))


class _Renewal:
    """One command that renews several holds, and the count of what the nodes say of each of them."""

    def __init__(self, session: Session, holds: Sequence[HoldState], lease_of: Callable[[HoldState], float]) -> None:
        self._candidates = holds
        self._lease_of = lease_of
        self._quorum = session.quorum
        self._enough_against = session.nodes - session.quorum + 1
        self.holds: list[HoldState] = []
        self.existing: list[int] = []
        self.against: list[int] = []
        self._undecided = 0

    def command(self) -> Command | None:
        self.holds = [state for state in self._candidates if state.live and state.lost is None]
        self._undecided = len(self.holds)
        self.existing = [0] * len(self.holds)
        self.against = [0] * len(self.holds)
        if not self.holds:
            return None
        args: list[bytes | int] = []
        for state in self.holds:
            args += (state.owner.wire, state.count, milliseconds(self._lease_of(state)))
        return Command(RENEW, tuple(state.keys.lock for state in self.holds), tuple(args))

    def judge(self, reply: Any) -> bool:
        if (
            reply.__class__ is not list
            or len(reply) != len(self.holds)
            or not all(code.__class__ is int and code in _CODES for code in reply)
        ):
            raise ValueError(f"a renewal of {len(self.holds)} claims is answered by as many codes")
        for i, code in enumerate(reply):
            if code == _OURS:
                self.existing[i] += 1
                self._undecided -= self.existing[i] == self._quorum
            else:
                self.against[i] += 1
                self._undecided -= self.against[i] == self._enough_against
        return True

    def decide(self, tally: Tally) -> Verdict:
        if not self._undecided:
            return Verdict.WON
        return Verdict.PENDING if tally.granted + tally.failed < len(tally.nodes) else Verdict.LOST


def renew(
    session: Session, holds: Sequence[HoldState], lease_of: Callable[[HoldState], float] = lambda state: state.lease
) -> Steps[tuple[list[HoldState], Tally]]:
    """Renew holds of one lane with one command, and settle each of them: renewed, to be retried, or lost.

    Returns the holds that a quorum confirmed, and the tally.
    """
    renewal = _Renewal(session, holds, lease_of)
    timing = session.timing
    timeout = min(timing.round_timeout(lease_of(state)) for state in holds)
    for state in holds:
        # Noted before it is sent: a release that overtakes the answer is owed to all nodes that may be healed by it.
        state.note_sent(session.all_nodes, state.valid_until + timeout + lease_of(state))
    tally = yield from broadcast(
        Broadcast(
            renewal.command,
            holds[0].owner.lane,
            holds[0].owner if len(holds) == 1 else None,
            renewal.judge,
            timeout,
            decide=renewal.decide,
        )
    )
    confirmed = []
    for i, state in enumerate(renewal.holds):
        lease = lease_of(state)
        if not state.live or state.lost is not None:
            continue
        if tally.at >= state.valid_until:
            yield from lose(state, "no quorum of nodes confirmed a renewal in time")
        elif renewal.existing[i] >= session.quorum:
            confirmed.append(state)
            state.lengthen(timing.valid_until(tally.sent_at, lease))
            if state.renewed:
                state.renew_at = renew_at(tally.sent_at, lease)
        elif renewal.against[i] > session.nodes - session.quorum:
            yield from lose(state, f"{renewal.against[i]} of {session.nodes} nodes no longer keep the claim")
        elif state.renewed:
            state.renew_at = tally.at + _retry_pause(timing, lease)
    return confirmed, tally


def _retry_pause(timing: Timing, lease: float) -> float:
    return min(max(timing.round_timeout(lease), lease / 30), 1.0)


def watchdog(session: Session, now: float) -> Steps[None]:
    """Renew what is due and tell what is lost, for as long as the client lives."""
    table = session.holds
    while True:
        for state in table:
            if state.lost is None and now >= state.valid_until:
                reason = "its max_hold is over" if now >= state.ends_at else EXPIRED
                yield from lose(state, reason)
        for batch in _batches(table, now):
            yield from renew(session, batch)
        wake = yield from wait(Wait(table.watch_next(now)))
        now = wake.at


def _batches(holds: Iterable[HoldState], now: float) -> list[list[HoldState]]:
    """Return what is due for renewal by lane; what is due soon goes along, which makes few and full commands."""
    by_lane: dict[int, list[HoldState]] = {}
    for state in holds:
        if state.lost is None and state.renew_at <= now + state.lease / 12 and now < state.valid_until:
            by_lane.setdefault(state.owner.lane, []).append(state)
    # Nothing is due yet if all of them are only due soon.
    return [
        due[i : i + _BATCH]
        for due in by_lane.values()
        if any(state.renew_at <= now for state in due)
        for i in range(0, len(due), _BATCH)
    ]


def wait_end(state: HoldState, released: Callable[[], bool], now: float, timeout: float | None) -> Steps[None]:
    """Sleep until the hold is lost, or this acquisition of it is `released`, or the time is up."""

    def over() -> bool:
        return released() or not state.live or state.lost is not None

    deadline = math.inf if timeout is None else now + timeout
    state.watchers += 1
    try:
        while not over() and now < min(deadline, state.valid_until):
            until = min(deadline, state.valid_until)
            sleep = Wait(until, state.owner.lane, state.end_key, unless=over)
            now = (yield from wait(sleep)).at
    finally:
        state.watchers -= 1
    if not over() and now >= state.valid_until:
        yield from lose(state, EXPIRED)


def tell_end(state: HoldState) -> Steps[None]:
    """Wake those who sleep until the hold, or one acquisition of it, ends."""
    if state.watchers:
        yield from signal(state.owner.lane, state.end_key)
