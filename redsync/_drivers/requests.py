"""Requests, the commands on their way to nodes, and sleepers, which wait."""

from __future__ import annotations

from typing import Any, Protocol

from redsync._core.effects import Arg, Broadcast, Command, Tell
from redsync._core.quorum import Tally
from redsync._core.scripts import Script
from redsync._drivers.channels import pack

__all__ = ["NOTHING_TOLD", "Gate", "Mailbox", "Request", "Retry", "Sleeper", "pack_command"]

NOTHING_TOLD = Tell(Command(Script("", b"", b""), (), ()), None)
"""The effect of a request that the driver makes by itself."""


def pack_command(command: Command) -> bytes:
    """Return a command's bytes, whatever its `packing` knows."""
    script, keys, args, _ = command
    words = [
        word if word.__class__ is bytes else b"%d" % word if isinstance(word, int) else bytes(word) for word in args
    ]
    return pack(b"EVALSHA", script.sha, b"%d" % len(keys), *keys, *words)


class Gate(Protocol):
    """A locked lock, or an equivalent, that a thread or task sleeps on."""

    def release(self) -> None:
        """Wake the sleeping thread or task."""
        ...


class Sleeper:
    """Something that a thread or task waits for.

    Attributes:
        done: True once the wait is over.
        gate: The gate that the thread or task sleeps on; None while it does not sleep.
    """

    done = False
    gate: Gate | None = None

    def wake(self) -> None:
        """Wake the sleeping thread or task, which then looks again."""
        gate = self.gate
        if gate is not None:
            self.gate = None
            gate.release()


class Request(Sleeper):
    """One command on its way to all nodes; done when its tally is decided.

    Attributes:
        effect: The effect that asked for it; it names the command's owner and the nodes that are owed it.
        guard: The seconds for which a node must have remembered everything to get it.
        tally: The votes; None for a command whose replies are ignored.
        command: The command; None until it is sent, if it is made then.
        data: Its bytes; empty until it is sent, if it is made then.
        number: Its position in the order of the client's commands; 0 if it has none.
        reloaded: Bit set of the nodes to which it was sent again after NOSCRIPT.
    """

    reloaded = number = 0
    data = b""
    command: Command | None = None

    def __init__(self, effect: Broadcast | Tell, tally: Tally | None) -> None:
        self.effect = effect
        self.guard = effect.guard
        self.tally = tally
        command = effect.command
        if command.__class__ is Command:
            self.command = command
            self._pack(command)

    def make(self) -> bool:
        """Make the command and its bytes, unless they exist; return False if there is nothing to send.

        Called right before it is sent.
        """
        if self.command is None and not isinstance(self.effect.command, Command):
            self.command = self.effect.command()
            if self.command is not None:
                self._pack(self.command)
        return self.command is not None

    def _pack(self, command: Command) -> None:
        packing = command.packing
        self.data = pack_command(command) if packing is None else packing.data(command, pack_command)

    def finish(self) -> None:
        """Record that it is done, and wake the thread that waits for it."""
        self.done = True
        self.wake()

    def settle(self, reply: Any) -> None:
        """Take the reply to a command whose replies no tally counts; an error comes as its text."""

    def owed(self, bit: int) -> bool:
        """Return True if the node with that bit must get it, now or later."""
        return bool(self.effect.owed_to & bit)

    @property
    def claim(self) -> tuple[Arg, ...]:
        """The claim that it concerns: the key, and the identity, which is the first argument of such scripts."""
        command = self.command
        return () if command is None else command.keys[:1] + command.args[:1]

    def concerns(self, release: Request) -> bool:
        """Return whether a release must follow it: it is about that claim, perhaps among others, as a renewal is.

        Or it is another one of that owner for that key: it may take a place, which a release leaves whatever the claim.
        """
        command, claim, owner = self.command, release.claim, release.effect.owner
        if command is None or len(claim) < 2 or claim[0] not in command.keys:
            return False
        return claim[1] in command.args or (owner is not None and self.effect.owner == owner)


_LONGEST_MARK = 20
"""The most digits of a mark; a longer one is not from this client, and is cut."""


class Mailbox(Sleeper):
    """The wake-ups for one waiter; done when `needed` nodes have signalled.

    Attributes:
        needed: The number of nodes whose signals wake the waiter.
        signals: Bit set of the nodes that have signalled.
        marks: For each mark, the bit set of the nodes that signalled with it.
        guard: The seconds for which a node must have remembered everything to hand the claim over.
    """

    needed = 1
    signals = 0
    guard = 0.0

    def __init__(self) -> None:
        super().__init__()
        self.marks: dict[bytes, int] = {}

    def signal(self, bit: int, mark: bytes = b"0") -> None:
        """Record the signal of a node, or of several: `bit` is their bit set."""
        if len(mark) > _LONGEST_MARK:
            mark = mark[:_LONGEST_MARK]
        self.signals |= bit
        self.marks[mark] = self.marks.get(mark, 0) | bit
        if not self.done and self.signals.bit_count() >= self.needed:
            self.done = True
            self.wake()


class Retry(Sleeper):
    """A protocol run that found no quorum and waits for its turn to try again; done when it must look again."""
