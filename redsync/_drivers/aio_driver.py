"""Driving in a loop: performs a protocol's effects in the calling task.

A protocol's own code awaits nothing, so it runs alone. A cancellation arises in the effect that is awaited.
"""

from __future__ import annotations

import asyncio
import logging
from abc import ABC, abstractmethod
from collections.abc import Awaitable, Callable, Sequence
from typing import Final, TypeAlias, TypeVar, assert_never

from redsync._core.effects import Broadcast, Effect, Notify, Reply, Signal, Steps, Tell, Wait, Wakeup
from redsync._core.events import Event
from redsync._core.quorum import Tally
from redsync._drivers.aio_maintenance import AioMaintenance
from redsync._drivers.aio_transport import AioTransport
from redsync._drivers.notifier import Notifier
from redsync._drivers.requests import Request, Retry

__all__ = ["AioDriver", "Subscribed"]

T = TypeVar("T")

log = logging.getLogger("redsync")

Subscribed: TypeAlias = set[bytes | Retry]
"""The resources of a running protocol: subscriptions to keys' wake-ups, and its turn to repeat a round."""

_LAST_CHANCE = 0.03
"""Seconds that nodes always have to answer, no matter how long the first connections took."""


class _Dropped(BaseException):
    """Replaces GeneratorExit in a protocol: `yield from` would not pass that on, but close the inner generator."""


class AioDriver(ABC):
    """Performs effects for a runner of asyncio; `aio` begins and ends a client."""

    _loop: asyncio.AbstractEventLoop | None
    _maintenance: AioMaintenance | None
    _ready: bool
    _active: int
    _idle: asyncio.Future[None] | None

    def __init__(
        self, addresses: Sequence[str], now: Callable[[], float], listeners: Sequence[Callable[[Event], object]]
    ) -> None:
        """Make a driver; `now` is the clock, each of `listeners` is called with each event."""
        self.now: Final = now
        self._addresses: Final = addresses
        self._notifier: Final = Notifier(listeners, self._contain, addresses, now)

    @abstractmethod
    def require_open(self) -> None:
        """Raise `ClientClosedError` if the client was closed."""

    @abstractmethod
    async def _await_opening(self, timeout: float) -> None:
        """Wait until the client has connected, for at most `timeout` seconds."""

    async def _drive(  # noqa: PLR0912  (each is a step of the hot path)
        self, steps: Steps[T], perform: Callable[[Effect], Awaitable[Reply]] | None = None
    ) -> T:
        """Perform the protocol's effects until it returns; return its result or raise its error.

        An error of an effect, above all a cancellation, is thrown into the protocol. Then `_drive` performs all of the
        protocol's clean-up effects. These wait for nothing, so a second cancellation finds nothing to interrupt. For
        the same reason even a dropped coroutine, which can't await anything any more, cleans up.

        Args:
            steps: The protocol.
            perform: Performs its effects, instead of `_perform`; such a protocol is not one of the `_active`.
        """
        reply: Reply = None
        interruption: BaseException | None = None
        subscribed: Subscribed = set()
        if perform is None:
            self._active += 1
        try:
            while True:
                try:
                    effect = steps.send(reply) if interruption is None else steps.throw(interruption)
                except StopIteration as stop:
                    result: T = stop.value
                    return result
                except _Dropped:
                    raise GeneratorExit from None
                finally:
                    # The error refers to this frame, so this frame must not refer to the error.
                    interruption = None
                try:
                    if perform is not None:
                        reply = await perform(effect)
                    elif effect.__class__ is Broadcast:
                        # The hot path skips the match over all effects, and one coroutine.
                        reply = await self._broadcast(subscribed, effect)
                    else:
                        reply = await self._perform(subscribed, effect)
                except GeneratorExit:
                    interruption = _Dropped()
                except BaseException as error:
                    interruption = error
        finally:
            if perform is None:
                self._active -= 1
                if subscribed or self._idle is not None:
                    self._end(subscribed)

    async def _perform(self, subscribed: Subscribed, effect: Effect) -> Reply:
        match effect:
            case Broadcast():
                return await self._broadcast(subscribed, effect)
            case Tell():
                self._transport.send(Request(effect, None))
                return None
            case Wait():
                return await self._wait(effect, subscribed)
            case Signal(key):
                self._transport.wakeups.ring(key)
                return None
            case Notify(event):
                self._notifier.announce(event)
                return None
            case _:
                assert_never(effect)

    @property
    def _transport(self) -> AioTransport:
        assert self._maintenance is not None, "what runs has a loop"
        return self._maintenance.transport

    async def _broadcast(self, subscribed: Subscribed, effect: Broadcast) -> Tally:
        assert self._maintenance is not None, "what runs has a loop"
        transport, left = self._maintenance.transport, effect.timeout
        if not self._ready:
            # The first use. Connecting is part of the round, so a caller's timeout holds even if nodes hang.
            asked_at = self.now()
            await self._await_opening(left)
            left = max(left - (self.now() - asked_at), min(left, _LAST_CHANCE))
        if effect.subscribe is not None:
            transport.wakeups.subscribe(effect.subscribe, effect.guard)
            subscribed.add(effect.subscribe)
        tally = effect.tally(self._addresses)
        request = Request(effect, tally)
        tally.sent_at = sent_at = self.now()
        transport.send(request)
        if not request.done:
            # Inlined from `wait`: the hot path has one coroutine less.
            future = transport.lie_down(request, sent_at + left)
            try:
                await future
            finally:
                transport.get_up(request)
            if not request.done:
                await transport.wait(request, sent_at + left)
                if not request.done:
                    await transport.end_round(request, effect.timeout)
        if effect.lingers and tally.open:
            await transport.linger(request, tally, effect.lingers_until(sent_at, self.now()))
        if tally.failed and self._notifier.ears:
            self._notifier.note_votes(tally)
        tally.at = self.now()
        return tally

    async def _wait(self, effect: Wait, subscribed: Subscribed) -> Wakeup:
        transport = self._transport
        retry = next((kept for kept in subscribed if isinstance(kept, Retry)), None)
        if retry is None and effect.retry_at is not None:
            retry = Retry()
            subscribed.add(retry)
        signals = await transport.wait_for_wakeup(transport.wakeups.waits(effect, retry))
        self.require_open()
        return Wakeup(self.now(), *signals)

    def _end(self, subscribed: Subscribed) -> None:
        """End an active protocol."""
        for kept in subscribed:
            self._transport.wakeups.unsubscribe(kept)
        if self._idle is not None and not self._active and not self._idle.done():
            self._idle.set_result(None)

    async def _perform_watchdog(self, effect: Effect) -> Reply:
        """Perform the watchdog's effects; the maintenance works while the watchdog sleeps."""
        if not isinstance(effect, Wait):
            return await self._perform(set(), effect)
        assert self._maintenance is not None, "what runs has a loop"
        await self._maintenance.sleep(effect.until)
        return Wakeup(self.now(), 0)

    def _contain(self, error: BaseException) -> bool:
        """Keep a callback's error from ending the maintenance; `sys.exit()` still ends the loop, as in any callback."""
        maintenance, loop = self._maintenance, self._loop
        if maintenance is None or loop is None or not maintenance.is_current():
            return False
        if isinstance(error, asyncio.CancelledError):
            log.error("a callback raised %r in the client's own task, which continues", error)
        else:
            loop.call_soon(_raise, error)
        return True


def _raise(error: BaseException) -> None:
    raise error
