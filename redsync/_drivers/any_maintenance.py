"""The maintenance of both flavours: what keeps a client's connections alive, however one waits.

It makes the first connections, reconnects nodes with growing pauses, finds out what they remember, delivers pending
releases, looks for nodes that owe replies, and reports changes of nodes' states.

It also asks the witnesses of nodes without a fixed address where their servers are. Each witness of a group or cluster
has a thread, or a task, because a silent one must not delay the others. A message about a failover could be lost, so
they are asked twice a second, or three times within the guard, which costs a witness a few microseconds. So a client
follows a failover at most half a second after a majority of the witnesses reports it.

The steps are generators (`Work`). Each yields the instant until which to read what comes, and gets the instant before
which everything that had arrived was read. `maintenance` drives them in a thread and `aio_maintenance` in a task.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Generator, Sequence
from typing import TYPE_CHECKING, Any, Final, Generic, NamedTuple, TypeAlias, TypeVar

from redsync._core.effects import Broadcast
from redsync._core.keys import wake_channel
from redsync._core.memory import (
    BIRTH_KEY,
    BLANK,
    FIRST_USE,
    JOINING,
    LOOK,
    NEWBORN,
    ORIGINAL,
    Birth,
    next_step,
)
from redsync._core.quorum import Choice, Tally, Verdict
from redsync._core.scripts import Command
from redsync._core.timing import retry_delay
from redsync._drivers.acknowledgements import hold_back
from redsync._drivers.discovery import Locator
from redsync._drivers.handshake_connections import TIMEOUTS, HandshakeSteps
from redsync._drivers.handshakes import INITIALIZE, introduce
from redsync._drivers.link_sets import AnyLinkSet
from redsync._drivers.links import AnyLink
from redsync._drivers.nodes import INTERRUPTED, ConnectionId, Node, NodeInfo, NodeStatus, reason_of
from redsync._drivers.redis_py import new_connection
from redsync._drivers.requests import Request
from redsync.exceptions import ConfigurationError

if TYPE_CHECKING:
    from redsync._drivers.any_runner import AnyLife

__all__ = [
    "PAUSE_AFTER_FAILURE",
    "STRAGGLERS",
    "AnyMaintenance",
    "NodeRegistry",
    "Stopped",
    "WitnessPoll",
    "Work",
]

PAUSE_AFTER_FAILURE: Final = 0.1
"""Seconds until the maintenance starts again, after an error in it."""

_TICK: Final = 1.0
"""The longest sleep in seconds."""

STRAGGLERS: Final = 0.05
"""Seconds that a new client waits for more nodes once a quorum is connected."""

_MOST_OFTEN, _LEAST_OFTEN = 0.05, 0.5
"""The fewest and the most seconds between two questions to a witness."""

_SHORTEST_PAUSE, _LONGEST_PAUSE = 0.05, 1.0
"""The shortest and longest pause between connects of a node, in seconds: one that is back counts again within 1 s."""

_LOOK_AGAIN = 0.02
"""Seconds between two looks at nodes that other clients may be initializing."""

_ASK_AGAIN = 1.0
"""Seconds after which the client expects no more answers, and again asks nodes that did not report their memory."""

_MISTAKES: Final = AssertionError, AttributeError, ImportError, NameError, TypeError
"""Errors that the next connect will find again."""

_STABLE = 1.0
"""Seconds that a connection must last; after a shorter one the next connect waits for a pause."""

Work: TypeAlias = Generator[float, float, None]
"""Steps of a maintenance: yields instants until which to read, gets instants before which everything was read."""

SetT = TypeVar("SetT", bound=AnyLinkSet)


class WitnessPoll(NamedTuple):
    """Nodes and what is known about their servers, the locator that asks for all, and the index of their witness."""

    watched: Sequence[tuple[Node, Locator]]
    locator: Locator
    witness: int

    @property
    def name(self) -> str:
        """The name of its thread or task."""
        return f"redsync-watch-{self.locator.witnesses[self.witness].address}"


class NodeRegistry:
    """A client's knowledge of its nodes beyond their links; but for `note_failure`, only the maintenance writes to it.

    It knows when to try a node again, whether two nodes are one server, whether a node lost its memory (see `memory`),
    and which node's state has changed.

    Attributes:
        mistake: An error that no later connect can mend: the nodes are unusable together, or there is a programming
            error in a node's first connect. None if there was none.
        initialize_at: The latest instant at which to call `initialize` again, in seconds on the client's clock.
    """

    def __init__(self, life: AnyLife, own: AnyLinkSet, patience: float, wake: Callable[[], None]) -> None:
        """Make a registry that knows nothing yet.

        Args:
            life: The client.
            own: The set by whose links nodes are up.
            patience: Seconds after which the client no longer waits for first connects.
            wake: Makes the maintenance look at once.
        """
        self._nodes: Final = life.nodes
        self._own: Final = own
        self._clock: Final = life.clock
        self._restart_guard: Final = life.session.timing.restart_guard
        self._heard_by: Final = life.clock() + patience
        self._processes: Final = life.session.processes
        self._report: Final = life.on_event
        self._wake: Final = wake
        self._random: Final = life.session.random
        self.mistake: BaseException | None = None
        self._failures: Final = [0] * len(self._nodes)
        self._retry_at: Final = [0.0] * len(self._nodes)
        # True once nodes are known to have had birth records: then none of them is new, no matter what it forgets.
        self._was_used = False
        self._looks_until: float | None = None
        self.initialize_at = float("inf")
        self._not_before = 0.0
        # The question that is under way, and the nodes' records when it was asked.
        self._asking: tuple[bytes, Request] | None = None
        self._taken_for: list[Birth | None] = []
        # The nodes' first records. A later original one is from a client that mistook an emptied node for new.
        self._stamps: Final[dict[int, bytes]] = {}
        # Nodes that had the same record when all had been asked once, and after that.
        self._unchanged: set[int] = set()

    # Which nodes to connect, and when.

    def missing(self) -> list[int]:
        """Return the nodes without a link."""
        return [i for i, link in enumerate(self._own.links) if link is None]

    def next_try(self, connecting: Collection[int]) -> float:
        """Return when the next node is due for a connect, except those that are `connecting`."""
        return min([self._retry_at[i] for i in self.missing() if i not in connecting], default=float("inf"))

    def due(self, connecting: Collection[int]) -> list[Node]:
        """Return the nodes to connect now."""
        now = self._clock()
        due = [self._nodes[i] for i in self.missing() if i not in connecting and self._retry_at[i] <= now]
        return [node for node in due if self._locate(node, now)]

    def _locate(self, node: Node, now: float) -> bool:
        """Take over where a node's server is; return False, and try it again after a pause, if that is unknown."""
        locator = node.locator
        if locator is None:
            return True
        if (present := locator.present) is not None:
            if node.location != present:
                node.location = present
                node.generation += 1  # Last: until then a set may have begun to connect to the former place.
            return True
        if locator.is_decided:
            self.note_tried(node, locator.unknown_reason)
        self._retry_at[node.index] = now + _LONGEST_PAUSE
        return False

    def put_off(self, node: Node, reason: str | None = None) -> None:
        """Schedule the next try after a pause, which grows with each failure."""
        if reason is not None:
            node.last_error = node.down_reason = reason
        failures = self._failures[node.index] = self._failures[node.index] + 1
        pause = retry_delay(failures, self._random(), shortest=_SHORTEST_PAUSE, longest=_LONGEST_PAUSE)
        self._retry_at[node.index] = self._clock() + pause

    def note_failure(self, node: Node, error: BaseException) -> str:
        """Record the error of a try, before its outcome; return it as one line. Called in any thread."""
        conflict = isinstance(error, ConfigurationError)
        if conflict or (isinstance(error, _MISTAKES) and not node.tried):
            self.mistake = self.mistake or error
        # At once: sets of callers fail, too, while the node is up.
        node.last_error = reason = str(error) if conflict else reason_of(error, node.address, node.last_error)
        return reason

    def note_tried(self, node: Node, error: str | None) -> None:
        """Record the outcome of a try."""
        node.connected = self._own.links[node.index] is not None
        if not node.connected:  # Without an error, `note_broken` has recorded why.
            self.put_off(node, error)
        node.tried = True

    def note_broken(self, node: Node, reason: str) -> None:
        """Record that the transport lost its link to a node."""
        node.last_error = node.down_reason = reason
        if node.connected:  # otherwise it broke during the connect: `note_tried` counts that
            node.connected = False
            if reason == INTERRUPTED or self._clock() - node.connected_at >= _STABLE:
                self._failures[node.index] = 0
            else:
                self.put_off(node)

    def move(self, node: Node) -> None:
        """Connect a node whose witnesses have news, without a pause; if its server is another one, from all sets."""
        self._failures[node.index], self._retry_at[node.index] = 0, 0.0
        if node.moved() is not None:
            node.generation += 1

    # The start.

    def require_usable(self) -> None:
        """Raise what the first connects found out and no later one can mend.

        Raises:
            ConfigurationError: Two nodes are the same server.
            Exception: A programming error, of ours, of a library or of the application.
        """
        if self.mistake is not None:
            raise self.mistake

    def is_heard(self) -> bool:
        """Return True once a connect has succeeded or failed for every node, or has taken too long."""
        return all(node.tried for node in self._nodes) or self._clock() >= self._heard_by

    def has_quorum(self) -> bool:
        """Return True if enough nodes are connected to win claims."""
        return sum(node.connected for node in self._nodes) >= len(self._nodes) // 2 + 1

    def may_be_first_use(self) -> bool:
        """Return True if nodes without a birth record may be new; they grant nothing before all nodes are heard."""
        met = [node for node in self._nodes if node.info is not None]
        return self._restart_guard > 0 and any(node.birth is None or node.birth.kind == BLANK for node in met)

    # Their identity and memory.

    def misnamed(self) -> list[int]:
        """Return the nodes to greet again: their servers have no record under the name that this client knows."""
        late = self._clock() - _ASK_AGAIN
        return [
            node.index
            for node in self._nodes
            if node.locator is not None
            and node.locator.present is not None  # else it could not be connected again
            and node.connected
            and node.birth is None
            and self._restart_guard > 0
            and node.connected_at <= late  # It may be unable to write a record.
        ]

    def meet(self, node: Node, info: NodeInfo) -> None:
        """Record a node's description of itself, and whether it may have lost its memory.

        Only nodes that are connected are compared. Servers may exchange their addresses (a floating
        IP, DNS), and the last description of an absent node must not keep its successor out.

        Raises:
            ConfigurationError: It is the same server as another node.
            ConnectionError: It is the same for now, because two slots of a cluster have one owner. Or it was replaced
                during the connect.
        """
        if (moved := node.moved()) is not None:
            raise ConnectionError(moved)
        for other in self._nodes:
            if other is node or other.info is None:
                continue
            if info.run_id is not None and other.info.run_id == info.run_id:
                if self._own.links[other.index] is None:
                    # Other sets may still have links to this server in its name, which would be two votes. And a
                    # server that finds two names for itself in a command takes the older one.
                    other.generation += 1
                    self._processes.forget(other.index)
                    continue
                if node.has_slot and other.has_slot:
                    # Until the slots are on different masters again.
                    raise ConnectionError(f"is on the same server as {other.address} now, so it has no vote")
                raise ConfigurationError(
                    f"{other.address} and {node.address} are the same server: list each node once, or one failure "
                    f"would count as several"
                )
        self._processes.note(node.index, info.process)
        self._unchanged.clear()
        # Answers to an earlier question are older than this record, and may be under another name.
        self._asking, self._not_before = None, 0.0
        node.meet(info._replace(birth=self._judge(node, info.birth)), self._clock())

    def initialize(self, send: Callable[[Request], None]) -> None:
        """Take the next step to find out what nodes without a conclusive birth record remember; see `memory`.

        Called when an answer may have come, and again at `initialize_at`. A new client asks for no claim before it has
        taken the first steps.
        """
        if not self._restart_guard:
            return
        self._take_answers()
        now = self._clock()
        question = self._question(now) if self.is_heard() else None
        self.initialize_at = float("inf") if question is None and self._asking is None else self._not_before
        if question is not None and now >= self._not_before:
            send(self._ask(*question, now))

    def _ask(self, step: bytes, args: tuple[bytes, ...], now: float) -> Request:
        if any(node.location is not None for node in self._nodes):
            args = (*(args or (b"",)), self._processes.named)
        command = Command(INITIALIZE, (BIRTH_KEY,), (step, *args))
        # No caller waits for it.
        effect = Broadcast(command, None, self._is_answer, timeout=0.0, decide=_when_all_have_voted)
        tally = effect.tally([node.address for node in self._nodes])
        tally.sent_at = now
        request = Request(effect, tally)
        self._asking, self._taken_for = (step, request), [node.birth for node in self._nodes]
        self.initialize_at = self._not_before = now + _ASK_AGAIN
        return request

    def _question(self, now: float) -> tuple[bytes, tuple[bytes, ...]] | None:
        """Return the question and its arguments; None if no connected node needs one."""
        asked = [node for node in self._nodes if node.info is not None]
        if not [node for node in asked if node.connected and node.remembers_since == float("inf")]:
            self._was_used = self._was_used or any(node.remembers_since < float("inf") for node in asked)
            return None
        if self._looks_until is None:
            self._looks_until = now + FIRST_USE
        step = next_step(
            [node.birth for node in asked],
            certain=len(asked) == len(self._nodes) and not self._was_used,
            unchanged=len(self._unchanged) == len(self._nodes),
            may_look=now < self._looks_until,
        )
        assert step is not None, "there is a node with an inconclusive record"
        if step == ORIGINAL:
            stamps = [node.birth.stamp for node in asked if node.birth is not None]
            return step, (b" %b " % b" ".join(stamps),)
        self._was_used = self._was_used or step == NEWBORN
        return step, ()

    def _take_answers(self) -> None:
        """Record the nodes' answers about their memory, once there are all that can be expected."""
        if self._asking is None:
            return
        step, request = self._asking
        assert request.tally is not None, "it is answered"
        tally, now = request.tally, self._clock()
        awaited = [node for node in self._nodes if tally.ballots[node.index] is None and not self._is_suspect(node)]
        if awaited and now < self._not_before:
            return
        self._asking = None
        changed = False
        for node, choice, reply, before in zip(self._nodes, tally.choices, tally.replies, self._taken_for, strict=True):
            # Skip the answer of a node whose record has changed meanwhile.
            if choice is not Choice.GRANTED or node.birth is not before:
                continue
            _, birth = Birth.initialized(reply)
            node.remember(self._judge(node, birth), now)
            is_same = (birth and birth.stamp) == (before and before.stamp)
            changed = changed or not is_same
            if birth is not None and is_same:
                self._unchanged.add(node.index)
            else:
                self._unchanged.clear()
        if step == LOOK and len(self._unchanged) == len(self._nodes):
            self._not_before = now
        else:
            # A node that can't write its record may be unable to for hours.
            self._not_before = now + (_LOOK_AGAIN if changed or step == LOOK else _ASK_AGAIN)

    def _judge(self, node: Node, birth: Birth | None) -> Birth | None:
        """Return the record that counts for a node; this client may have known it before it was emptied."""
        if birth is None or birth.kind in (BLANK, JOINING):
            return birth
        first = self._stamps.setdefault(node.index, birth.stamp)
        return birth if birth.stamp == first else birth._replace(kind=NEWBORN)

    def _is_answer(self, reply: Any) -> bool:
        Birth.initialized(reply)
        self._wake()
        return True

    # The nodes' states, and changes of them.

    def status(self, node: Node, pending: int) -> NodeStatus:
        """Return a node's state; it has yet to get that many releases."""
        return node.status(self._clock(), self._is_suspect(node), self._restart_guard, pending)

    def report_changes(self) -> None:
        """Report the changes of state since the last call."""
        now = self._clock()
        for node in self._nodes:
            if not node.tried and now < self._heard_by:
                continue  # It has no state to report before its first connect, unless a look-up of its name hangs.
            change = node.change(now, self._is_suspect(node), self._restart_guard)
            if change is not None:
                self._report(change)

    def _is_suspect(self, node: Node) -> bool:
        link = self._own.links[node.index]
        return link is not None and link.suspect


def _when_all_have_voted(tally: Tally) -> Verdict:
    return Verdict.PENDING if None in tally.ballots else Verdict.WON


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
        guard = life.session.timing.restart_guard
        # Votes of a node with replicas count for two thirds of the guard after a question.
        self._ask_every: Final = max(min(_LEAST_OFTEN, guard / 3 or _LEAST_OFTEN), _MOST_OFTEN)
        self._stopping = self._alarmed = False
        self._connecting: dict[int, Any] = {}  # by node
        self._registry: Final = NodeRegistry(life, own, TIMEOUTS * self.connect_timeout, self.wake)
        watched: dict[object, list[tuple[Node, Locator]]] = {}
        for node in self._nodes:
            if (locator := node.locator) is not None:
                watched.setdefault((locator.witnesses, locator.questions), []).append((node, locator))
        self._polls: Final = [
            WitnessPoll(each, each[0][1], index)
            for each in watched.values()
            for index in range(len(each[0][1].witnesses))
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
        return [self._registry.status(node, self._life.releases.count(node.index)) for node in self._nodes]

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
        return self._alarmed or bool(self._life.session.holds)

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
        for index in self._registry.misnamed():
            self.own.discard(self.own.links[index], "its birth record names another server, or none")
        if not self._stopping:
            for node in self._registry.due(self._connecting):
                self._start_connect(node)
        self._registry.initialize(self._send)
        self._registry.report_changes()
        self.own.look((yield self._next_at(until)))

    def _catch_up(self, now: float) -> None:
        """Send nodes what they must get before anything else: the ends of former connections, then releases."""
        own = self.own
        own.discard_former()
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
        due_at = self._life.releases.due_at
        return min(
            until,
            self._clock() + (self._node_timeout / 2 if self._owes() else _TICK),
            math.inf if self._stopping else self._registry.next_try(self._connecting),
            self._registry.initialize_at,
            *[due_at(node.index) for node in self._nodes if node.connected],
        )

    # Connecting.

    def _introduce(self, node: Node) -> HandshakeSteps[tuple[NodeInfo, ConnectionId | None]]:
        """Hold the first conversation with a node; returns what `introduce` does."""
        return introduce(node, self._node_timeout, wake_channel(self._life.client_id))

    def _prepare_link(self, link: AnyLink) -> None:
        """Make a new link speak as its node needs it."""
        if link.node.needed:
            hold_back(link, link.node.needed, self._node_timeout)

    # Witnesses.

    def _connection_to(self, poll: WitnessPoll) -> Any:
        """Return a new, unconnected redis-py connection to a witness."""
        return new_connection(poll.locator.witnesses[poll.witness].pool, self.connect_timeout)

    def _reason_of(self, poll: WitnessPoll, error: BaseException) -> str:
        """Return why a witness can't be asked."""
        return reason_of(error, poll.locator.witnesses[poll.witness].address, poll.locator.reports[poll.witness])

    def _note_answer(self, poll: WitnessPoll, answer: Sequence[Any] | str, asked_at: float) -> None:
        """Record the replies of a witness, or why it can't be asked; connect the nodes for which that is news."""
        for node, locator in poll.watched:
            before = locator.present, locator.unknown_reason
            if isinstance(answer, str):
                locator.note_failure(poll.witness, answer)
            else:
                locator.note(poll.witness, answer, asked_at)
            if (locator.present, locator.unknown_reason) != before or node.moved() is not None:
                self._registry.move(node)
                self.wake()
