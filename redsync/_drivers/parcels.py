"""What travels on a lane, and who waits for it."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Final

from redsync._core.effects import Command
from redsync._core.ownership import Owner
from redsync._core.quorum import Tally
from redsync._drivers.nodes import pack

__all__ = ["Mailbox", "Parcel", "Sleeper"]


class Sleeper:
    """Something that a thread waits for, on a lane. Guarded by the lane's mutex.

    Attributes:
        done: It has come.
        leads: The waiting thread was made the one that reads for all.
        gate: A locked lock while a thread sleeps on it; released to wake that thread.
        lasts: It is waited for to its end even while the lane is being closed.
    """

    lasts = False

    __slots__ = ("done", "gate", "leads")

    def __init__(self) -> None:
        self.done = False
        self.leads = False
        self.gate: threading.Lock | None = None

    def wake(self) -> None:
        """Let the sleeping thread look again."""
        gate = self.gate
        if gate is not None:
            self.gate = None
            gate.release()


class Parcel(Sleeper):
    """One command on its way to all nodes; done when its tally is decided.

    Attributes:
        owner: Whose command it is, None for several owners'.
        tally: The votes; None for a command whose replies nobody waits for.
        fresh: It asks for a new claim: nodes that may have lost their memory do not get it.
        owed_to: Bit set of the nodes that must get it, now or later.
        owed_until: When delivering it has become pointless.
        key: The first of its keys, which with the owner says what it must not overtake.
        data: Its bytes; made when it is sent.
        healed: Bit set of the nodes to which it was sent again after NOSCRIPT.
    """

    lasts = True

    __slots__ = ("_command", "data", "fresh", "healed", "key", "owed_to", "owed_until", "owner", "script", "tally")

    def __init__(
        self,
        command: Command | Callable[[], Command | None],
        owner: Owner | None,
        tally: Tally | None = None,
        *,
        fresh: bool = False,
        owed_to: int = 0,
        owed_until: float = 0.0,
    ) -> None:
        super().__init__()
        self._command: Final = command
        self.owner: Final = owner
        self.tally: Final = tally
        self.fresh: Final = fresh
        self.owed_to: Final = owed_to
        self.owed_until: Final = owed_until
        self.healed = 0
        self.data = b""
        self.key = b""

    def make(self) -> bool:
        """Make the bytes; False if there is nothing to send. Called at the instant of sending, in the lane's order."""
        command = self._command if isinstance(self._command, Command) else self._command()
        if command is None:
            return False
        script, keys, args = command
        self.script = script
        self.key = keys[0]
        self.data = pack(b"EVALSHA", script.sha, len(keys), *keys, *args)
        return True


class Mailbox(Sleeper):
    """The wake-ups for one waiter; done when as many nodes as it needs have signalled.

    Attributes:
        needed: How many nodes' signals wake the waiter.
        signals: Bit set of the nodes that have signalled.
    """

    __slots__ = ("needed", "signals")

    def __init__(self) -> None:
        super().__init__()
        self.needed = 1
        self.signals = 0

    def signal(self, bit: int) -> None:
        """Note a node's signal."""
        self.signals |= bit
        if self.signals.bit_count() >= self.needed:
            self.done = True
            self.wake()
