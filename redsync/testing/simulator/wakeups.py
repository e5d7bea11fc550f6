"""Sleeping in virtual time: the wake-ups of one simulated client, from nodes and from within.

A mailbox is opened before the command is sent that may lead to a wake-up, so no signal falls between look and sleep.
"""

from __future__ import annotations

import asyncio
import math
from typing import TYPE_CHECKING, Final

from redsync._core.effects import Wait
from redsync.testing.simulator.nodes import Push

if TYPE_CHECKING:
    from redsync.testing.simulator.runner import SimRunner

__all__ = ["Wakeups"]


class _Mailbox:
    """What nodes, or others of this client, have signalled to one sleeper.

    Attributes:
        signals: Bit set of the nodes that have signalled.
        marks: Which of them did with which mark.
        needed: How many of them end the sleep.
        sleeper: Who sleeps on it.
    """

    __slots__ = ("marks", "needed", "signals", "sleeper")

    def __init__(self) -> None:
        self.signals = 0
        self.marks: dict[bytes, int] = {}
        self.needed = 1
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
        self._sleepers: Final[dict[asyncio.Future[None], None]] = {}
        self._closed = False

    def listen(self, key: bytes) -> None:
        """Keep nodes' wake-ups for that key from now on; forget those of before."""
        self._mailboxes[key] = _Mailbox()

    def deafen(self, key: bytes) -> None:
        """Forget the wake-ups for that key."""
        self._mailboxes.pop(key, None)

    def listens(self, key: bytes) -> bool:
        """Whether somebody waits, or is about to, for nodes' wake-ups for that key."""
        return key in self._mailboxes

    def deliver(self, push: Push, bit: int) -> None:
        """Put a node's wake-up into its mailbox, if there is one."""
        mark, _, key = push.message.partition(b" ")
        mailbox = self._mailboxes.get(key)
        if mailbox is not None:
            mailbox.signal(bit, mark)

    def ring(self, key: bytes) -> None:
        """End the sleep of everybody in this client who sleeps for that key."""
        for bell in self._bells.get(key, ()):
            bell.signal(1)

    async def sleep(self, wait: Wait) -> tuple[int, int]:
        """Sleep as the effect says; return how many signals have come, and which nodes' had the mark."""
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

    async def _nap(self, mailbox: _Mailbox, until: float) -> None:
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
