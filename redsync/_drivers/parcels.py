"""What travels on a lane, and who waits for it."""

from __future__ import annotations

from collections import deque
from typing import Protocol

from redsync._core.effects import Broadcast, Command, Tell
from redsync._core.quorum import Tally
from redsync._drivers.nodes import pack

__all__ = ["Mailbox", "Owed", "Parcel", "Sleeper"]

_OWED_LIMIT = 10_000
"""Parcels kept for an absent node; older ones go first. What they would remove expires anyway."""


class Gate(Protocol):
    """What somebody sleeps on: a locked lock, or what acts like one."""

    def release(self) -> None:
        """Wake the sleeping thread or task."""
        ...


class Sleeper:
    """Something that a thread or task waits for, on a lane. Guarded by the lane's mutex.

    Attributes:
        done: It has come.
        leads: The waiting thread was made the one that reads for all.
        gate: While somebody sleeps, what they sleep on.
        lasts: It is waited for to its end even while the lane is being closed.
    """

    done = False
    leads = False
    gate: Gate | None = None
    lasts = False

    def wake(self) -> None:
        """Let whoever sleeps look again."""
        gate = self.gate
        if gate is not None:
            self.gate = None
            gate.release()


class Parcel(Sleeper):
    """One command on its way to all nodes; done when its tally is decided.

    Attributes:
        effect: What asked for it: whose command it is, what nodes are owed.
        guard: For how many seconds a node must have remembered everything to get it.
        tally: The votes; None for a command whose replies nobody waits for.
        command: The command; None until it is sent, if it is made then.
        data: Its bytes; nothing until it is sent, if it is made then.
        number: Its place in the lane's order; 0 for what has none.
        healed: Bit set of the nodes to which it was sent again after NOSCRIPT.
    """

    lasts = True
    healed = 0
    data = b""
    number = 0
    command: Command | None = None

    def __init__(self, effect: Broadcast | Tell, tally: Tally | None) -> None:
        self.effect = effect
        self.guard = effect.guard if effect.__class__ is Broadcast else 0.0
        self.tally = tally
        # Not left to the one who sends for all: it has enough to do, and an error here is ours.
        if isinstance(effect.command, Command):
            self.command = effect.command
            self._pack(effect.command)

    def make(self, number: int) -> bool:
        """Make what is not made yet; False if there is nothing to send.

        Called at the instant of sending, in the lane's order; again if it was interrupted, and then goes on.
        """
        self.number = number
        if self.command is None and not isinstance(self.effect.command, Command):
            self.command = self.effect.command()
        if self.command is None:
            return False
        if not self.data:
            self._pack(self.command)
        return True

    def _pack(self, command: Command) -> None:
        script, keys, args = command
        words = [b"%d" % word if isinstance(word, int) else word for word in args]
        self.data = pack(b"EVALSHA", script.sha, b"%d" % len(keys), *keys, *words)

    def owed(self, bit: int) -> bool:
        """Whether the node with that bit must get it, now or later."""
        return bool(self.effect.owed_to & bit)

    def precedes(self, later: Parcel) -> bool:
        """Whether it must not be sent again behind that one.

        Two commands of one owner about one key keep their order. A command for several owners (a renewal) is never
        sent again behind anything; but anything may be behind it, for it takes in nothing that was released before.
        """
        if self.command is None or later.command is None or later.number <= self.number:
            return False
        if self.effect.owner is None:
            return True
        return self.effect.owner is later.effect.owner and self.command.keys[0] == later.command.keys[0]


class Owed:
    """The parcels that an absent node gets as soon as it is back, oldest first.

    After its `owed_until` a parcel is pointless: what it removes has expired. Unless the node has left commands
    unanswered. A hung one executes them when it goes on, however late, and what they make lasts from then on; so until
    it is back nothing becomes pointless.

    Attributes:
        unanswered: Whether the node has left commands unanswered since it was last connected.
    """

    def __init__(self) -> None:
        self._parcels: deque[Parcel] = deque()
        self.unanswered = False

    def __len__(self) -> int:
        return len(self._parcels)

    def add(self, parcel: Parcel, bit: int, now: float) -> None:
        """Keep a parcel, once and in the lane's order, if the node must get it; drop what has become pointless."""
        if not parcel.owed(bit) or self._is_pointless(parcel, now):
            return
        parcels = self._parcels
        place = len(parcels)
        while place and parcels[place - 1].number > parcel.number:
            place -= 1
        if place and parcels[place - 1] is parcel:
            return
        parcels.insert(place, parcel)
        while len(parcels) > _OWED_LIMIT or self._is_pointless(parcels[0], now):
            parcels.popleft()

    def take(self, now: float) -> list[Parcel]:
        """Return what the node must get, as it is back, and keep nothing."""
        parcels = [parcel for parcel in self._parcels if not self._is_pointless(parcel, now)]
        self._parcels.clear()
        self.unanswered = False
        return parcels

    def _is_pointless(self, parcel: Parcel, now: float) -> bool:
        return not self.unanswered and parcel.effect.owed_until <= now


class Mailbox(Sleeper):
    """The wake-ups for one waiter; done when as many nodes as it needs have signalled.

    Attributes:
        needed: How many nodes' signals wake the waiter.
        signals: Bit set of the nodes that have signalled.
        marks: Which of them did with which mark.
    """

    needed = 1
    signals = 0

    def __init__(self) -> None:
        super().__init__()
        self.marks: dict[bytes, int] = {}

    def signal(self, bit: int, mark: bytes = b"0") -> None:
        """Note a node's signal."""
        self.signals |= bit
        self.marks[mark] = self.marks.get(mark, 0) | bit
        if self.signals.bit_count() >= self.needed:
            self.done = True
            self.wake()
