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
from typing import Any, Final, TypeAlias, TypeVar, assert_never

from redsync._core.effects import Broadcast, Effect, Notify, Reply, Signal, Steps, Tell, Wait, Wakeup
from redsync._core.events import Event
from redsync._core.quorum import Tally
from redsync._drivers.maintenance import Maintenance
from redsync._drivers.notifier import Notifier
from redsync._drivers.reentry import BUSY, CALLING, Doing
from redsync._drivers.requests import Request, Retry
from redsync._drivers.transport import Transport
from redsync.exceptions import ClientClosedError, RedsyncError

__all__ = ["ThreadDriver"]

T = TypeVar("T")

log = logging.getLogger("redsync")

Subscribed: TypeAlias = set[bytes | Retry]
"""The resources of a running protocol: subscriptions to keys' wake-ups, and its turn to repeat a round."""


class ThreadDriver(ABC):
    """Performs effects for a runner of threads; `threads` begins and ends a client.

    Attributes:
        closed: True once the client was closed: then no caller sleeps any more.
    """

    closed: bool
    _deferred: deque[Steps[None]]
    _doing: Doing
    _maintenance: Maintenance
    _monitor: threading.Lock
    _subscribed: dict[Steps[Any], Subscribed]
    """The resources of each running protocol that has any."""
    _transport: Transport

    def __init__(
        self, addresses: Sequence[str], now: Callable[[], float], listeners: Sequence[Callable[[Event], object]]
    ) -> None:
        """Make a driver; `now` is the clock, each of `listeners` is called with each event."""
        self.now: Final = now
        self._addresses: Final = addresses
        self._notifier: Final = Notifier(listeners, self._contain, addresses, now)

    def _drive(self, steps: Steps[T], perform: Callable[[Effect, Steps[Any]], Reply]) -> T:
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
                    reply = self._broadcast(effect, steps) if effect.__class__ is Broadcast else perform(effect, steps)
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

    def _perform(self, effect: Effect, steps: Steps[Any]) -> Reply:
        match effect:
            case Broadcast():
                return self._broadcast(effect, steps)
            case Tell():
                self._transport.send(Request(effect, None))
                return None
            case Wait():
                return self._wait(effect, steps)
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

    def _broadcast(self, effect: Broadcast, steps: Steps[Any]) -> Tally:
        transport = self._transport
        if effect.subscribe is not None:
            transport.wakeups.subscribe(effect.subscribe, effect.guard)
            self._subscribed.setdefault(steps, set()).add(effect.subscribe)
        tally = effect.tally(self._addresses)
        request = Request(effect, tally)
        tally.sent_at = sent_at = self.now()
        transport.carry(request, sent_at + effect.timeout)
        if not request.done:
            transport.end_round(request, f"no answer within {effect.timeout:g} s")
        if effect.lingers and tally.open:
            transport.linger(request, tally, effect.lingers_until(sent_at, self.now()))
        if tally.failed and self._notifier.ears:
            self._notifier.note_votes(tally)
        tally.at = self.now()
        return tally

    def _wait(self, effect: Wait, steps: Steps[Any]) -> Wakeup:
        transport = self._transport
        retry = next((kept for kept in self._subscribed.get(steps, ()) if isinstance(kept, Retry)), None)
        if retry is None and effect.retry_at is not None:
            retry = Retry()
            # Before it joins the queue of retries, so that the end of the run removes it from there.
            self._subscribed.setdefault(steps, set()).add(retry)
        signals = transport.wait_for_wakeup(transport.wakeups.waits(effect, retry))
        if self.closed:
            raise ClientClosedError
        return Wakeup(self.now(), *signals)

    def _perform_watchdog(self, effect: Effect, steps: Steps[Any]) -> Reply:
        """Perform the watchdog's effects; the maintenance works while the watchdog sleeps."""
        if not isinstance(effect, Wait):
            return self._perform(effect, steps)
        while self._deferred:
            self._perform_deferred(self._deferred.popleft())
        self._maintenance.sleep(effect.until)
        return Wakeup(self.now(), 0)

    def _perform_deferred(self, steps: Steps[None]) -> None:
        try:
            self._drive(steps, self._perform)
        except RedsyncError as error:
            log.warning("a release by a signal handler or finalizer failed: %s", error)

    def _contain(self, error: BaseException) -> bool:
        """Keep a callback's error from ending the client's own thread; in a caller's thread the error propagates."""
        if not self._maintenance.is_current():
            return False
        log.error("a callback raised %r in the client's own thread, which continues", error)
        return True
