"""Observing: wrappers of the protocols that acquire and release; they report to observers.

The wrapped protocols don't change. Nothing here runs for a client without observers. An observed acquire writes its
steps into a record (`Session.note`), and observers get the record when the acquire is over, whatever ended it.

A report is a `Notify`: observers learn the instant from the driver, as a protocol has no clock.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Literal, TypeVar

from redsync._core.effects import Steps, notify
from redsync._core.holds import HoldState
from redsync._core.observing import AcquireEnded, AcquireRecord, HoldEnded
from redsync._core.session import Session
from redsync._protocols.claims import AcquireRequest
from redsync.exceptions import QuorumError

__all__ = ["observed", "tell_observers"]

ResultT = TypeVar("ResultT")


def observed(
    session: Session,
    request: AcquireRequest,
    now: float,
    acquire: Callable[[Session, AcquireRequest, float], Steps[ResultT]],
    *,
    kind: str,
    limit: int | None = None,
) -> Steps[ResultT]:
    """Acquire, and report to observers; result and errors are those of `acquire`."""
    record = AcquireRecord(request.name, kind, wanted=request.holds, limit=limit, started=now)
    session.records[request] = record
    try:
        result: Any = yield from acquire(session, request, now)
    except BaseException as error:
        outcome: Literal["no_quorum", "error"] = "no_quorum" if isinstance(error, QuorumError) else "error"
        yield from notify(AcquireEnded(record, outcome, None, type(error).__name__))
        raise
    finally:
        session.records.pop(request, None)
    hold = result if isinstance(result, HoldState) else None
    yield from notify(AcquireEnded(record, "won" if result else "busy", hold))
    return result  # type: ignore[no-any-return]


def tell_observers(state: HoldState, steps: Steps[None]) -> Steps[None]:
    """Run a protocol that ends one acquisition of a hold or all; tell observers if none is left."""
    try:
        yield from steps
    finally:
        if not state.count or not state.live:
            if state.lost is None:
                # Observers may keep the hold for a while, and callbacks refer to the client.
                state.on_lost.clear()
            yield from notify(HoldEnded(state))
