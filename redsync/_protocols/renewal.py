"""Renewal: one command lengthens many claims, and the answers of a quorum settle each of them.

* A renewal counts only if a quorum of nodes said *existing* before the old deadline. Nodes that had forgotten the claim
  are healed by the same command but count from the next renewal on. So a held lock survives a rolling restart of every
  node, and one that has lapsed is never won back.
* `n - quorum + 1` definite answers "not yours" mean lost, at once: no quorum of *existing* is possible any more.
  Silence is not definite: the hold goes on until `valid_until`, and the watchdog retries quickly.
* The next renewal is due a third of the lease after the last was *sent*.
* A hold that lives on a bare majority is one failure away from being lost. The watchdog *fills it up* as soon as that
  is known: it renews the hold at once, on all nodes, and again with growing pauses until more nodes keep it. A hold
  with a lease of its own is filled up for the rest of that lease.

The commands of many holds of one kind travel as one script call. The call is composed at the instant of sending, from
the holds that are live at that instant; a release ends `live` before it is sent. As all commands go out in one order, a
renewal can't revive a released hold.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

from redsync._core.effects import Broadcast, Command, Steps, broadcast
from redsync._core.holds import HoldState
from redsync._core.limits import Limit
from redsync._core.quorum import Choice, Tally, Verdict
from redsync._core.runner import Session
from redsync._core.timing import Timing
from redsync._protocols.lease import lose, milliseconds, renew_at

__all__ = ["fill_up", "is_bare", "renew"]

_CODES = frozenset((-1, 0, 1, 2))
_HEALED, _OURS = 1, 2


class _Renewal:
    """One command that renews several holds of one kind, and the count of the nodes' answers for each of them."""

    def __init__(self, session: Session, holds: Sequence[HoldState], lease_of: Callable[[HoldState], float]) -> None:
        self._candidates = holds
        self._lease_of = lease_of
        self._quorum = session.quorum
        self._enough_against = session.nodes - session.quorum + 1
        self._guarded = session.timing.restart_guard > 0
        self._limits: list[list[Limit]] = []
        self.holds: list[HoldState] = []
        self.existing: list[int] = []
        self.against: list[int] = []
        self._undecided = 0

    def command(self) -> Command | None:
        holds = [state for state in self._candidates if state.live and state.lost is None]
        self._undecided = len(holds)
        self.existing = [0] * len(holds)
        self.against = [0] * len(holds)
        if not holds:
            self.holds = holds
            return None
        call = type(holds[0]).renewal_of(holds, [milliseconds(self._lease_of(state)) for state in holds])
        self._limits = call.limits
        guard = (1,) if self._guarded else ()
        # Last: an interruption half-way leaves a command that has renewed nothing.
        self.holds = holds
        return Command(holds[0].kind.renew, call.keys, (*call.args, *guard))

    def judge(self, reply: Any) -> tuple[int, ...]:
        """Count the codes that a node replies, one for each hold, and return them."""
        codes = self._hear(reply) if self._limits else reply
        if (
            codes.__class__ is not list
            or len(codes) != len(self.holds)
            or not all(code.__class__ is int and code in _CODES for code in codes)
        ):
            raise ValueError(f"a renewal of {len(self.holds)} claims is answered by as many codes")
        for i, code in enumerate(codes):
            if code == _OURS:
                self.existing[i] += 1
                self._undecided -= self.existing[i] == self._quorum
            else:
                self.against[i] += 1
                self._undecided -= self.against[i] == self._enough_against
        return tuple(codes)

    def _hear(self, reply: Any) -> Any:
        """Learn the newer limits that a node tells after the codes, if it knows any; return the codes."""
        codes, told = reply[: len(self.holds)], reply[len(self.holds) :]
        newer = [text and Limit.read(text) for text in told]
        for known, limit in list(zip(self._limits if told else (), newer, strict=True)):
            for each in known if limit else ():
                each.learn(limit.version, limit.permits)
        return codes

    def decide(self, tally: Tally) -> Verdict:
        if not self._undecided:
            return Verdict.WON
        return self.decide_last(tally)

    @staticmethod
    def decide_last(tally: Tally) -> Verdict:
        return Verdict.PENDING if tally.granted + tally.failed < len(tally.nodes) else Verdict.LOST

    def missing(self, i: int, tally: Tally) -> int:
        """Return how many nodes are known not to keep hold `i`."""
        return sum(
            choice is Choice.FAILED or (choice is Choice.GRANTED and codes[i] not in (_HEALED, _OURS))
            for choice, codes in zip(tally.choices, tally.answers, strict=True)
        )


def renew(
    session: Session, holds: Sequence[HoldState], lease_of: Callable[[HoldState], float] = lambda state: state.lease
) -> Steps[tuple[list[HoldState], Tally]]:
    """Renew holds of one kind with one command; return those that a quorum confirmed, and the tally.

    Each of the others is either lost now, or due for a retry.
    """
    renewal = _Renewal(session, holds, lease_of)
    tally = yield from _ask(session, renewal, holds, lease_of, renewal.decide)
    confirmed = []
    for i, state in enumerate(renewal.holds):
        if (yield from _settle(session, renewal, i, tally)):
            confirmed.append(state)
            state.lengthen(session.timing.valid_until(tally.sent_at, lease_of(state)))
            if state.renewed:
                state.renew_at = renew_at(tally.sent_at, lease_of(state))
        elif state.renewed:
            state.renew_at = tally.at + _retry_pause(session.timing, lease_of(state))
    return confirmed, tally


def fill_up(session: Session, holds: Sequence[HoldState], now: float) -> Steps[None]:
    """Write holds of one kind to the nodes that lack them; each hold records whether that worked.

    Nobody waits for the result, so the round can wait for all nodes.
    """

    def lease_of(state: HoldState) -> float:
        if state.renewed:
            return state.lease
        left = max(state.valid_until - now, 0.0)
        return left + session.timing.drift(left)

    for state in holds:
        state.fill_pause = min(max(2 * state.fill_pause, session.timing.round_timeout(state.lease)), state.lease / 12)
        state.fill_at = now + state.fill_pause
    renewal = _Renewal(session, holds, lease_of)
    tally = yield from _ask(session, renewal, holds, lease_of, renewal.decide_last)
    for i, state in enumerate(renewal.holds):
        # A hold with a lease of its own is not lengthened, not even by the time that the command took.
        if (yield from _settle(session, renewal, i, tally)) and state.renewed:
            state.lengthen(session.timing.valid_until(tally.sent_at, state.lease))
            state.renew_at = renew_at(tally.sent_at, state.lease)


def is_bare(session: Session, missing: int) -> bool:
    """Whether a hold that `missing` nodes lack can't spare another one, although there are more nodes than a quorum."""
    return session.nodes - missing <= session.quorum < session.nodes


def _ask(
    session: Session,
    renewal: _Renewal,
    holds: Sequence[HoldState],
    lease_of: Callable[[HoldState], float],
    decide: Callable[[Tally], Verdict],
) -> Steps[Tally]:
    timeout = min(session.timing.round_timeout(lease_of(state)) for state in holds)
    for state in holds:
        # Noted before it is sent: a release that overtakes the answer must reach all nodes that the renewal may heal.
        state.note_sent(session.all_nodes, state.valid_until + timeout + lease_of(state))
    owner = holds[0].owner
    shared = None if len(holds) > 1 else owner
    return (yield from broadcast(Broadcast(renewal.command, shared, renewal.judge, timeout, decide=decide)))


def _settle(session: Session, renewal: _Renewal, i: int, tally: Tally) -> Steps[bool]:
    """Return whether a quorum confirmed a hold; lose it if it can't be believed any more."""
    state = renewal.holds[i]
    if not state.live or state.lost is not None:
        return False
    if tally.at >= state.valid_until:
        yield from lose(state, "no quorum of nodes confirmed a renewal in time")
        return False
    if renewal.existing[i] < session.quorum:
        if renewal.against[i] > session.nodes - session.quorum:
            yield from lose(state, f"{renewal.against[i]} of {session.nodes} nodes no longer keep the claim")
        return False
    # These answers are newer than those of the acquire's round.
    state.tally = None
    if not is_bare(session, renewal.missing(i, tally)):
        state.fill_at, state.fill_pause = math.inf, 0.0
    elif state.fill_at == math.inf:
        state.fill_at = tally.at
    return True


def _retry_pause(timing: Timing, lease: float) -> float:
    return min(max(timing.round_timeout(lease), lease / 30), 1.0)
