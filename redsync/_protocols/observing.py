"""Observing: what observers learn of acquires and of the ends of holds, told around the protocols that do these.

The protocols inside stay as they are. Nothing here runs for a client that nobody observes. An observed acquire writes
its steps into a record (`AcquireRequest.record`), and the record is told when the acquire is over, whatever ended it.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Literal, TypeVar

from redsync._core.effects import Steps, notify
from redsync._core.holds import HoldState
from redsync._core.observing import AcquireEnded, AcquireRecord, HoldEnded
from redsync._core.runner import Session
from redsync._protocols.acquire_requests import AcquireRequest
from redsync.exceptions import QuorumError

__all__ = ["observed", "tell_end"]

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
    """Acquire, and tell observers how that went; results and errors are those of `acquire`.

    Args:
        session: The client's session.
        request: What to acquire, and how.
        now: The instant at which the acquire begins.
        acquire: Makes the protocol that acquires.
        kind: The kind of synchronizer.
        limit: The semaphore's number of permits.
    """
    record = AcquireRecord(request.name, kind, request.holds, limit, now)
    ended = AcquireEnded(record, "error")
    session.acquiring.add(record)
    try:
        result: Any = yield from acquire(session, request._replace(record=record), now)
        hold = result if isinstance(result, HoldState) else None
        ended = AcquireEnded(record, "won" if result else "busy", hold)
    except BaseException as error:
        outcome: Literal["no_quorum", "error"] = "no_quorum" if isinstance(error, QuorumError) else "error"
        ended = AcquireEnded(record, outcome, None, type(error).__name__)
        raise
    finally:
        session.acquiring.discard(record)
        yield from notify(ended)
    return result  # type: ignore[no-any-return]


def tell_end(state: HoldState, how: Literal["released", "given back"], steps: Steps[None]) -> Steps[None]:
    """Run the protocol that ends a hold, or one of its acquisitions; tell observers if none is left."""
    try:
        yield from steps
    finally:
        if not state.count or not state.live:
            yield from notify(HoldEnded(state, how))
