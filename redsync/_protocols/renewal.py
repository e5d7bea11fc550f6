"""Renewal: one command lengthens many claims, and the answers of a quorum settle each of them.

* A renewal counts only if a quorum of nodes answered *existing* before the old deadline. The same command heals nodes
  that had forgotten the claim, but these count only from the next renewal on. So a held lock survives a rolling restart
  of every node, and one that has lapsed is never won back.
* `n - quorum + 1` definite answers "not yours" mean lost, at once: no quorum of *existing* is possible any more.
  Silence is not definite: the hold continues until `valid_until`, and the watchdog retries quickly.
* The next renewal is due a third of the lease after the last was *sent*.
* A hold that lives on a bare majority is one failure away from being lost. The watchdog *fills it up* as soon as it
  knows: it renews the hold on all nodes, at once and again with growing pauses, until more nodes keep it. A hold with
  its own lease is filled up for the rest of that lease.

The renewals of many holds of one kind travel as one script call. The client composes it at the instant of sending, from
the holds that are live at that instant, and a release ends `live` before it is sent. But a release may go out over
other connections, and be executed before a renewal that was composed earlier. That renewal would make the claim again.
So the client rolls back each hold that has ended by the time the renewal is answered, over the same connections.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, NamedTuple

from redsync._core.cohorts import MOST, Cohort, Composed
from redsync._core.effects import Broadcast, Command, Packed, Steps, broadcast, notify, tell
from redsync._core.holds import HoldState
from redsync._core.limits import Limit
from redsync._core.observing import HoldsRenewed
from redsync._core.quorum import Choice, Tally, Verdict
from redsync._core.runner import Session
from redsync._core.timing import milliseconds, renew_at
from redsync._protocols.lease import lose, rollback_of

__all__ = ["fill_up", "is_bare", "renew"]

_CODES = frozenset((-1, 0, 1, 2))
_HEALED, _OURS = 1, 2
_INTEGERS = frozenset((int,))


class _Renewal:
    """One command that renews several holds of one kind, and the count of the nodes' answers for each of them.

    As long as each node keeps all claims, which is usual, it counts answers for all holds at once.
    """

    def __init__(
        self, session: Session, holds: Sequence[HoldState], leases: Sequence[float], cohort: Cohort | None = None
    ) -> None:
        """Renew each hold for its lease; `cohort`: keeps the command if it may be sent again unchanged."""
        self._candidates = holds
        self.leases = leases
        self._cohort = cohort
        self._quorum = session.quorum
        self._enough_against = session.nodes - session.quorum + 1
        self._guarded = session.timing.restart_guard > 0
        self._limits: list[list[Limit]] = []
        self.holds: list[HoldState] = []
        self.unanimous = 0
        self.differs = False
        self._existing: list[int] = []
        self._against: list[int] = []
        self._undecided = 0

    def command(self) -> Command | None:
        holds = [state for state in self._candidates if state.live and state.lost is None]
        self._undecided = len(holds)
        self.unanimous, self.differs = 0, False
        if not holds:
            self.holds = holds
            return None
        composed = self._compose(holds)
        self._limits = composed.limits
        # Last: an interruption before this leaves a command that has renewed nothing.
        self.holds = holds
        return composed.command

    def _compose(self, holds: list[HoldState]) -> Composed:
        kind, cohort = type(holds[0]), self._cohort
        marks = kind.marks_of(holds)
        composed = None if cohort is None else cohort.composed
        if composed is not None and composed.holds == holds and composed.marks == marks:
            return composed
        leases = dict(zip(self._candidates, self.leases, strict=True))
        call = kind.renewal_of(holds, [milliseconds(leases[state]) for state in holds])
        guard = (1,) if self._guarded else ()
        command = Command(holds[0].kind.renew, call.keys, (*call.args, *guard), Packed())
        composed = Composed(holds, marks, command, call.limits)
        if cohort is not None:
            cohort.composed = composed
        return composed

    def judge(self, reply: Any) -> tuple[int, ...]:
        """Count the codes in a node's reply, one for each hold, and return them."""
        codes = self._hear(reply) if self._limits else reply
        if (
            codes.__class__ is not list
            or len(codes) != len(self.holds)
            or not _INTEGERS.issuperset(map(type, codes))
            or not _CODES.issuperset(codes)
        ):
            raise ValueError(f"the reply to a renewal has one code for each of {len(self.holds)} claims")
        if not self.differs and codes.count(_OURS) == len(codes):
            self.unanimous += 1
            if self.unanimous >= self._quorum:
                self._undecided = 0
        else:
            self._count(codes)
        return tuple(codes)

    def _count(self, codes: Sequence[int]) -> None:
        if not self.differs:
            self.differs = True
            self._existing = [self.unanimous] * len(codes)
            self._against = [0] * len(codes)
        for i, code in enumerate(codes):
            if code == _OURS:
                self._existing[i] += 1
                self._undecided -= self._existing[i] == self._quorum
            else:
                self._against[i] += 1
                self._undecided -= self._against[i] == self._enough_against

    def _hear(self, reply: Any) -> Any:
        """Learn newer limits, which a node tells after the codes if it knows any; return the codes."""
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

    def counts(self, tally: Tally) -> Iterable[tuple[HoldState, int, int, int]]:
        """Return for each hold how many nodes keep it, how many answered otherwise, how many are known to lack it."""
        n = len(self.holds)
        if not self.differs:
            return zip(self.holds, [self.unanimous] * n, [0] * n, [tally.failed] * n, strict=True)
        missing = [self._missing(i, tally) for i in range(n)]
        return zip(self.holds, self._existing, self._against, missing, strict=True)

    def _missing(self, i: int, tally: Tally) -> int:
        return sum(
            choice is Choice.FAILED or (choice is Choice.GRANTED and codes[i] not in (_HEALED, _OURS))
            for choice, codes in zip(tally.choices, tally.answers, strict=True)
        )


class _Settled(NamedTuple):
    """The results for the holds that are still live.

    Attributes:
        confirmed: Holds that a quorum keeps.
        doubtful: Holds for which too few nodes answered either way.
        lost: Holds that may no longer be believed, with the reason.
    """

    confirmed: list[HoldState]
    doubtful: list[HoldState]
    lost: list[tuple[HoldState, str]]


def renew(
    session: Session, holds: Sequence[HoldState], lease: float | None = None, cohort: Cohort | None = None
) -> Steps[tuple[list[HoldState], Tally]]:
    """Renew holds of one kind and lease with one command; return those that a quorum confirmed, and the tally.

    Each of the others is now either lost, or due for a retry.

    Without a `lease`, each gets its own lease again. The cohort keeps the command for the next renewal.
    """
    timing = session.timing
    wanted = holds[0].lease if lease is None else lease
    renewal = _Renewal(session, holds, [wanted] * len(holds), cohort)
    ends = {state: state.valid_until for state in holds} if session.observed else {}
    tally = yield from _ask(session, renewal, holds, wanted, renewal.decide)
    if (
        cohort is not None
        and len(renewal.holds) == len(cohort.holds)
        and _settle_together(session, renewal, tally, cohort)
    ):
        if ends:
            yield from _tell(renewal.holds, (), ends, tally)
        return renewal.holds, tally
    confirmed, doubtful, lost = _settle(session, renewal, tally, wanted, lengthens=True)
    retry_at = tally.at + min(max(timing.round_timeout(wanted), wanted / 30), 1.0)
    for state in doubtful:
        if state.renewed:
            state.renew_at = retry_at
    for state, reason in lost:
        yield from lose(state, reason)
    if ends:
        yield from _tell(confirmed, doubtful, ends, tally)
    return confirmed, tally


def fill_up(session: Session, holds: Sequence[HoldState], now: float, cohort: Cohort | None = None) -> Steps[None]:
    """Write holds of one kind and lease to the nodes that lack them; each hold records whether that worked.

    No caller waits for the result, so the round can wait for all nodes.

    The cohort keeps the command for the next time, if the watchdog renews all its holds.
    """
    timing, lease = session.timing, holds[0].lease

    def left(state: HoldState) -> float:
        seconds = max(state.valid_until - now, 0.0)
        return seconds + timing.drift(seconds)

    for state in holds:
        state.fill_pause = min(max(2 * state.fill_pause, timing.round_timeout(lease)), lease / 12)
        state.fill_at = now + state.fill_pause
    leases = [lease if state.renewed else left(state) for state in holds]
    renewal = _Renewal(session, holds, leases, cohort if holds[0].renewed else None)
    tally = yield from _ask(session, renewal, holds, min(leases), renewal.decide_last)
    # A hold with its own lease is not lengthened, not even by the time that the command took.
    for state, reason in _settle(session, renewal, tally, lease, lengthens=False).lost:
        yield from lose(state, reason)


def is_bare(session: Session, missing: int) -> bool:
    """Return whether a hold that `missing` nodes lack can't spare another node, if there are more than a quorum."""
    return session.nodes - missing <= session.quorum < session.nodes


def _ask(
    session: Session,
    renewal: _Renewal,
    holds: Sequence[HoldState],
    shortest: float,
    decide: Callable[[Tally], Verdict],
) -> Steps[Tally]:
    timeout, nodes = session.timing.round_timeout(shortest), session.all_nodes
    for state, lease in zip(holds, renewal.leases, strict=True):
        # Recorded before the send: a release that overtakes the answer must reach all nodes that the renewal may heal.
        state.touched |= nodes
        kept_until = state.valid_until + timeout + lease
        if kept_until > state.kept_until:  # noqa: PLR1730  (for ten thousand holds, calls are most of the cost)
            state.kept_until = kept_until
    shared = None if len(holds) > 1 else holds[0].owner
    try:
        return (yield from broadcast(Broadcast(renewal.command, shared, renewal.judge, timeout, decide=decide)))
    finally:
        for state in renewal.holds:
            if not state.live or state.lost is not None:
                # Its end went out meanwhile, perhaps over other connections: this command may have come after it.
                # Or its release comes only now, and finds the claim dropped.
                state.dropped = True
                yield from tell(rollback_of(state, leave=True))


def _settle_together(session: Session, renewal: _Renewal, tally: Tally, cohort: Cohort) -> bool:
    """Lengthen all holds of a cohort at once; return False if one of them needs a separate look.

    Usually none does: no node that answered lacks any of them, and more than a bare majority answered in time.
    """
    at, never, lease = tally.at, math.inf, cohort.lease
    until, next_at = session.timing.valid_until(tally.sent_at, lease), renew_at(tally.sent_at, lease)
    if renewal.unanimous < session.quorum or is_bare(session, tally.failed):
        return False
    if len(renewal.holds) == MOST:
        # Full cohorts that are due at about the same time become due together: the watchdog wakes up once for them.
        turn = session.timing.round_timeout(lease)
        next_at = next_at // turn * turn
    for state in renewal.holds:
        if state.lost is not None or not at < state.valid_until < until <= state.ends_at:
            return False
        if state.renew_at == never:
            return False
        state.tally = None
        state.fill_at, state.fill_pause = never, 0.0
        state.valid_until = until
        state.renew_at = next_at
    cohort.align(next_at, until)
    return True


def _settle(session: Session, renewal: _Renewal, tally: Tally, lease: float, *, lengthens: bool) -> _Settled:
    """Judge each hold by the answers; lengthen those that a quorum confirmed: all, or those that the watchdog renews.

    Makes no call for a confirmed hold: for ten thousand of them, calls are most of the cost.
    """
    quorum, at, never = session.quorum, tally.at, math.inf
    until, next_at = session.timing.valid_until(tally.sent_at, lease), renew_at(tally.sent_at, lease)
    bare = [is_bare(session, missing) for missing in range(session.nodes + 1)]
    confirmed, doubtful, lost = settled = _Settled([], [], [])
    for state, existing, against, missing in renewal.counts(tally):
        if not state.live or state.lost is not None:
            continue
        if at >= state.valid_until:
            lost.append((state, "no quorum of nodes confirmed a renewal in time"))
        elif existing >= quorum:
            # These answers are newer than those of the acquire's round.
            state.tally = None
            if not bare[missing]:
                state.fill_at, state.fill_pause = never, 0.0
            elif state.fill_at == never:
                state.fill_at = at
            renewed = state.renew_at != never
            if renewed:
                state.renew_at = next_at
            if renewed or lengthens:
                if state.valid_until < until <= state.ends_at:
                    state.valid_until = until
                else:
                    state.lengthen(until)
            confirmed.append(state)
        elif against > session.nodes - quorum:
            lost.append((state, f"{against} of {session.nodes} nodes no longer keep the claim"))
        else:
            doubtful.append(state)
    return settled


def _tell(
    confirmed: Sequence[HoldState], doubtful: Sequence[HoldState], ends: Mapping[HoldState, float], tally: Tally
) -> Steps[None]:
    """Report a renewal to observers; `ends`: until when each hold could be believed before it."""
    left = tuple((ends[state] - tally.at) / state.lease for state in confirmed)
    yield from notify(HoldsRenewed(tuple(confirmed), left, tuple(doubtful)))
