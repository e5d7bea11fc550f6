"""Requests, the commands on their way to nodes; codecs, how nodes differ; and waitables, which end sleeps."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Final

from redsync._core.clusters import KeyTagging
from redsync._core.effects import Broadcast, Tell
from redsync._core.quorum import Tally
from redsync._core.scripts import Arg, Command, Script
from redsync._drivers.handshake_connections import pack

__all__ = [
    "NOTHING_TOLD",
    "PLAIN",
    "Codec",
    "Mailbox",
    "Request",
    "Waitable",
    "pack_command",
]

_VOTES: Final = b"redsync:wake:votes"
"""A channel without listeners; users that may wake waiters may publish to it."""

_VOTE_KEY: Final = b"redsync_vote"
_A_MONTH_MS: Final = b"2592000000"

NOTHING_TOLD = Tell(Command(Script("", b"", b""), (), ()), None)
"""The effect of a request that the driver makes by itself."""


def pack_command(command: Command) -> bytes:
    """Return a command's bytes."""
    script, keys, args = command
    words = [b"%d" % word if isinstance(word, int) else word() if callable(word) else word for word in args]
    return pack(b"EVALSHA", script.sha, b"%d" % len(keys), *keys, *words)


class Waitable:
    """Something that a thread or task waits for.

    Attributes:
        done: True once the wait is over.
        waker: Wakes the sleeping thread or task; None while it does not sleep.
    """

    done = False
    waker: Callable[[], object] | None = None

    def finish(self) -> None:
        """End the wait."""
        self.done = True
        self.wake()

    def wake(self) -> None:
        """Wake the sleeping thread or task, which then looks again."""
        waker = self.waker
        if waker is not None:
            self.waker = None
            waker()


class Request(Waitable):
    """One command on its way to all nodes; done when its tally is decided.

    Attributes:
        effect: The effect that asked for it; it names the command's owner and the nodes that must get it.
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
            self.data = pack_command(command)

    def make(self) -> bool:
        """Make the command and its bytes, unless they exist; return False if there is nothing to send.

        Called right before it is sent.
        """
        if self.command is None and not isinstance(self.effect.command, Command):
            self.command = self.effect.command()
            if self.command is not None:
                self.data = pack_command(self.command)
        return self.command is not None

    def repeat(self) -> None:
        """Begin the round again, without votes; nodes may still execute what they were sent before."""
        before, effect = self.tally, self.effect
        assert before is not None, "only a round is repeated"
        assert isinstance(effect, Broadcast), "only a round is repeated"
        self.tally = effect.tally(before.nodes)
        self.tally.sent, self.tally.sent_at, self.tally.repeated = before.sent, before.sent_at, True
        self.done = False

    def fail(self, index: int, reason: str) -> None:
        """Count a node's vote as failed."""
        if self.tally is not None and self.tally.fail(index, reason):
            self.finish()

    def take_reply(self, reply: Any) -> None:
        """Take the reply to a command whose replies no tally counts; an error comes as its text."""

    def needs(self, bit: int) -> bool:
        """Return True if the node with that bit must get it, now or later."""
        return bool(self.effect.deliver_to & bit)

    @property
    def claim(self) -> tuple[Arg, ...]:
        """The key and the claim that it concerns; the claim is the first argument of such scripts."""
        command = self.command
        return () if command is None else command.keys[:1] + command.args[:1]

    def concerns(self, release: Request) -> bool:
        """Return whether a release must not overtake this request.

        It names the release's claim (a renewal names several). Or it is another command of the same owner on the same
        key: it may take a place in the queue, and a release removes the owner's place whichever claim it names.
        """
        command, claim, owner = self.command, release.claim, release.effect.owner
        if command is None or len(claim) < 2 or claim[0] not in command.keys:
            return False
        return claim[1] in command.args or (owner is not None and self.effect.owner == owner)


class Codec(KeyTagging):
    """How drivers encode commands for a node, and what else differs for a voter, whose keys all have one slot.

    Attributes:
        small_write: Commands that make a connection write something that replicas get.
    """

    def __init__(self, slot: int | None = None) -> None:
        super().__init__(slot)
        # A cluster replicates neither PUBLISH nor SPUBLISH. A node without memory refuses SETNX, but not PEXPIRE.
        key = self.key(_VOTE_KEY)
        at_voter = pack("SETNX", key, b"1"), pack("PEXPIRE", key, _A_MONTH_MS)
        self.small_write: Final = at_voter if self.tag else (pack("PUBLISH", _VOTES, b""),)

    def has_written(self, replies: Sequence[Any]) -> bool:
        """Return True if the replies to `small_write` prove a write."""
        return replies[-1] == 1 if self.tag else isinstance(replies[-1], int)

    def data(self, request: Request) -> bytes:
        """Return the bytes of a request."""
        command = request.command
        return request.data if command is None or not self.tag else pack_command(self.command(command))

    def subscription(self, channel: bytes) -> bytes:
        """Return the command that subscribes to a channel to which scripts publish."""
        return pack("SSUBSCRIBE" if self.tag else "SUBSCRIBE", self.key(channel))


PLAIN: Final = Codec()


class Mailbox(Waitable):
    """The wake-ups for one waiter; done when `needed` nodes have signalled.

    Attributes:
        needed: The number of nodes whose signals wake the waiter.
        signals: Bit set of the nodes that have signalled.
        ask_ids: For each ask id, the bit set of the nodes that signalled with it.
        guard: The seconds for which a node must have remembered everything to hand the claim over.
    """

    needed = 1
    signals = 0
    guard = 0.0

    def __init__(self) -> None:
        self.ask_ids: dict[bytes, int] = {}

    def signal(self, bit: int, ask_id: bytes = b"0") -> None:
        """Record the signal of a node, or of several: `bit` is their bit set."""
        self.signals |= bit
        self.ask_ids[ask_id] = self.ask_ids.get(ask_id, 0) | bit
        if not self.done and self.signals.bit_count() >= self.needed:
            self.finish()
