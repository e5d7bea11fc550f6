"""Wake-ups: mailboxes for what nodes signal, bells for what other threads of this process signal.

Both are opened before the condition that they stand for is looked at, so no signal falls between look and sleep.
Everything here is guarded by the lane's mutex.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from typing import Any, Final

from redsync._drivers.parcels import Mailbox, Sleeper
from redsync._drivers.turns import Turns

__all__ = ["Wakeups"]


class Wakeups:
    """The mailboxes and bells of one lane."""

    def __init__(self, mutex: threading.Lock, clock: Callable[[], float], turns: Turns) -> None:
        self._mutex: Final = mutex
        self._clock: Final = clock
        self._turns: Final = turns
        self._mailboxes: Final[dict[bytes, Mailbox]] = {}
        self._bells: Final[dict[bytes, list[Mailbox]]] = {}

    def listen(self, key: bytes) -> None:
        """Keep nodes' wake-ups for that key from now on; forget those of before."""
        with self._mutex:
            self._mailboxes[key] = Mailbox()

    def deafen(self, key: bytes) -> None:
        """Forget the wake-ups for that key."""
        with self._mutex:
            self._mailboxes.pop(key, None)

    def deliver(self, push: Sequence[Any], bit: int) -> None:
        """Put a node's wake-up into its mailbox, if there is one; by the leader, with the mutex held."""
        mailbox = self._mailboxes.get(push[-1]) if push[0] == b"message" else None
        if mailbox is not None:
            mailbox.signal(bit)

    def doze(self, key: bytes | None, until: float, enough: int, grace: float) -> int:
        """Sleep until enough nodes have signalled, the grace after the first is over, or the instant has come.

        Returns how many nodes signalled.
        """
        with self._mutex:
            mailbox = self._mailboxes.get(key) if key is not None else None
        if mailbox is None:
            self._turns.wait(Sleeper(), until)
            return 0
        self._turns.wait(mailbox, until)
        with self._mutex:
            mailbox.needed = enough
            mailbox.done = mailbox.signals.bit_count() >= enough
            patient = mailbox.signals and not mailbox.done
        if patient:
            self._turns.wait(mailbox, min(until, self._clock() + grace))
        return mailbox.signals.bit_count()

    def sleep(self, key: bytes, until: float, unless: Callable[[], bool]) -> int:
        """Sleep until `ring` is called for that key, or the instant has come; not at all if `unless` is true."""
        bell = Mailbox()
        with self._mutex:
            self._bells.setdefault(key, []).append(bell)
        try:
            if not unless():
                self._turns.wait(bell, until)
        finally:
            with self._mutex:
                self._bells[key].remove(bell)
                if not self._bells[key]:
                    del self._bells[key]
        return bell.signals

    def ring(self, key: bytes) -> None:
        """End the sleep of everybody in this process who sleeps for that key."""
        with self._mutex:
            for bell in self._bells.get(key, ()):
                bell.signal(1)
                self._turns.awaken(bell)
