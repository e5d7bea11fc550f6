"""The maintenance of both flavours: what keeps a client's connections alive, however one waits.

It makes the first connections, reconnects nodes with growing pauses, finds out what they remember, delivers pending
releases, looks for nodes that owe replies, and reports changes of nodes' states.

It also asks the witnesses of nodes without a fixed address where their servers are. Each witness has a thread, or a
task, because a silent one must not delay the others. A message about a failover could be lost, so they are asked twice
a second, which costs a witness a few microseconds. So a client follows a failover at most half a second after a
majority of the witnesses reports it.

The steps are generators (`Work`). Each yields the instant until which to read what comes, and gets the instant before
which everything that had arrived was read. `maintenance` drives them in a thread and `aio_maintenance` in a task.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Generator, Sequence
from typing import TYPE_CHECKING, Any, Final, Generic, NamedTuple, TypeAlias, TypeVar

from redsync._core.keys import wake_channel
from redsync._core.memory import FIRST_USE
from redsync._drivers.acknowledgements import hold_back
from redsync._drivers.discovery import Locator
from redsync._drivers.handshake_connections import HandshakeSteps
from redsync._drivers.handshakes import introduce
from redsync._drivers.link_sets import AnyLinkSet
from redsync._drivers.links import AnyLink
from redsync._drivers.node_registry import NodeRegistry
from redsync._drivers.nodes import TIMEOUTS, Node, NodeInfo, NodeStatus, reason_of
from redsync._drivers.redis_py import new_connection
from redsync._drivers.requests import Request

if TYPE_CHECKING:
    from redsync._drivers.any_runner import AnyLife

__all__ = ["ASK_EVERY", "PAUSE_AFTER_FAILURE", "STRAGGLERS", "AnyMaintenance", "Stopped", "Watch", "Work"]

PAUSE_AFTER_FAILURE: Final = 0.1
"""Seconds until the maintenance starts again, after an error in it."""

_TICK: Final = 1.0
"""The longest sleep in seconds."""

STRAGGLERS: Final = 0.05
"""Seconds that a new client waits for more nodes once a quorum is connected."""

ASK_EVERY: Final = 0.5
"""Seconds between two questions to a witness."""

Work: TypeAlias = Generator[float, float, None]
"""Steps of a maintenance: yields instants until which to read, gets instants before which everything was read."""

SetT = TypeVar("SetT", bound=AnyLinkSet)


class Watch(NamedTuple):
    """A node, what is known about its server, and the index of the witness to ask."""

    node: Node
    locator: Locator
    witness: int

    @property
    def name(self) -> str:
        """The name of its thread or task."""
        return f"redsync-watch-{self.locator.witnesses[self.witness].address}"


class Stopped(BaseException):
    """Thrown into the watchdog when the client is closed."""


class AnyMaintenance(ABC, Generic[SetT]):
    """Keeps one client alive.

    Attributes:
        own: Its set of links: a node is up while it has a link here.
        connect_timeout: Seconds of silence after which a connect fails.
    """

    def __init__(self, own: SetT, life: AnyLife) -> None:
        self.own: SetT = own
        self._life: Final = life
        self._nodes: Final = life.nodes
        self._clock: Final = life.clock
        self._node_timeout: Final = life.node_timeout
        self.connect_timeout: Final = max(4 * life.node_timeout, 1.0)
        self._stopping = self._alarmed = False
        self._connecting: dict[int, Any] = {}  # by node
        self._registry: Final = NodeRegistry(life, own, TIMEOUTS * self.connect_timeout, self.wake)
        self._watches: Final = [
            Watch(node, node.locator, index)
            for node in self._nodes
            if node.locator is not None
            for index in range(len(node.locator.witnesses))
        ]

    # The differences between the flavours.

    @abstractmethod
    def wake(self) -> None:
        """Make it look at once."""

    @abstractmethod
    def _start_connect(self, node: Node) -> None:
        """Begin to connect a node, and record that in `_connecting`."""

    @abstractmethod
    def _prepare(self) -> None:
        """Do what must come before pending releases."""

    def _send(self, request: Request) -> None:
        self.own.send(request)

    def _help_others(self, now: float) -> None:
        """Do what other threads left to the maintenance."""

    def _owes(self) -> bool:
        """Return whether a node owes a reply."""
        return self.own.owes

    def _require_running(self) -> None:
        if self._stopping:
            raise Stopped

    # Called by others.

    def alarm(self) -> None:
        """Make the watchdog look at once."""
        self._alarmed = True
        self.wake()

    def statuses(self) -> list[NodeStatus]:
        """Return each node's state."""
        return self._registry.statuses(self._life.releases.count)

    def _on_broken(self, node: Node, reason: str) -> None:
        self._registry.note_broken(node, reason)
        self.wake()

    # The work.

    def beginning(self) -> Work:
        """Make the first connections, and learn what new nodes remember: before the first claims, which wait for it."""
        registry, clock = self._registry, self._clock
        deadline = wait_until = clock() + TIMEOUTS * self.connect_timeout
        while not (self._is_needed() or registry.is_heard()) and clock() < wait_until:
            yield from self.turn(wait_until)
            if registry.has_quorum() and wait_until == deadline and not registry.may_be_first_use():
                wait_until = min(clock() + STRAGGLERS, deadline)
            self._require_running()
        end = clock() + FIRST_USE + self._node_timeout
        while not self._is_needed() and clock() < end:
            registry.initialize(self._send)
            if registry.initialize_at == math.inf:
                break
            yield from self.turn(min(registry.initialize_at, end))
            self._require_running()

    def _is_needed(self) -> bool:
        """Return True if a claim was won before all nodes were heard: it needs the watchdog."""
        return bool(self._life.session.holds)

    def until(self, instant: float) -> Work:
        """Work until an instant or an alarm.

        Raises:
            Stopped: The client is closing.
        """
        while True:
            self._require_running()
            if self._alarmed or self._clock() >= instant:
                self._alarmed = False
                return
            yield from self.turn(instant)

    def turn(self, until: float) -> Work:
        """Do what there is to do; then read what comes, until that instant at most."""
        now = self._clock()
        self._catch_up(now)
        self._help_others(now)
        for node in self._registry.due(self._connecting):
            self._start_connect(node)
        self._registry.initialize(self._send)
        self._registry.tell_changes()
        self.own.look((yield self._next_at(until)))

    def _catch_up(self, now: float) -> None:
        """Send nodes what they must get before anything else: the ends of former connections, then releases."""
        own = self.own
        for node in self._nodes:
            link = own.links[node.index]
            if link is not None and link.generation != node.generation:
                own.discard(link, node.moved() or node.down_reason)
        self._prepare()
        for node in self._nodes:
            if own.links[node.index] is not None:
                own.deliver(node, now)

    def finishing(self, until: float) -> Work:
        """Send what is left, and wait until that instant at most for replies that nodes still owe.

        Rollbacks may be in flight. Closing a socket with unread replies resets the connection and would lose them.
        """
        own, count = self.own, self._life.releases.count
        while (now := self._clock()) < until:
            self._catch_up(now)
            self._help_others(now)
            if not (self._owes() or any(link is not None and count(link.index) for link in own.links)):
                break
            own.look((yield now + 0.001))

    def _next_at(self, until: float) -> float:
        """Return when there is something to do, without news."""
        if self._alarmed:
            return -math.inf
        due_at = self._life.releases.due_at
        return min(
            until,
            self._clock() + (self._node_timeout / 2 if self._owes() else _TICK),
            self._registry.next_try(self._connecting),
            self._registry.initialize_at,
            *[due_at(node.index) for node in self._nodes if node.connected],
        )

    # Connecting.

    def _introduce(self, node: Node) -> HandshakeSteps[tuple[NodeInfo, tuple[str, int] | None]]:
        """Hold the first conversation with a node; returns what `introduce` does."""
        return introduce(node, self._node_timeout, wake_channel(self._life.client_id))

    def _fit_out(self, link: AnyLink) -> None:
        """Make a new link speak as its node needs it."""
        if link.node.needed:
            hold_back(link, link.node.needed, self._node_timeout)

    # Witnesses.

    def _connection_to(self, watch: Watch) -> Any:
        """Return a new, unconnected redis-py connection to a witness."""
        return new_connection(watch.locator.witnesses[watch.witness].pool, self.connect_timeout)

    def _reason_of(self, watch: Watch, error: BaseException) -> str:
        """Return why a witness can't be asked."""
        _, locator, index = watch
        return reason_of(error, locator.witnesses[index].address, locator.reports[index])

    def _note_answer(self, watch: Watch, answer: Sequence[Any] | str, asked_at: float) -> None:
        """Record the replies of a witness, or why it can't be asked; connect its node if that is news."""
        node, locator, index = watch
        before = locator.present, locator.unknown_reason
        if isinstance(answer, str):
            locator.note_failure(index, answer)
        else:
            locator.note(index, answer, asked_at)
        if (locator.present, locator.unknown_reason) != before or node.moved() is not None:
            self._registry.move(node)
            self.wake()
