"""The census: what a client knows of its nodes beyond their links, whoever connects them.

When to try one again, whether two of them are one server, whether one forgot what it knew, and whose state has changed.
`guard` guards what several threads write; where all is done in one thread it is never contended.
"""

from __future__ import annotations

import logging
import random
import threading
from collections.abc import Callable, Collection, Sequence
from typing import Any, Final, Protocol

from redsync._core.effects import Broadcast, Command
from redsync._core.events import Event, NodeChanged
from redsync._core.memory import BIRTH_KEY, NEWBORN, Birth, christening
from redsync._core.quorum import Choice, Tally, Verdict
from redsync._core.scripts import Script
from redsync._core.timing import retry_delay
from redsync._drivers.nodes import Node, NodeInfo, NodeStatus
from redsync._drivers.parcels import Parcel
from redsync.exceptions import ConfigurationError

__all__ = ["Census"]

log = logging.getLogger("redsync.node")

_CHRISTEN = Script.load("node_christen")

_SHORTEST_PAUSE, _LONGEST_PAUSE = 0.05, 1.0
"""Seconds between two tries to connect a node: it counts again at most this long after it is back."""

_SETTLED = 1.0
"""Seconds that a connection must have lasted for its end to be followed by a new one without a pause."""


class Linked(Protocol):
    """A connection to a node, as far as it matters here: `suspect` if the node owes replies for too long."""

    @property
    def suspect(self) -> bool: ...


class Lane(Protocol):
    """Connections to all nodes, None where there is none."""

    @property
    def links(self) -> Sequence[Linked | None]: ...

    def reconsider(self) -> None:
        """Look again at who takes part in what."""
        ...


class Census:
    """The nodes of one client.

    Attributes:
        reported: The indices of the nodes that have been connected once, or could not be.
        conflict: Why the nodes can't be used together; None if they can.
    """

    def __init__(
        self,
        nodes: Sequence[Node],
        lanes: Sequence[Lane],
        clock: Callable[[], float],
        *,
        restart_guard: float,
        tell: Callable[[Event], None],
        guard: threading.Condition | None = None,
        luck: Callable[[], float] = random.random,
    ) -> None:
        self._nodes: Final = nodes
        self._lanes: Final = lanes
        self._clock: Final = clock
        self._restart_guard: Final = restart_guard
        self._guard: Final = threading.Condition() if guard is None else guard
        self._tell: Final = tell
        self._luck: Final = luck
        self.reported: Final[set[int]] = set()
        self.conflict: str | None = None
        self._failures: Final = [0] * len(nodes)
        self._retry_at: Final = [0.0] * len(nodes)
        # Whether nodes are known to have had birth records: then none of them is new, whatever it forgets.
        self._seasoned = False
        # What all nodes were taken for at the last christening.
        self._given: list[Birth | None] = []

    # Whom to connect when; all but `note_broken` with the guard held.

    def missing(self) -> list[int]:
        """Return which nodes lack a link."""
        return [node.index for node in self._nodes if any(lane.links[node.index] is None for lane in self._lanes)]

    def next_try(self, connecting: Collection[int]) -> float:
        """Return when the next node is due for a try, of those that are not `connecting`."""
        return min((self._retry_at[i] for i in self.missing() if i not in connecting), default=float("inf"))

    def due(self, connecting: Collection[int]) -> list[Node]:
        """Return which nodes are to be connected now."""
        now = self._clock()
        return [self._nodes[i] for i in self.missing() if i not in connecting and self._retry_at[i] <= now]

    def put_off(self, node: Node, reason: str | None = None) -> None:
        """Let some time pass before the next try, more with each failure."""
        if reason is not None:
            node.last_error = node.excuse = reason
        failures = self._failures[node.index] = self._failures[node.index] + 1
        pause = retry_delay(failures, self._luck(), shortest=_SHORTEST_PAUSE, longest=_LONGEST_PAUSE)
        self._retry_at[node.index] = self._clock() + pause

    def note_tried(self, node: Node, error: str | None) -> None:
        """Take note of what came of a try."""
        if error is not None:
            self.put_off(node, error)
        node.connected = not any(lane.links[node.index] is None for lane in self._lanes)
        node.tried = True
        self.reported.add(node.index)

    def note_broken(self, node: Node, reason: str) -> None:
        """Take note that a lane lost its link to a node."""
        with self._guard:
            node.last_error = node.excuse = reason
            if node.connected:  # The first lane to notice speaks for all.
                node.connected = False
                if self._clock() - node.connected_at >= _SETTLED:
                    self._failures[node.index] = 0
                else:
                    self.put_off(node)

    # The beginning.

    def is_heard(self) -> bool:
        """Whether every node has been connected once, or could not be."""
        return len(self.reported) == len(self._nodes)

    def has_quorum(self) -> bool:
        """Whether so many nodes are connected that claims can be won."""
        return sum(node.connected for node in self._nodes) >= len(self._nodes) // 2 + 1

    def may_be_first_use(self) -> bool:
        """Whether nodes without a birth record may be new: then nothing is granted before everybody has been heard."""
        met = [node for node in self._nodes if node.info is not None]
        return self._restart_guard > 0 and any(node.birth is None for node in met)

    # Who they are.

    def meet(self, node: Node, info: NodeInfo) -> None:
        """Take note of who a node says it is, and whether it may have lost its memory.

        Raises:
            ConfigurationError: It is the same server as another one.
        """
        with self._guard:
            for other in self._nodes:
                same = other is not node and other.info is not None and other.info.run_id == info.run_id
                if same and info.run_id is not None:
                    self.conflict = (
                        f"{other.address} and {node.address} are the same server: list each node once, or one failure "
                        f"would count as several"
                    )
                    raise ConfigurationError(self.conflict)
            node.meet(info, self._clock())

    def christen(self, send: Callable[[Parcel], None]) -> Parcel | None:
        """Give nodes without a birth record one, when all that can be asked have been asked; see `memory`.

        Returns what was sent. A new client waits for its answers, for a moment, and then calls `take_over`: until its
        first call nobody else may christen, and until that has returned nobody may ask for a claim.
        """
        if not self._restart_guard:
            return None
        with self._guard:
            asked = [node for node in self._nodes if node.info is not None]
            if not asked or not self.is_heard():
                return None
            certain = len(asked) == len(self._nodes) and not self._seasoned
            record = christening([node.birth for node in asked], certain=certain)
            self._seasoned = True
            if record is None:
                return None
            for node in asked:
                if node.birth is None:
                    node.remember(Birth(record == NEWBORN, 0.0), self._clock())
            self._given = [node.birth for node in self._nodes]
        command = Command(_CHRISTEN, (BIRTH_KEY,), (record,))
        # Who waits for it says for how long.
        effect = Broadcast(command, 0, None, _is_christened, timeout=0.0, decide=_when_all_have_voted)
        parcel = Parcel(effect, Tally([node.address for node in self._nodes], effect.judge, effect.decide))
        # On its way before any claim that counts on it: one lane keeps the order.
        send(parcel)
        self._reconsider()
        return parcel

    def take_over(self, parcel: Parcel) -> None:
        """Believe what the nodes have after a new client's christening: others may have been quicker."""
        assert parcel.tally is not None, "a christening is answered"
        with self._guard:
            votes = zip(self._nodes, parcel.tally.choices, parcel.tally.replies, self._given, strict=True)
            for node, choice, reply, given in votes:
                # Unless something else has become known meanwhile.
                if choice is Choice.GRANTED and node.birth is given:
                    node.remember(Birth.christened(reply), self._clock())
        self._reconsider()

    def _reconsider(self) -> None:
        for lane in self._lanes:
            lane.reconsider()

    # Whose state has changed.

    def statuses(self) -> list[NodeStatus]:
        """Return the state of every node."""
        now = self._clock()
        return [node.status(now, self._is_suspect(node), self._restart_guard) for node in self._nodes]

    def tell_changes(self) -> None:
        """Log what has changed since the last time, and tell it."""
        now = self._clock()
        for node in self._nodes:
            change = node.change(now, self._is_suspect(node), self._restart_guard)
            if change is not None:
                _log_change(change)
                self._tell(change)

    def _is_suspect(self, node: Node) -> bool:
        links = [lane.links[node.index] for lane in self._lanes]
        return any(link is not None and link.suspect for link in links)


def _is_christened(reply: Any) -> bool:
    return Birth.christened(reply) is not None


def _when_all_have_voted(tally: Tally) -> Verdict:
    return Verdict.PENDING if None in tally.choices else Verdict.WON


def _log_change(change: NodeChanged) -> None:
    if change.state == "up":
        log.info("node %s is up", change.node)
    else:
        log.warning("node %s is %s: %s", change.node, change.state, change.reason)
