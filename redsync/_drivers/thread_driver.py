"""Driving in threads: performs a protocol's effects in the calling thread, until the protocol returns.

The lock `_monitor` is held while a protocol's own code runs, and never while an effect is performed. An interruption of
an effect is thrown into the protocol; the driver then performs its clean-up effects to the end.
"""

from __future__ import annotations

import inspect
import logging
import threading
from abc import ABC
from collections import deque
from collections.abc import Callable, Sequence
from typing import Final, TypeAlias, TypeVar, assert_never

from redsync._core.effects import Broadcast, Effect, Notify, Reply, Signal, Steps, Tell, Wait, Wakeup
from redsync._core.events import Event
from redsync._core.quorum import Tally
from redsync._drivers.maintenance import Maintenance
from redsync._drivers.notifier import Notifier
from redsync._drivers.reentry import BUSY, CALLING, Doing
from redsync._drivers.requests import Request, Retry
from redsync._drivers.transport import Transport
from redsync.exceptions import ClientClosedError, RedsyncError

__all__ = ["Subscribed", "ThreadDriver", "forked"]

T = TypeVar("T")

log = logging.getLogger("redsync")

Subscribed: TypeAlias = set[bytes | Retry]
"""The resources of a running protocol: subscriptions to keys' wake-ups, and its turn to repeat a round."""


def forked() -> ClientClosedError:
    """Return the error of a call that was begun before a fork, in the child."""
    return ClientClosedError("this process was forked inside the call, which continues in its parent alone")


class ThreadDriver(ABC):
    """Performs effects for a runner of threads; `threads` begins and ends a client.

    Attributes:
        client_id: The UUID under which this process's holds are kept; a forked child has another.
        closed: True once the client was closed: then no caller sleeps any more.
    """

    client_id: str
    closed: bool
    _deferred: deque[Steps[None]]
    _doing: Doing
    _maintenance: Maintenance | None
    _monitor: threading.Lock
    _transport: Transport

    def __init__(
        self, addresses: Sequence[str], now: Callable[[], float], listeners: Sequence[Callable[[Event], object]]
    ) -> None:
        """Make a driver; `now` is the clock, each of `listeners` is called with each event."""
        self.now: Final = now
        self._addresses: Final = addresses
        self._notifier: Final = Notifier(listeners, self._contain, addresses, now)

    def _drive(self, steps: Steps[T], subscribed: Subscribed, perform: Callable[[Effect, Subscribed], Reply]) -> T:
        monitor = self._monitor
        reply: Reply = None
        interruption: BaseException | None = None
        while True:
            try:
                while True:  # Within the `try`: an interruption can come where a loop repeats.
                    with monitor:
                        effect = steps.send(reply) if interruption is None else steps.throw(interruption)
                    interruption = None
                    # The hot path skips the match over all effects.
                    if effect.__class__ is Broadcast:
                        reply = self._broadcast(effect, subscribed)
                    else:
                        reply = perform(effect, subscribed)
            except StopIteration as stop:
                # No call here, see `Outcome`.
                if steps.gi_frame is None:  # type: ignore[attr-defined]  # every generator has it
                    result: T = stop.value
                    return result
                # The StopIteration came from a signal handler.
                interruption = stop
            except BaseException as error:
                if inspect.getgeneratorstate(steps) == inspect.GEN_CLOSED:
                    # The protocol raised it and has ended. Drop the reference, or this frame and the error would keep
                    # each other alive.
                    interruption = None
                    raise
                # The protocol cleans up, no matter whether an effect or the lines above raised the error.
                interruption = error

    def _perform(self, effect: Effect, subscribed: Subscribed) -> Reply:
        match effect:
            case Broadcast():
                return self._broadcast(effect, subscribed)
            case Tell():
                transport, owner = self._transport, effect.owner
                if owner is not None and owner.client_id is not self.client_id:
                    raise forked()  # as in `_broadcast`
                transport.send(Request(effect, None))
                return None
            case Wait():
                return self._wait(effect, subscribed)
            case Signal(key):
                self._transport.wakeups.ring(key)
                return None
            case Notify(event):
                self._doing.what = CALLING
                try:
                    self._notifier.announce(event)
                finally:
                    self._doing.what = BUSY
                return None
            case _:
                assert_never(effect)

    def _broadcast(self, effect: Broadcast, subscribed: Subscribed) -> Tally:
        transport = self._transport
        # In one step, because a named tuple's fields are slow to find.
        _, owner, judge, timeout, guard, _, _, decide, subscribe, thorough, late, lingers = effect
        # After the transport was read: no connection of a fork's child ever carries a command of its parent.
        if owner is not None and owner.client_id is not self.client_id:
            raise forked()
        if subscribe is not None:
            transport.wakeups.subscribe(subscribe, guard)
            subscribed.add(subscribe)
        tally = Tally(self._addresses, judge, decide, thorough, late, lingers)
        request = Request(effect, tally)
        tally.sent_at = sent_at = self.now()
        transport.carry(request, sent_at + timeout)
        if not request.done:
            transport.end_round(request, f"no answer within {timeout:g} s")
        if lingers and tally.open:
            transport.linger(request, tally, effect.lingers_until(sent_at, self.now()))
        if tally.failed and self._notifier.ears:
            self._notifier.note_votes(tally)
        tally.at = self.now()
        return tally

    def _wait(self, effect: Wait, subscribed: Subscribed) -> Wakeup:
        transport = self._transport
        retry = next((kept for kept in subscribed if isinstance(kept, Retry)), None)
        if retry is None and effect.retry_at is not None:
            retry = Retry()
            # Before it joins the queue of retries, so that the end of the run removes it from there.
            subscribed.add(retry)
        signals = transport.wait_for_wakeup(transport.wakeups.waits(effect, retry))
        if self.closed:
            raise ClientClosedError
        return Wakeup(self.now(), *signals)

    def _perform_watchdog(self, effect: Effect, subscribed: Subscribed) -> Reply:
        """Perform the watchdog's effects; the maintenance works while the watchdog sleeps."""
        if not isinstance(effect, Wait):
            return self._perform(effect, subscribed)
        assert self._maintenance is not None, "it runs this"
        while self._deferred:
            self._perform_deferred(self._deferred.popleft())
        self._maintenance.sleep(effect.until)
        return Wakeup(self.now(), 0)

    def _perform_deferred(self, steps: Steps[None]) -> None:
        try:
            self._drive(steps, set(), self._perform)
        except RedsyncError as error:
            log.warning("a release by a signal handler or finalizer failed: %s", error)

    def _contain(self, error: BaseException) -> bool:
        """Keep a callback's error from ending the client's own thread; in a caller's thread the error propagates."""
        if self._maintenance is None or not self._maintenance.is_current():
            return False
        log.error("a callback raised %r in the client's own thread, which continues", error)
        return True
