"""Driving in a loop: performs a protocol's effects in the calling task.

A protocol's own code awaits nothing, so it runs alone. A cancellation arises in the effect that is awaited.
"""

from __future__ import annotations

import logging
from abc import ABC, abstractmethod
from collections.abc import Callable, Coroutine, Sequence
from typing import TYPE_CHECKING, Any, Final, TypeAlias, TypeVar, assert_never

from redsync._core.effects import Broadcast, Command, Effect, Notify, Reply, Signal, Steps, Tell, Wait, Wakeup
from redsync._core.events import Event
from redsync._core.quorum import Tally
from redsync._drivers.aio_link_sets import AioLinkSet
from redsync._drivers.notifier import Notifier
from redsync._drivers.process import forked
from redsync._drivers.requests import Request, Retry

if TYPE_CHECKING:
    from redsync._drivers.aio import AioLife

__all__ = ["AioCall", "AioDriver", "Perform"]

T = TypeVar("T")

log = logging.getLogger("redsync")

_LAST_CHANCE = 0.03
"""Seconds that nodes always have to answer, no matter how long the first connections took."""


class _Dropped(BaseException):
    """Replaces GeneratorExit in a protocol: `yield from` would not pass that on, but close the inner generator."""


class AioCall:
    """One run of a protocol.

    Attributes:
        life: The client in this process.
        awaited: True for a caller's: a closing client waits for it.
        subscribed: Its subscriptions to keys' wake-ups, and its turn to repeat a round.
    """

    __slots__ = ("awaited", "life", "subscribed")

    def __init__(self, life: AioLife, *, awaited: bool = False) -> None:
        self.life = life
        self.awaited = awaited
        self.subscribed: set[bytes | Retry] = set()

    def end(self) -> None:
        """End a caller's run: its subscriptions, and the wait of a closing client if no other one runs."""
        life = self.life
        life.active -= 1
        for kept in self.subscribed:
            life.wakeups.unsubscribe(kept)
        if not life.active and life.idle is not None and not life.idle.done():
            life.idle.set_result(None)


Perform: TypeAlias = Callable[[Effect, AioCall], Coroutine[Any, Any, Reply] | None]
"""Performs an effect; returns what to await for its reply, None if there is none."""


class AioDriver(ABC):
    """Performs effects for a runner of asyncio; `aio` begins and ends a client."""

    def __init__(
        self, addresses: Sequence[str], clock: Callable[[], float], listeners: Sequence[Callable[[Event], object]]
    ) -> None:
        """Make a driver; each of `listeners` is called with each event."""
        self.clock: Final = clock
        self._addresses: Final = addresses
        self.notifier: Final = Notifier(listeners, self._contain, addresses, clock)

    @abstractmethod
    def require_open(self) -> None:
        """Raise `ClientClosedError` if the client was closed."""

    @abstractmethod
    def _contain(self, error: BaseException) -> bool:
        """Keep a callback's error from ending the maintenance; return True if that was done."""

    async def drive(self, steps: Steps[T], call: AioCall, perform: Perform) -> T:
        """Perform the protocol's effects until it returns; return its result or raise its error.

        An error of an effect, above all a cancellation, is thrown into the protocol. Then this performs all of the
        protocol's clean-up effects. These wait for nothing, so a second cancellation finds nothing to interrupt. For
        the same reason even a dropped coroutine, which can't await anything any more, cleans up.
        """
        life = call.life
        reply: Reply = None
        interruption: BaseException | None = None
        if call.awaited:
            life.active += 1
        try:
            while True:
                outer, life.stepping = life.stepping, True
                try:
                    effect = steps.send(reply) if interruption is None else steps.throw(interruption)
                except StopIteration as stop:
                    result: T = stop.value
                    return result
                except _Dropped:
                    raise GeneratorExit from None
                finally:
                    life.stepping = outer
                    # The error refers to this frame, so this frame must not refer to the error.
                    interruption = None
                try:
                    performing = perform(effect, call)
                    reply = None if performing is None else await performing
                except GeneratorExit:
                    interruption = _Dropped()
                except BaseException as error:
                    interruption = error
        finally:
            if call.awaited:
                call.end()

    def perform(self, effect: Effect, call: AioCall) -> Coroutine[Any, Any, Reply] | None:
        """Perform an effect in the calling task."""
        match effect:
            case Broadcast():
                return self._broadcast(effect, call)
            case Tell():
                self._tell(effect, call)
            case Wait():
                return self._wait(effect, call)
            case Signal(key):
                call.life.wakeups.ring(key)
            case Notify(event):
                self.notifier.announce(event)
            case _:
                assert_never(effect)
        return None

    def perform_by_maintenance(self, effect: Effect, call: AioCall) -> Coroutine[Any, Any, Reply] | None:
        """Perform an effect of the watchdog; the maintenance works while the watchdog sleeps."""
        return self._maintain(effect, call) if isinstance(effect, Wait) else self.perform(effect, call)

    async def _maintain(self, effect: Wait, call: AioCall) -> Wakeup:
        assert call.life.maintenance is not None, "it runs this"
        await call.life.maintenance.sleep(effect.until)
        return Wakeup(self.clock(), 0)

    def _links(self, effect: Broadcast | Tell, call: AioCall) -> AioLinkSet:
        """Return the links for a command; raise in another process: no child of a fork acts for its parent."""
        owner, life = effect.owner, call.life
        if not life.is_current() or (owner is not None and owner.client_id != life.client_id):
            raise forked()
        assert life.maintenance is not None, "what runs has a loop"
        return life.maintenance.own

    def _tell(self, effect: Tell, call: AioCall) -> None:
        self._links(effect, call).send_soon(Request(effect, None))

    async def _broadcast(self, effect: Broadcast, call: AioCall) -> Tally:
        links, left, clock = self._links(effect, call), effect.timeout, self.clock
        if not call.life.ready:
            # The first use. Connecting is part of the round, so a caller's timeout holds even if nodes hang.
            asked_at = clock()
            await call.life.await_opening(left)
            left = max(left - (clock() - asked_at), min(left, _LAST_CHANCE))
        if effect.subscribe is not None:
            call.life.wakeups.subscribe(effect.subscribe, effect.guard)
            call.subscribed.add(effect.subscribe)
        tally = effect.tally(self._addresses)
        request = Request(effect, tally)
        if request.make():
            tally.sent_at = sent_at = clock()
            links.send_soon(request)
            if not isinstance(effect.command, Command):
                # It is made of the holds that live now: none may end before it is sent.
                links.flush()
            if not request.done:
                await links.sleep(request, sent_at + left)
                if not request.done:
                    await links.wait(request, sent_at + left)
                if not request.done:
                    links.close_round(request, f"no answer within {effect.timeout:g} s")
            if effect.lingers and tally.open:
                await links.linger(request, tally, effect.lingers_until(sent_at, clock()))
        else:
            tally.close("nothing to send")
        if tally.failed and self.notifier.ears:
            self.notifier.note_votes(tally)
        tally.at = clock()
        return tally

    async def _wait(self, effect: Wait, call: AioCall) -> Wakeup:
        life, links = call.life, call.life.links
        retry = next((kept for kept in call.subscribed if isinstance(kept, Retry)), None)
        if retry is None and effect.retry_at is not None:
            retry = Retry()
            call.subscribed.add(retry)
        waits = life.wakeups.waits(effect, retry)
        try:
            while True:
                try:
                    sleeper, until = next(waits)
                except StopIteration as stop:
                    self.require_open()
                    return Wakeup(self.clock(), *stop.value)
                await links.sleep(sleeper, until)
        finally:
            waits.close()
