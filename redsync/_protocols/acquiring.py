"""Acquiring: ask for a new claim, wait for it, roll back failed tries. Shared by all kinds of claims.

An attempt rolls back each round that it did not win, on all nodes, with two exceptions: each node that it asked has
refused, or it asks for the same again at once, now with a place in the queue. The next step depends on why it lost:

* *without quorum* (too many nodes failed): an error at once for a non-blocking acquire; else another try after a
  growing pause, until the deadline or the outage timeout, and without a place that others would have to wait for;
* *split vote* (contenders hold a minority each, so none can win): another try after a short random pause that grows;
* *held*: sleep until nodes hand the lock over or wake us, the holder's time is up, or a jittered second has passed.
  Each try queues in the same atomic step in which a node refuses it, so no release slips in between try and sleep.

**Hand-over.** A node that frees a lock claims it for the head of the queue in the same step: for the lease that the
head asked for, or, if the watchdog is to lengthen the claim, for as long as it would have kept the place. Its message
has the *mark* of the ask that it answers. A quorum of such messages counts like votes, and the hold is believed from
the instant of that ask. A rollback may undo a later hand-over, so after a rollback no hand-over counts until the next
ask, which has another mark. The attempt takes up the hold only while enough of its time is left. Otherwise, and if its
hold takes more than the claim (a token, several holds), it asks once more, and finds its claims there: no other owner
came in between.

**Each try after a rollback makes a new claim**, with a number that no try before had. So a rollback that arrives late,
over an abandoned connection, finds none of the later claims. The place in the queue stays: it belongs to
the owner. A try without a rollback before it repeats its claim, and finds it on the nodes that granted it.

`claims` decides what to claim, and `places` who is served first. This loop knows neither by name.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeAlias

from redsync._core.effects import Steps, broadcast, wait
from redsync._core.holds import HoldState
from redsync._core.quorum import Verdict
from redsync._core.runner import Session
from redsync._protocols.acquire_requests import AcquireRequest
from redsync._protocols.attempts import Attempt
from redsync._protocols.claims import Claim
from redsync._protocols.lining_up import line_up

__all__ = ["Reenter", "acquire_new"]

_WON = Verdict.WON

Reenter: TypeAlias = Callable[[Session, AcquireRequest, HoldState, float], Steps[float]]


def acquire_new(  # noqa: PLR0912, PLR0915  (each is one of the decisions above)
    session: Session, request: AcquireRequest, claim: Claim, now: float, reenter: Reenter | None = None
) -> Steps[HoldState | None]:
    """Return the hold of a new claim; None if others held it until the request's deadline.

    `reenter` acquires again what the owner holds already, and returns the instant; its hold is the result, unless it
    has ended meanwhile. It is None for kinds without re-entry.

    Raises:
        QuorumError: Too few nodes answered: at once for one try, else at the deadline.
        KeyTypeError: The key holds a value of another type.
        ConfigurationError: The nodes have another limit than the program.
    """
    started = now
    if reenter is not None:
        state = request.owner.holds.get(request.keys.hold)
        if state is not None:
            now = yield from reenter(session, request, state, now)
            if state.live:
                return state
    attempt = Attempt(session, request, claim, started)
    settled = held = False
    under_way, lock = session.crowds.under_way, request.keys.lock
    others = under_way.get(lock, 0)
    turn = line_up(session, request, attempt, others)
    under_way[lock] = others + 1
    try:
        if turn is not None:
            now, may_ask = yield from turn.come(now, attempt.deadline)
            if not may_ask:
                return None
        while True:
            tally = yield from broadcast(attempt.ask(now))
            now, won = tally.at, tally.verdict is _WON
            if won and not claim.is_settled(tally):
                attempt.note(tally, now)
                tally, now = yield from claim.settle(tally, attempt.id, attempt.timeout_at)
                won = tally.won
            if won and now < (valid_until := claim.valid_until(tally)):
                return attempt.hold(tally, now, valid_until)
            attempt.note(tally, now)
            refusal = None if won else claim.refusal(tally)
            # A round won too late says as little as one without answers: the nodes are too slow now.
            mute = won or tally.without_quorum
            over = attempt.is_over(tally, now, mute=mute) or refusal is not None
            was_held, held = held, not mute
            if turn is not None:
                turn.note(mute=mute)
            if refusal is None and attempt.repeats(tally, over=over):
                # The next round asks for the same at once, so claims granted so far will count: mostly no rollback yet.
                yield from attempt.repeat()
                continue
            leave = over or (mute and attempt.place.suspend())
            if over or attempt.in_doubt or (mute and tally.sent) or (leave and attempt.place.taken):
                yield from attempt.roll_back(leave=leave)
            settled = over
            if over:
                attempt.conclude(tally, now, refusal, mute=mute, was_held=was_held)
                return None
            wake = yield from wait(attempt.sleep(tally, now, mute=mute))
            now = attempt.wake_up(wake)
            if wake.handed.bit_count() >= session.quorum and attempt.is_had(now):
                return attempt.take_over(now)
    except BaseException:
        refusal = None  # see `Attempt.conclude`
        yield from attempt.drop(settled=settled)
        raise
    finally:
        under_way[lock] -= 1
        if not under_way[lock]:
            del under_way[lock]
        if turn is not None:
            yield from turn.end()
