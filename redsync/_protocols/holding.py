"""Having a hold: check whether it may be believed, release it, extend it. Shared by all kinds of claims."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from redsync._core.effects import Broadcast, Command, Steps, Tell, broadcast, new_tuple, tell
from redsync._core.holds import HoldState
from redsync._core.quorum import Tally, Verdict
from redsync._core.runner import Session
from redsync._protocols.lease import expire, lose, rollback_of, tell_end
from redsync._protocols.observing import tell_end as tell_observers
from redsync._protocols.renewal import renew
from redsync._protocols.rounds import no_quorum
from redsync.exceptions import LeaseLostError, NotOwnedError

__all__ = ["check", "extend", "give_back", "release"]

# As in `quorum`.
_WON = Verdict.WON


def _had(reply: Any) -> bool:
    if reply.__class__ is int:
        if reply == 1:
            return True
        if reply == 0:
            return False
    raise ValueError("the reply to a release is 1 or 0")


def check(state: HoldState, now: float) -> Steps[None]:
    """Return if the hold may be believed at that instant.

    Raises:
        LeaseLostError: It may not.
    """
    if state.lost is None and now >= state.valid_until:
        yield from expire(state)
    if state.lost is not None:
        raise _lost(state)


def release(
    session: Session,
    state: HoldState,
    now: float,
    holds: int = 1,
    on_lost: Callable[[HoldState], object] | None = None,
) -> Steps[None]:
    """Release `holds` acquisitions with one command; also forget `on_lost`, the callback that came with the last one.

    Raises:
        LeaseLostError: The hold had been lost; its acquisitions are released anyway.
        NotOwnedError: Another thread released them first.
    """
    if session.observed and session.journal is None:
        return tell_observers(state, "released", _release(session, state, now, holds, on_lost))
    return _release(session, state, now, holds, on_lost)


def _release(
    session: Session, state: HoldState, now: float, holds: int, on_lost: Callable[[HoldState], object] | None
) -> Steps[None]:
    if state.count < holds:
        raise NotOwnedError(state.name, f"{_what(state)} was released already")
    try:
        state.count -= holds
        if state.lost is None and now >= state.valid_until:
            yield from expire(state)
        if not state.count:
            session.holds.remove(state)
        elif state.on_lost:
            state.forget_callback(on_lost)
        if state.lost is not None:
            raise _lost(state)
        command, timeout = state.release_command(session.prepared), state.forms.terms.round_timeout
        # The last four: thorough, without late votes, without lingering, patient.
        ask = command, state.owner, _had, timeout, 0.0, state.touched, state.kept_until, None, None, True, False, False
        tally = yield from broadcast(new_tuple(Broadcast, (*ask, None)))
    except BaseException as error:
        yield from _break_off(session, state, now, error)
        raise
    finally:
        if state.watchers:
            yield from tell_end(state)
    try:
        if tally.verdict is not _WON:
            yield from _settle_for_less(state, tally)
    finally:
        journal = session.journal
        if journal is not None and not (state.count and state.live):
            journal.note_end(state, now, state.lost)


def _break_off(session: Session, state: HoldState, now: float, error: BaseException) -> Steps[None]:
    """End a release that raised an error."""
    if session.journal is not None and not (state.count and state.live):
        session.journal.note_end(state, now, state.lost)
    if isinstance(error, LeaseLostError) and state.lost is not None:
        return  # its own error: the loss has ended the claim
    # Interrupted, perhaps before a byte was sent: renewals end, so the nodes must not keep anything.
    if not state.count:
        session.holds.remove(state)
        yield from tell(rollback_of(state, leave=True))


def _settle_for_less(state: HoldState, tally: Tally) -> Steps[None]:
    # Too few nodes were in reach: the others get the release later, or expire the claim. That is not a loss while the
    # claim could still be believed.
    was_taken = tally.refused > len(tally.nodes) - tally.quorum and not state.dropped
    if was_taken or tally.at >= state.valid_until:
        reason = f"at its release {tally.refused} of {len(tally.nodes)} nodes no longer kept the claim"
        if state.live:
            yield from lose(state, reason)
        state.lost = state.lost or reason
        raise _lost(state)


def give_back(session: Session, state: HoldState) -> Steps[None]:
    """Release a hold on behalf of its owner, whatever its count, without waiting."""
    if session.observed:
        return tell_observers(state, "given back", _give_back(session, state))
    return _give_back(session, state)


def _give_back(session: Session, state: HoldState) -> Steps[None]:
    try:
        session.holds.remove(state)
        if state.lost is None:
            command = Command(state.kind.release, state.keys.all, (state.claim, 0, state.rest))
            yield from tell(Tell(command, state.owner, state.touched, state.kept_until))
    except BaseException:
        # Interrupted, perhaps before a byte was sent, and from now on nothing renews or releases the hold.
        session.holds.remove(state)
        if state.lost is None:
            yield from tell(rollback_of(state, leave=True))
        raise
    finally:
        yield from tell_end(state)


def extend(session: Session, state: HoldState, lease: float | None, now: float) -> Steps[None]:
    """Lengthen a hold now, on a quorum.

    Raises:
        LeaseLostError: The hold is lost.
        NotOwnedError: Another thread released it meanwhile.
        QuorumError: Too few nodes answered; the hold is unchanged.
    """
    yield from check(state, now)
    confirmed, tally = yield from renew(session, [state], lease)
    session.holds.watch(state)
    if not state.live and state.lost is None:
        raise NotOwnedError(state.name, f"{_what(state)} was released while it was being extended")
    yield from check(state, tally.at)
    if not confirmed:
        raise no_quorum(state.name, tally, state.kind.label)


def _lost(state: HoldState) -> LeaseLostError:
    return LeaseLostError(state.name, f"{_what(state)} was lost: {state.lost}; stop the work it protected")


def _what(state: HoldState) -> str:
    return f"the {state.what} of {state.kind.label} {state.name!r}"
