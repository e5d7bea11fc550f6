"""Wake-ups: mailboxes for nodes' signals, events for signals of other threads of this process.

A waiter opens a mailbox or an event before it checks the condition that it waits for, so no signal is lost between
check and sleep. The driver does the sleeping: here a sleep is a generator of *waits*, each a waitable and an instant.
The driver resumes it when the waitable is done or the instant has come. The client's mutex guards everything here.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Sequence
from contextlib import AbstractContextManager
from typing import Any, Final, TypeAlias

from redsync._core.effects import Wait
from redsync._drivers.nodes import Node
from redsync._drivers.requests import Mailbox, Waitable

__all__ = ["Waits", "Wakeups", "is_message"]

_MESSAGES: Final = [b"message"], [b"smessage"]
"""The first elements of pushes that carry a message."""

Waits: TypeAlias = Generator[tuple[Waitable, float], None, tuple[int, int]]
"""Waitables, each with the instant until which to sleep for it; returns the number of signals, and the bit set of the
nodes that signalled with the ask id."""


def is_message(push: Sequence[Any]) -> bool:
    """Return whether a push carries a message; a node may send anything."""
    return push[:1] in _MESSAGES and isinstance(push[-1], bytes)


class Wakeups:
    """One client's mailboxes and local events.

    Attributes:
        mutex: The client's.
    """

    def __init__(self, mutex: AbstractContextManager[Any], clock: Callable[[], float]) -> None:
        self.mutex = mutex
        self._clock: Final = clock
        self._mailboxes: Final[dict[bytes, Mailbox]] = {}
        self._events: Final[dict[bytes, list[Waitable]]] = {}

    def subscribe(self, key: bytes, guard: float = 0.0) -> None:
        """Collect nodes' wake-ups for that key from now on; forget earlier ones.

        A node hands the claim over only if it has remembered everything for `guard` seconds.
        """
        mailbox = Mailbox()
        mailbox.guard = guard
        with self.mutex:
            self._mailboxes[key] = mailbox

    def unsubscribe(self, key: bytes) -> None:
        """Forget that key's wake-ups."""
        with self.mutex:
            self._mailboxes.pop(key, None)

    def waits(self, effect: Wait) -> Waits:
        """Sleep as the effect says."""
        if effect.unless is not None and effect.key is not None:
            return self.wait_for_event(effect.key, effect.until, effect.unless)
        return self.wait_for_nodes(effect.key, effect.until, effect.enough, effect.grace, effect.ask_id)

    def receive(self, push: Sequence[Any], node: Node) -> None:
        """Put the wake-up that a node has sent into its mailbox, if there is one."""
        if not is_message(push):
            return
        ask_id, _, key = push[-1].partition(b" ")
        with self.mutex:
            mailbox = self._mailboxes.get(key)
            if mailbox is None:
                return
            # A node in quarantine grants no new claims, so none that it hands over.
            may_vote = not mailbox.guard or node.remembers_since <= self._clock() - mailbox.guard
            mailbox.signal(node.bit, ask_id if may_vote else b"0")

    def wait_for_nodes(
        self, key: bytes | None, until: float, enough: int, grace: float, ask_id: bytes | None = None
    ) -> Waits:
        """Sleep until enough nodes have signalled, the grace after the first signal is over, or the instant has come.

        Returns the number of nodes that signalled, and the bit set of those that signalled with that ask id.
        """
        with self.mutex:
            mailbox = self._mailboxes.get(key) if key is not None else None
        if mailbox is None:
            yield Waitable(), until
            return 0, 0
        yield mailbox, until  # the first signal
        with self.mutex:
            mailbox.needed = enough
            mailbox.done = mailbox.signals.bit_count() >= enough
            waits_on = mailbox.signals and not mailbox.done
        if waits_on:
            yield mailbox, min(until, self._clock() + grace)
        return mailbox.signals.bit_count(), mailbox.ask_ids.get(ask_id, 0) if ask_id is not None else 0

    def wait_for_event(self, key: bytes, until: float, unless: Callable[[], bool]) -> Waits:
        """Sleep until `signal` is called for that key or the instant has come; not at all if `unless()` is true."""
        event = Waitable()
        with self.mutex:
            self._events.setdefault(key, []).append(event)
        try:
            if not unless():
                yield event, until
        finally:
            with self.mutex:
                self._events[key].remove(event)
                if not self._events[key]:
                    del self._events[key]
        return int(event.done), 0

    def signal(self, key: bytes) -> None:
        """End all sleeps in this process for that key."""
        with self.mutex:
            for event in self._events.get(key, ()):
                event.finish()
