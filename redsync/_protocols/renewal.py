"""Renewal: one command lengthens many claims, and the answers of a quorum decide on each of them.

* A renewal counts only if a quorum of nodes answered *existing* before the old deadline. The same command repairs nodes
  that had forgotten the claim, but these count only from the next renewal on. So a held lock survives a rolling restart
  of every node, and one that has lapsed is never won back.
* `n - quorum + 1` definite answers "not yours" mean lost, at once: no quorum of *existing* is possible any more.
  Silence is not definite: the hold continues until `valid_until`, and the watchdog retries quickly.
* The next renewal is due a third of the lease after the last was *sent*: of the hold's own lease, or of a shorter one
  by which it was extended. No renewal ends a longer extension: a node that forgot the claim gets it for its rest.
* The first renewal comes a moment after the grant: a node may have missed the ask, or refused it, and a hold on no more
  than a quorum is one failure away from being lost. A hold with its own lease is not renewed, but for this one of a
  permit, for the rest of the lease: else nodes would keep slots for it until then that it has not won.

The renewals of many holds of one kind travel as one script call. The client composes it at the instant of sending, from
the holds that are live at that instant, and a release ends `live` before it is sent. But a release may go out over
other connections, and be executed before a renewal that was composed earlier. That renewal would make the claim again.
So, over the same connections, the client rolls back each hold that has ended by the time the renewal is answered.
"""

from __future__ import annotations

import math
from typing import Any

from redsync._core.effects import Broadcast, Steps, broadcast, notify, tell
from redsync._core.holds import HoldState
from redsync._core.observing import HoldsRenewed
from redsync._core.quorum import Tally, Verdict
from redsync._core.scripts import Command
from redsync._core.session import Session
from redsync._core.timing import milliseconds
from redsync._protocols.answers import no_quorum
from redsync._protocols.holding import check, lose, rollback_of, what_of
from redsync.exceptions import NotOwnedError

__all__ = ["extend", "renew"]

_CODES = frozenset((-1, 0, 1, 2))
_OURS = 2
_INTEGERS = frozenset((int,))


class _Renewal:
    """One command that renews several holds of one kind, and what the nodes' answers say of each of them.

    Attributes:
        leases: The lease for which each hold is to be renewed.
        holds: The holds that the command renews; those that had ended by the instant of sending are left out.
    """

    def __init__(self, session: Session, leases: dict[HoldState, float]) -> None:
        self.leases = leases
        self._guard = (1,) if session.timing.restart_guard > 0 else ()
        self.holds: list[HoldState] = []

    def command(self) -> Command | None:
        holds = [state for state in self.leases if state.live and state.lost is None]
        if not holds:
            self.holds = holds
            return None
        command = type(holds[0]).renewal_of(holds, [milliseconds(self.leases[state]) for state in holds])
        command = command._replace(args=(*command.args, *self._guard))
        # Last: an interruption before this leaves a command that has renewed nothing.
        self.holds = holds
        return command

    def parse(self, reply: Any) -> list[int]:
        """Return the codes in a node's reply, one for each hold."""
        codes, told = reply[: len(self.holds)], reply[len(self.holds) :]
        if (
            codes.__class__ is not list
            or len(codes) != len(self.holds)
            or not _INTEGERS.issuperset(map(type, codes))
            or not _CODES.issuperset(codes)
        ):
            raise ValueError(f"the reply to a renewal has one code for each of {len(self.holds)} claims")
        if told:
            self._hear(told)
        return codes

    def _hear(self, told: list[bytes]) -> None:
        """Learn the limits that a node tells after the codes, one for each key, if any is newer."""
        limits = dict(zip(dict.fromkeys(state.keys.lock for state in self.holds), told, strict=True))
        for state in self.holds:
            state.learn(limits[state.keys.lock])

    def counts(self, tally: Tally) -> list[tuple[int, int]]:
        """Return for each hold how many nodes kept its claim, and how many gave another answer."""
        each_hold = zip(*tally.grants, strict=True) if tally.grants else [()] * len(self.holds)
        return [(existing := codes.count(_OURS), len(codes) - existing) for codes in each_hold]

    def decide(self, tally: Tally) -> Verdict:
        spare = len(tally.nodes) - tally.quorum
        if all(existing >= tally.quorum or against > spare for existing, against in self.counts(tally)):
            return Verdict.WON
        return Verdict.PENDING if None in tally.ballots else Verdict.LOST


def renew(session: Session, leases: dict[HoldState, float]) -> Steps[tuple[list[HoldState], Tally]]:
    """Renew holds of one kind for these leases, with one command; return those that a quorum confirmed, and the tally.

    Each of the others is now either lost, or due for a retry.
    """
    timing = session.timing
    renewal = _Renewal(session, leases)
    shortest = min(leases.values())
    ends = {state: state.valid_until for state in leases} if session.observed else {}
    tally = yield from _ask(session, renewal, shortest)
    retry_at = tally.at + min(max(timing.round_timeout(shortest), shortest / 30), 1.0)
    confirmed, lost = _apply(session, renewal, tally, retry_at)
    for state, reason in lost:
        yield from lose(state, reason)
    if ends:
        yield from notify(HoldsRenewed({s: (ends[s] - tally.at) / min(s.lease, ends[s] - s.since) for s in confirmed}))
    return confirmed, tally


def extend(session: Session, state: HoldState, lease: float | None, now: float) -> Steps[None]:
    """Lengthen a hold now, on a quorum.

    Raises:
        LeaseLostError: The hold is lost.
        NotOwnedError: Another thread released it meanwhile.
        QuorumError: Too few nodes answered; the hold is unchanged.
    """
    yield from check(state, now)
    confirmed, tally = yield from renew(session, {state: state.lease if lease is None else lease})
    session.holds.watch(state)
    if not state.live and state.lost is None:
        raise NotOwnedError(state.name, f"{what_of(state)} was released while it was being extended")
    yield from check(state, tally.at)
    if not confirmed:
        raise no_quorum(state.name, tally, state.kind.label)


def _ask(session: Session, renewal: _Renewal, shortest: float) -> Steps[Tally]:
    timeout, nodes = session.timing.round_timeout(shortest), session.all_nodes
    for state in renewal.leases:
        # Recorded before the send: a release that overtakes the answer must reach all nodes that the renewal may
        # repair.
        state.may_keep |= nodes
    owner = next(iter(renewal.leases)).owner if len(renewal.leases) == 1 else None
    try:
        return (yield from broadcast(Broadcast(renewal.command, owner, renewal.parse, timeout, decide=renewal.decide)))
    finally:
        for state in renewal.holds:
            if (not state.live and not state.left) or state.lost is not None:
                # Its end went out meanwhile, perhaps over other connections: this command may have come after it.
                # Or its release comes only now, and finds the claim dropped.
                state.rolled_back = True
                yield from tell(rollback_of(state, leave=True))


def _apply(
    session: Session, renewal: _Renewal, tally: Tally, retry_at: float
) -> tuple[list[HoldState], list[tuple[HoldState, str]]]:
    """Judge each live hold by the answers, and lengthen those that a quorum keeps; return these.

    Also return those that may no longer be believed, with the reason. Of the others too few nodes answered.
    """
    timing, quorum, at = session.timing, session.quorum, tally.at
    confirmed, lost = [], []
    for state, (existing, against) in zip(renewal.holds, renewal.counts(tally), strict=True):
        if not state.live or state.lost is not None:
            continue
        if at >= state.valid_until:
            lost.append((state, "no quorum of nodes confirmed a renewal in time"))
        elif existing >= quorum:
            lease = renewal.leases[state]
            state.renew_at = tally.sent_at + min(lease, state.lease) / 3 if state.renewed else math.inf
            until = min(timing.valid_until(tally.sent_at, lease), state.ends_at)
            state.valid_until = max(state.valid_until, until)
            confirmed.append(state)
        elif against > session.nodes - quorum:
            lost.append((state, f"{against} of {session.nodes} nodes no longer keep the claim"))
        elif state.renew_at < math.inf:
            state.renew_at = retry_at
    return confirmed, lost
