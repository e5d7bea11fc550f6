"""Effects as data: all that a protocol can ask of the world, and the only places where a protocol yields.

A protocol is a generator (`Steps[T]`) that makes every decision and performs nothing. It yields an effect; the driver
performs it and sends the reply in:

| effect | the driver | reply |
|---|---|---|
| `Broadcast` | sends a command to every node, waits for the verdict or the timeout | `Tally` |
| `Tell` | sends a command to every node and does not wait | None |
| `Wait` | sleeps until a wake-up or an instant | `Wakeup` |
| `Signal` | wakes the sleepers of this process that wait for a key | None |
| `Notify` | hands an event to the application | None |

The protocols' correctness rests on two promises of every driver:

* **Steps are atomic.** Between two yields a protocol runs alone: no other protocol of the same client runs at the same
  time, in any thread. So state that protocols share (the table of holds) needs no lock, and a protocol reads like
  asyncio code: the state can change at a yield, and nowhere else.
* **Order per owner.** A late acquire is always followed by its release or rollback. A node executes what it gets over
  one connection in the order in which it was yielded. It may owe a reply over another connection: about the same claim,
  or to the same owner for the same key (a place in a queue belongs to the owner). Then a command that it must get
  (`deliver_to`) is sent once more behind that reply. A command on a connection that was given up may come later.
  Exclusion does not rest on order, as each hold has its own claim.

An interruption (KeyboardInterrupt, a cancelled task, a closed client) is *thrown in* at the yield. The driver then
continues until it has performed all of the protocol's clean-up effects. It never closes a protocol half-way.

The functions below contain the only bare `yield`s. All other code says `yield from`, so that reply types are exact.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Sequence
from typing import NamedTuple, TypeAlias, TypeVar

from redsync._core.holds import Owner
from redsync._core.observing import Detail, Event
from redsync._core.quorum import ReplyParser, Tally, Verdict
from redsync._core.scripts import Command

__all__ = [
    "Broadcast",
    "Effect",
    "Notify",
    "Reply",
    "Signal",
    "Steps",
    "Tell",
    "Wait",
    "Wakeup",
]

T = TypeVar("T")


class Broadcast(NamedTuple):
    """Send a command to all nodes at once; resume as soon as the verdict is WON or LOST, or at the timeout.

    Attributes:
        command: The command, or a function that makes it at the instant of sending, when the order of the client's
            commands is certain. If it returns None, the driver sends nothing.
        owner: The owner of the command; None if it acts for several owners.
        parse: Reads a reply, see `quorum.ReplyParser`.
        timeout: The longest time that the round waits for nodes, in seconds from sending.
        guard: Seconds for which a node must have remembered everything to have a vote; 0.0 for all but new claims.
        deliver_to: Bit set of the nodes that must get the command in any case: a node out of reach gets it as soon as
            it is back.
        decide: Returns the verdict of a tally; None: `quorum.verdict_of`.
        subscribe: Collect wake-ups for this key from before the sending on, so that the `Wait` misses none.
        patience: The longest time to wait for the client's first connections, in seconds; None: the driver's own
            limit.
    """

    command: Command | Callable[[], Command | None]
    owner: Owner | None
    parse: ReplyParser
    timeout: float
    guard: float = 0.0
    deliver_to: int = 0
    decide: Callable[[Tally], Verdict] | None = None
    subscribe: bytes | None = None
    patience: float | None = None

    def tally(self, nodes: Sequence[str]) -> Tally:
        """Return the tally of the round, without votes."""
        return Tally(nodes, self.parse, self.decide)


class Tell(NamedTuple):
    """Send a command to all nodes and resume at once; attributes as for `Broadcast`."""

    command: Command
    owner: Owner | None
    deliver_to: int = 0

    @property
    def guard(self) -> float:
        """No guard: it claims nothing."""
        return 0.0


class Wait(NamedTuple):
    """Sleep until the instant `until` or a wake-up for `key`, whichever comes first.

    A release reaches the nodes one by one, and each wakes the waiter. So the wait ends when `enough` nodes have
    signalled, or `grace` after the first one did.

    Attributes:
        until: The latest instant, seconds on the driver's clock.
        key: The words of the nodes' messages to wait for; None for a plain sleep.
        enough: The number of nodes whose signals end the wait at once.
        grace: The time to wait for further signals after the first, in seconds.
        ask_id: The ask id in the signal of a node that has handed the claim over; None if no node can.
        unless: For a key that this process signals: a condition that the driver checks as soon as it listens for the
            key. If it is true, the wait ends at once. So no `Signal` between the protocol's own check and its sleep is
            missed.
    """

    until: float
    key: bytes | None = None
    enough: int = 1
    grace: float = 0.0
    ask_id: bytes | None = None
    unless: Callable[[], bool] | None = None


class Signal(NamedTuple):
    """Wake all sleepers of this process that wait for the key."""

    key: bytes


class Notify(NamedTuple):
    """Hand an event to the application: logs, listeners, callbacks. Their errors are logged, never thrown in."""

    event: Event | Detail


class Wakeup(NamedTuple):
    """The end of a wait: a hint that the protocol may continue, never proof.

    Attributes:
        at: The instant, seconds on the driver's clock.
        signals: The number of nodes that signalled; 0 if the instant came first.
        handed: Bit set of the nodes whose signals have the ask id of the `Wait`. These are proof, like votes.
    """

    at: float
    signals: int
    handed: int = 0


Effect: TypeAlias = Broadcast | Tell | Wait | Signal | Notify
Reply: TypeAlias = Tally | Wakeup | None
Steps: TypeAlias = Generator[Effect, Reply, T]
"""A protocol: yields effects, gets replies, returns T. Always run by a driver or driven with `yield from`."""


def broadcast(effect: Broadcast) -> Steps[Tally]:
    """Ask all nodes and return their votes."""
    reply = yield effect
    assert isinstance(reply, Tally), f"the reply to a Broadcast is a Tally, not {reply!r}"
    return reply


def tell(effect: Tell) -> Steps[None]:
    """Send all nodes a command and continue."""
    yield effect


def wait(effect: Wait) -> Steps[Wakeup]:
    """Sleep and return what ended the sleep."""
    reply = yield effect
    assert isinstance(reply, Wakeup), f"the reply to a Wait is a Wakeup, not {reply!r}"
    return reply


def notify(event: Event | Detail) -> Steps[None]:
    """Hand an event to the application."""
    yield Notify(event)


def signal(key: bytes) -> Steps[None]:
    """Wake sleepers of this process."""
    yield Signal(key)
