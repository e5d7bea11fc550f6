"""Wake-ups: mailboxes for what nodes signal, bells for what other threads of this process signal.

Both are opened before the condition that they stand for is looked at, so no signal falls between look and sleep. How
one sleeps is the lane's business: a sleep here is a generator of *naps*, each a sleeper and an instant. It goes on when
the sleeper is done or the instant has come. Everything here is guarded by the lane's mutex.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Generator, Sequence
from typing import Any, Final, TypeAlias

from redsync._drivers.parcels import Mailbox, Sleeper

__all__ = ["Naps", "Wakeups"]

Naps: TypeAlias = Generator[tuple[Sleeper, float], None, tuple[int, int]]
"""What to sleep for until when, one after the other; returns how many signals have come, and from
which nodes those with the mark."""


class Wakeups:
    """The mailboxes and bells of one lane."""

    def __init__(self, mutex: threading.Lock, clock: Callable[[], float], awaken: Callable[[Sleeper], None]) -> None:
        self._mutex: Final = mutex
        self._clock: Final = clock
        self._awaken: Final = awaken
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
        """Put a node's wake-up into its mailbox, if there is one; with the mutex held."""
        if push[0] != b"message":
            return
        message = push[-1]
        if message.__class__ is not bytes:
            raise TypeError(f"a message is text, not {message!r:.80}")
        mark, _, key = message.partition(b" ")
        mailbox = self._mailboxes.get(key)
        if mailbox is not None:
            mailbox.signal(bit, mark)

    def doze(self, key: bytes | None, until: float, enough: int, grace: float, mark: bytes | None = None) -> Naps:
        """Sleep until enough nodes have signalled, the grace after the first is over, or the instant has come.

        Returns how many nodes signalled, and which of them with that mark.
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

    def sleep(self, key: bytes, until: float, unless: Callable[[], bool]) -> Naps:
        """Sleep until `ring` is called for that key, or the instant has come; not at all if `unless` is true."""
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
        """End the sleep of everybody in this process who sleeps for that key."""
        with self._mutex:
            for bell in self._bells.get(key, ()):
                bell.signal(1)
                self._awaken(bell)
