"""Effects as data: all that a protocol can ask of the world, and the only places where one yields.

A protocol is a generator (`Steps[T]`) that makes every decision and performs nothing. It yields an effect, the driver
performs it and sends the reply in:

| effect | what the driver does | reply |
|---|---|---|
| `Broadcast` | sends a command to every node, waits for the verdict or the timeout | `Tally` |
| `Tell` | sends a command to every node and waits for nothing | None |
| `Wait` | sleeps until a wake-up or an instant | `Wakeup` |
| `Signal` | wakes the sleepers of this process that wait for a key | None |
| `Notify` | hands an event to the application | None |

Two promises of every driver carry the protocols' correctness:

* **Steps are atomic.** Between two yields a protocol runs alone: no other protocol of the same client runs at the same
  time, in whatever thread. What protocols share (the table of holds) therefore needs no lock of its own, and a protocol
  is read as one reads asyncio code: the state can change at a yield, and nowhere else.
* **Order per owner.** Each node executes the commands of one owner in the order in which they were yielded, over one
  connection. A late acquire is always followed by its release. What was written to a connection that was given up may
  come later: exclusion does not rest on order, as each hold has a claim of its own.

An interruption (KeyboardInterrupt, a cancelled task, a closed client) is *thrown in* at the yield; the driver then goes
on performing the protocol's clean-up effects to the end. Protocols are never closed half-way.

The traps below contain the only bare `yield`s; everything else says `yield from`, so that reply types are exact.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Sequence
from typing import NamedTuple, TypeAlias, TypeVar

from redsync._core.events import Event
from redsync._core.memory import Guard
from redsync._core.ownership import Owner
from redsync._core.quorum import Judge, Tally, Verdict
from redsync._core.scripts import Script

__all__ = ["Arg", "Broadcast", "Command", "Effect", "Notify", "Reply", "Signal", "Steps", "Tell", "Wait", "Wakeup"]

T = TypeVar("T")

Arg: TypeAlias = bytes | int | Guard

_LEAST_LINGERING = 0.02
"""Seconds for which a round lingers at least: as long as a healthy node on a busy machine may stand still."""

_SLOWER = 4
"""By how much slower than the quorum a healthy node may be to be heard, if that is more."""


class Command(NamedTuple):
    """A script with what it is called on; the same for every node.

    Attributes:
        script: What the node executes.
        keys: The script's KEYS.
        args: The script's ARGV.
    """

    script: Script
    keys: tuple[bytes, ...]
    args: tuple[Arg, ...]

    @property
    def words(self) -> tuple[bytes | int, ...]:
        """The arguments as they would be sent now."""
        return tuple(bytes(arg) if isinstance(arg, Guard) else arg for arg in self.args)


class Broadcast(NamedTuple):
    """Send a command to all nodes at once; resume as soon as the verdict is WON or LOST, or at the timeout.

    Attributes:
        command: What to send, or a function that makes it at the instant of sending, when it is certain which of the
            client's commands go before it and which behind. None from that function sends nothing.
        owner: Whose command it is; None for one on behalf of several owners.
        judge: Reads a reply, see `quorum.Judge`.
        timeout: How long the round may wait for nodes, in seconds from sending.
        guard: For how many seconds a node must have remembered everything to have a vote; 0.0 for all that is no new
            claim.
        owed_to: Bit set of the nodes that must get it in any case: one that can't be reached gets it as soon as it is
            back, unless that is after `owed_until`.
        owed_until: The instant from which the delivery would be pointless, because nodes expire what it removes; not so
            for a node that has left commands unanswered: it may execute them at any time, and they last from then on.
        decide: Replaces the plain count of votes, see `Tally`.
        thorough: Whether silence must be told from refusals, see `Tally`.
        late: Whether to note votes that come after the round was won, see `Tally`.
        lingers: Whether to wait for the other nodes when it is won, until `lingers_until`: what they know counts too.
        listen: Keep wake-ups for this key from before the sending on, so that none is missed before the `Wait`.
    """

    command: Command | Callable[[], Command | None]
    owner: Owner | None
    judge: Judge
    timeout: float
    guard: float = 0.0
    owed_to: int = 0
    owed_until: float = 0.0
    decide: Callable[[Tally], Verdict] | None = None
    listen: bytes | None = None
    thorough: bool | Callable[[Tally], bool] = False
    late: bool = False
    lingers: bool = False

    def tally(self, nodes: Sequence[str]) -> Tally:
        """Return the tally of the round, without votes."""
        return Tally(nodes, self.judge, self.decide, thorough=self.thorough, late=self.late, lingers=self.lingers)

    def lingers_until(self, sent_at: float, won_at: float) -> float:
        """Return until when the other nodes are waited for: by the pace of the first ones they hang after that."""
        return min(won_at + max(_LEAST_LINGERING, _SLOWER * (won_at - sent_at)), sent_at + self.timeout)


class Tell(NamedTuple):
    """Send a command to all nodes and resume at once; attributes as for `Broadcast`."""

    command: Command
    owner: Owner | None
    owed_to: int = 0
    owed_until: float = 0.0


class Wait(NamedTuple):
    """Sleep until the instant `until` or a wake-up for `key`, whichever comes first.

    Nodes wake a waiter one by one, as a release reaches them: the wait ends when `enough` nodes have signalled, or
    `grace` after the first one did.

    Attributes:
        until: The latest instant, seconds on the driver's clock.
        key: What the nodes' messages say; None for a plain sleep.
        enough: How many nodes' signals end the wait at once.
        grace: How long to wait for further signals after the first, in seconds.
        mark: Which signals say that the node has handed the claim over; None if none can.
        unless: For a key that is signalled within this process: looked at once more when the driver has begun to
            listen; if true the wait ends at once. So no `Signal` slips in between the protocol's look and its sleep.
        retry_at: For a sleep before a round is repeated that found no quorum: it ends when it is this run's turn, among
            all that sleep so, and not before this instant; see `retries`. The turn lasts until the run sleeps again or
            ends.
    """

    until: float
    key: bytes | None = None
    enough: int = 1
    grace: float = 0.0
    mark: bytes | None = None
    unless: Callable[[], bool] | None = None
    retry_at: float | None = None


class Signal(NamedTuple):
    """Wake everybody in this process who waits for that key."""

    key: bytes


class Notify(NamedTuple):
    """Hand an event to the application: logs, listeners, callbacks. Their errors are logged, never thrown in."""

    event: Event


class Wakeup(NamedTuple):
    """The end of a wait. A hint that waiting may be over, never proof.

    Attributes:
        at: The instant, seconds on the driver's clock.
        signals: How many nodes signalled; 0 when the instant came first.
        handed: Bit set of the nodes whose signals have the mark that was waited for. That is proof, as their votes
            would be.
    """

    at: float
    signals: int
    handed: int = 0


Effect: TypeAlias = Broadcast | Tell | Wait | Signal | Notify
Reply: TypeAlias = Tally | Wakeup | None
Steps: TypeAlias = Generator[Effect, Reply, T]
"""A protocol: yields effects, gets replies, returns T. Always run by a driver or driven with `yield from`."""


def broadcast(effect: Broadcast) -> Steps[Tally]:
    """Ask all nodes and return what they said."""
    reply = yield effect
    assert isinstance(reply, Tally), f"a Broadcast is answered by a Tally, not {reply!r}"
    return reply


def tell(effect: Tell) -> Steps[None]:
    """Tell all nodes something and go on."""
    yield effect


def wait(effect: Wait) -> Steps[Wakeup]:
    """Sleep and return what ended the sleep."""
    reply = yield effect
    assert isinstance(reply, Wakeup), f"a Wait is answered by a Wakeup, not {reply!r}"
    return reply


def notify(event: Event) -> Steps[None]:
    """Hand an event to the application."""
    yield Notify(event)


def signal(key: bytes) -> Steps[None]:
    """Wake sleepers of this process."""
    yield Signal(key)
