"""Requests, the commands on their way to nodes, and sleepers, which wait."""

from __future__ import annotations

import math
from operator import attrgetter
from typing import Any, Protocol

from redsync._core.effects import Arg, Broadcast, Command, Tell
from redsync._core.quorum import Tally
from redsync._core.scripts import Script
from redsync._drivers.channels import pack

__all__ = ["NOTHING_TOLD", "Gate", "Mailbox", "Owed", "Request", "Retry", "Sleeper", "pack_command"]

NOTHING_TOLD = Tell(Command(Script("", b"", b""), (), ()), None)
"""The effect of a request that the driver makes by itself."""

_STALE_LIMIT = 10_000
"""The most expired requests kept for a node that left commands unanswered; the first to expire is dropped first."""

_PURGE_FROM = 256
"""The number of requests from which a purge pays off."""


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
        refused: Bit set of the nodes that answered it with an error last, and so have not executed it.
        pending_release: True once it was sent as a pending release.
    """

    reloaded = refused = number = 0
    pending_release = False
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

    def replaces(self, claim: tuple[Arg, ...]) -> bool:
        """Return whether it makes an earlier, refused release of that claim needless.

        A renewal, which is made when it is sent, does not: it wakes no waiter, and if the node refuses it too, nothing
        follows it soon.
        """
        return isinstance(self.effect.command, Command) and self.claim == claim

    def concerns(self, claim: tuple[Arg, ...]) -> bool:
        """Return whether it is about that claim, perhaps among others: a renewal is about many."""
        command = self.command
        if command is None or len(claim) < 2:
            return False
        return claim[0] in command.keys and claim[1] in command.args


class Owed:
    """The requests that an absent node gets as soon as it is back, in the order of the client's commands.

    After its `owed_until` a request is pointless, because the claim that it removes has expired. The exception is a
    node that left commands unanswered: a hung node executes them when it resumes, however late, and their claims live
    from then on. So until such a node is back, no request becomes pointless.

    The same command is kept once, at its latest position: a waiter that rolls back each of its tries while the node is
    away owes it one rollback. So each claim that lives, or lived within its lease, has an entry or two, and these are
    never dropped. Of expired entries only the latest `_STALE_LIMIT` are kept, because a node that hangs for hours would
    collect any number of them. A claim whose entry was dropped stays on the node for one lease after it resumes.

    Attributes:
        unanswered: True if the node left commands unanswered since it was last connected.
    """

    def __init__(self) -> None:
        self._requests: dict[Command, Request] = {}
        self._refused: dict[tuple[Arg, ...], Request] = {}  # by claim
        self._purge_at = _PURGE_FROM
        self.unanswered = False

    def __len__(self) -> int:
        return len(self._requests)

    def add(self, request: Request, bit: int, now: float) -> None:
        """Keep a request if the node must get it; it replaces an earlier one with the same command."""
        if not request.owed(bit) or self._is_pointless(request, now):
            return
        assert request.command is not None, "what is owed was made"
        same = self._requests.get(request.command)
        if same is None or same.number < request.number:
            self._requests[request.command] = request
            if request.refused & bit:
                self._refused[request.claim] = request
            if len(self._requests) >= self._purge_at:
                self._purge(now)

    def supersede(self, request: Request) -> None:
        """Forget a refused request that a later one replaces, which the node gets now."""
        earlier = self._refused.get(request.claim)
        if earlier is not None and earlier.number < request.number and request.replaces(earlier.claim):
            del self._refused[request.claim]
            assert earlier.command is not None, "what is owed was made"
            if self._requests.get(earlier.command) is earlier:
                del self._requests[earlier.command]

    def take(self, now: float) -> list[Request]:
        """Return the requests that the node must get, and forget all."""
        requests = [request for request in self._requests.values() if not self._is_pointless(request, now)]
        self._requests.clear()
        self._refused.clear()
        self._purge_at = _PURGE_FROM
        self.unanswered = False
        return sorted(requests, key=attrgetter("number"))

    def _purge(self, now: float) -> None:
        """Drop pointless requests; the next purge comes when twice as many are kept."""
        kept = [request for request in self._requests.values() if not self._is_pointless(request, now)]
        expired = sorted(
            (request.effect.owed_until for request in kept if request.effect.owed_until <= now), reverse=True
        )
        after = expired[_STALE_LIMIT] if len(expired) > _STALE_LIMIT else -math.inf
        # A new table replaces the old one in one step, so no interruption can split it.
        self._requests = {
            request.command: request for request in kept if request.command and request.effect.owed_until > after
        }
        self._refused = {
            claim: request
            for claim, request in self._refused.items()
            if request.command and self._requests.get(request.command) is request
        }
        self._purge_at = max(2 * len(self._requests), _PURGE_FROM)

    def _is_pointless(self, request: Request, now: float) -> bool:
        return request.effect.owed_until <= now and not self.unanswered


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
