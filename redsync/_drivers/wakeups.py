"""Wake-ups: mailboxes for nodes' signals, bells for signals of other threads of this process, turns to try again.

A waiter opens a mailbox or a bell before it checks the condition that it waits for, so no signal is lost between check
and sleep. The driver does the sleeping: here a sleep is a generator of *waits*, each a sleeper and an instant. The
driver resumes it when the sleeper is done or the instant has come. The client's guard guards everything here.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Sequence
from contextlib import AbstractContextManager
from typing import Any, Final, TypeAlias

import hiredis

from redsync._core.effects import Wait
from redsync._core.retries import RetryQueue
from redsync._core.text import outline
from redsync._drivers.nodes import Node
from redsync._drivers.requests import Mailbox, Retry, Sleeper

__all__ = ["Waits", "Wakeups", "is_message"]

_MESSAGES: Final = [b"message"], [b"smessage"]
"""The first elements of pushes that carry a message."""

Waits: TypeAlias = Generator[tuple[Sleeper, float], None, tuple[int, int]]
"""Sleepers, each with the instant until which to sleep for it; returns the number of signals, and the bit set of the
nodes that signalled with the mark."""


def is_message(push: Sequence[Any]) -> bool:
    """Return whether a push carries a message; a node may send anything."""
    return push[:1] in _MESSAGES


class Wakeups:
    """One client's mailboxes and bells, and its queue of runs that found no quorum."""

    def __init__(
        self, mutex: AbstractContextManager[Any], clock: Callable[[], float], awaken: Callable[[Sleeper], None]
    ) -> None:
        self._mutex: Final = mutex
        self._clock: Final = clock
        self._awaken: Final = awaken
        self._mailboxes: Final[dict[bytes, Mailbox]] = {}
        self._bells: Final[dict[bytes, list[Mailbox]]] = {}
        self._retries: Final[RetryQueue[Retry]] = RetryQueue(self._call)

    def subscribe(self, key: bytes, guard: float = 0.0) -> None:
        """Collect nodes' wake-ups for that key from now on; forget earlier ones.

        A node hands the claim over only if it has remembered everything for `guard` seconds.
        """
        mailbox = Mailbox()
        mailbox.guard = guard
        with self._mutex:
            self._mailboxes[key] = mailbox

    def unsubscribe(self, kept: bytes | Retry) -> None:
        """Forget that key's wake-ups, or end that run's turn, so that other runs get theirs."""
        with self._mutex:
            if isinstance(kept, bytes):
                self._mailboxes.pop(kept, None)
            else:
                self._retries.end(kept, self._clock())

    def waits(self, effect: Wait, retry: Retry | None) -> Waits:
        """Sleep as the effect says; `retry` is the run's, if it finds no quorum now or found none before."""
        if effect.retry_at is not None:
            assert retry is not None, "this run found no quorum"
            return self.take_turn(retry, effect.retry_at, effect.until)
        if retry is not None:
            self.unsubscribe(retry)
        if effect.unless is not None and effect.key is not None:
            return self.wait_for_bell(effect.key, effect.until, effect.unless)
        return self.wait_for_nodes(effect.key, effect.until, effect.enough, effect.grace, effect.mark)

    def take_in(self, push: Sequence[Any], node: Node) -> None:
        """Put the wake-up that a node has sent into its mailbox, if there is one."""
        if not is_message(push):
            return
        message = push[-1]
        if message.__class__ is not bytes:
            raise hiredis.ProtocolError(f"sent {outline(message)} as a message")
        mark, _, key = message.partition(b" ")
        with self._mutex:
            mailbox = self._mailboxes.get(key)
            if mailbox is None:
                return
            # A node that remembers for less than the guard has no vote for new claims, so none for one that it hands
            # over.
            if not mailbox.guard or node.remembers_since <= self._clock() - mailbox.guard:
                mailbox.signal(node.bit, mark)
            else:
                mailbox.signal(node.bit)

    def wait_for_nodes(
        self, key: bytes | None, until: float, enough: int, grace: float, mark: bytes | None = None
    ) -> Waits:
        """Sleep until enough nodes have signalled, the grace after the first signal is over, or the instant has come.

        Returns the number of nodes that signalled, and the bit set of those that signalled with that mark.
        """
        with self._mutex:
            mailbox = self._mailboxes.get(key) if key is not None else None
        if mailbox is None:
            yield Sleeper(), until
            return 0, 0
        yield mailbox, until
        with self._mutex:
            mailbox.needed = enough
            mailbox.done = mailbox.signals.bit_count() >= enough
            patient = mailbox.signals and not mailbox.done
        if patient:
            yield mailbox, min(until, self._clock() + grace)
        return mailbox.signals.bit_count(), mailbox.marks.get(mark, 0) if mark is not None else 0

    def wait_for_bell(self, key: bytes, until: float, unless: Callable[[], bool]) -> Waits:
        """Sleep until `ring` is called for that key or the instant has come; not at all if `unless()` is true."""
        bell = Mailbox()
        with self._mutex:
            self._bells.setdefault(key, []).append(bell)
        try:
            if not unless():
                yield bell, until
        finally:
            with self._mutex:
                self._bells[key].remove(bell)
                if not self._bells[key]:
                    del self._bells[key]
        return bell.signals, 0

    def ring(self, key: bytes) -> None:
        """End all sleeps in this process for that key."""
        with self._mutex:
            for bell in self._bells.get(key, ()):
                bell.signal(1)
                self._awaken(bell)

    def take_turn(self, retry: Retry, ready_at: float, until: float) -> Waits:
        """Sleep until this run's turn to try again, or the instant, has come; the turn lasts until `unsubscribe`."""
        retries, waits = self._retries, True
        try:
            with self._mutex:
                retries.join(retry, ready_at, self._clock())
            while waits:
                with self._mutex:
                    look_at = retries.look(retry, self._clock())
                    retry.done = False
                if look_at is None:
                    break
                yield retry, min(look_at, until)
                now = self._clock()
                # Woken neither by a call nor by the clock: the client is closed.
                waits = now < until and (retry.done or now >= look_at)
        finally:
            with self._mutex:
                retries.give_up(retry, self._clock())
        return 0, 0

    def _call(self, retry: Retry) -> None:
        retry.done = True
        self._awaken(retry)
