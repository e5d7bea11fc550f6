"""Sleeping in virtual time: the wake-ups of one simulated client, from nodes and from within, and turns to ask again.

A mailbox is opened before the command is sent that may lead to a wake-up, so no signal falls between look and sleep.
"""

from __future__ import annotations

import asyncio
import math
from typing import TYPE_CHECKING, Final

from redsync._core.effects import Wait
from redsync._core.retries import RetryQueue
from redsync.testing.simulator.nodes import Push

if TYPE_CHECKING:
    from redsync.testing.simulator.runner import SimRunner

__all__ = ["Retry", "Wakeups"]


class Retry:
    """A run of a protocol that found no quorum.

    Attributes:
        sleeper: What it sleeps on until it is to look whether it is its turn.
    """

    __slots__ = ("sleeper",)

    def __init__(self) -> None:
        self.sleeper: asyncio.Future[None] | None = None

    def call(self) -> None:
        """Let it look."""
        _wake(self.sleeper)


class _Mailbox:
    """What nodes, or others of this client, have signalled to one sleeper.

    Attributes:
        signals: Bit set of the nodes that have signalled.
        marks: Which of them did with which mark.
        needed: How many of them end the sleep.
        sleeper: Who sleeps on it.
        guard: For how many seconds a node must have remembered everything to hand the claim over.
    """

    __slots__ = ("guard", "marks", "needed", "signals", "sleeper")

    def __init__(self) -> None:
        self.signals = 0
        self.marks: dict[bytes, int] = {}
        self.needed = 1
        self.guard = 0.0
        self.sleeper: asyncio.Future[None] | None = None

    @property
    def full(self) -> bool:
        """Whether as many have signalled as are needed."""
        return self.signals.bit_count() >= self.needed

    def signal(self, bit: int, mark: bytes = b"0") -> None:
        """Note a signal."""
        self.signals |= bit
        self.marks[mark] = self.marks.get(mark, 0) | bit
        if self.full:
            _wake(self.sleeper)


class Wakeups:
    """The mailboxes, bells and sleepers of one client."""

    def __init__(self, runner: SimRunner) -> None:
        self._runner: Final = runner
        self._mailboxes: Final[dict[bytes, _Mailbox]] = {}
        self._bells: Final[dict[bytes, list[_Mailbox]]] = {}
        self._retries: Final[RetryQueue[Retry]] = RetryQueue(Retry.call)
        self._sleepers: Final[dict[asyncio.Future[None], None]] = {}
        self._closed = False

    def listen(self, key: bytes, guard: float = 0.0) -> None:
        """Keep nodes' wake-ups for that key from now on; forget those of before; `guard` as for the other drivers."""
        mailbox = self._mailboxes[key] = _Mailbox()
        mailbox.guard = guard

    def deafen(self, kept: bytes | Retry) -> None:
        """Forget the wake-ups for that key, or let others take their turns."""
        if isinstance(kept, bytes):
            self._mailboxes.pop(kept, None)
        else:
            self._retries.end(kept, self._runner.now())

    def listens(self, key: bytes) -> bool:
        """Whether somebody waits, or is about to, for nodes' wake-ups for that key."""
        return key in self._mailboxes

    def deliver(self, push: Push, bit: int, remembers_since: float) -> None:
        """Put a node's wake-up into its mailbox, if there is one."""
        mark, _, key = push.message.partition(b" ")
        mailbox = self._mailboxes.get(key)
        if mailbox is not None:
            if mailbox.guard and remembers_since + mailbox.guard > self._runner.now():
                mark = b"0"
            mailbox.signal(bit, mark)

    def ring(self, key: bytes) -> None:
        """End the sleep of everybody in this client who sleeps for that key."""
        for bell in self._bells.get(key, ()):
            bell.signal(1)

    async def sleep(self, wait: Wait, retry: Retry | None) -> tuple[int, int]:
        """Sleep as the effect says; return how many signals have come, and which nodes' had the mark.

        `retry`: of the run, if it has found no quorum before or does now.
        """
        if wait.retry_at is not None:
            assert retry is not None, "this run found no quorum"
            await self._take_turn(retry, wait.retry_at, wait.until)
            return 0, 0
        if retry is not None:
            self.deafen(retry)
        if wait.unless is not None and wait.key is not None:
            return await self._sleep_on_bell(wait), 0
        mailbox = self._mailboxes.get(wait.key) if wait.key is not None else None
        if mailbox is None:
            await self._nap(_Mailbox(), wait.until)
            return 0, 0
        if not mailbox.full:
            await self._nap(mailbox, wait.until)
        mailbox.needed = wait.enough
        if mailbox.signals and not mailbox.full:
            await self._nap(mailbox, min(wait.until, self._runner.now() + wait.grace))
        return mailbox.signals.bit_count(), mailbox.marks.get(wait.mark, 0) if wait.mark is not None else 0

    async def _sleep_on_bell(self, wait: Wait) -> int:
        assert wait.key is not None
        assert wait.unless is not None
        bell = _Mailbox()
        bells = self._bells.setdefault(wait.key, [])
        bells.append(bell)
        try:
            if not wait.unless():
                await self._nap(bell, wait.until)
        finally:
            bells.remove(bell)
            if not bells:
                del self._bells[wait.key]
        return bell.signals

    async def _take_turn(self, retry: Retry, ready_at: float, until: float) -> None:
        """Sleep until it is this run's turn to ask again, or the instant has come; the turn lasts until `deafen`."""
        now, retries = self._runner.now, self._retries
        retries.join(retry, ready_at, now())
        try:
            while (look_at := retries.look(retry, now())) is not None and now() < until and not self._closed:
                await self._nap(retry, min(look_at, until))
        finally:
            retries.give_up(retry, now())

    async def _nap(self, mailbox: _Mailbox | Retry, until: float) -> None:
        if self._closed:
            return
        sleeper = mailbox.sleeper = asyncio.Future(loop=self._runner.sim.loop)
        self._sleepers[sleeper] = None
        try:
            await self.sleep_until(sleeper, until)
        finally:
            del self._sleepers[sleeper]

    async def sleep_until(self, sleeper: asyncio.Future[None], until: float) -> None:
        """Wait for a future, or until that instant."""
        timer = None if until == math.inf else self._runner.at(until, _wake, sleeper)
        try:
            await sleeper
        finally:
            if timer is not None:
                timer.cancel()

    def close(self) -> None:
        """Let nobody sleep any longer."""
        self._closed = True
        for sleeper in self._sleepers:
            _wake(sleeper)


def _wake(sleeper: asyncio.Future[None] | None) -> None:
    if sleeper is not None and not sleeper.done():
        sleeper.set_result(None)
