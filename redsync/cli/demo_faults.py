"""The faults of the demo: which node is killed or hung, when, and when it recovers.

At most a minority of the nodes is out at the same time: one of three or four nodes, two of five or more. With fewer
than three nodes there are no faults, because a quorum needs all of them.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from typing import TYPE_CHECKING, Final, NamedTuple

from redsync.testing.harness.journal import now_ns

if TYPE_CHECKING:
    from redsync.testing import LocalNodes

__all__ = ["Fault", "FaultPlan", "Outage", "plan"]

_KILL, _RESTART, _PAUSE, _RESUME = "kill", "restart", "pause", "resume"

_SENTENCES: Final = {
    _KILL: "is killed (SIGKILL)",
    _RESTART: "is restarted, empty",
    _PAUSE: "hangs (SIGSTOP)",
    _RESUME: "continues (SIGCONT)",
}

_STORIES: Final = {
    _KILL: "was killed and came back empty",
    _PAUSE: "hung for a while",
}

_MARKS: Final = {_KILL: "killed", _PAUSE: "hung"}

_SCHEDULE: Final = (
    (0.25, _KILL),
    (0.40, _PAUSE),
    (0.50, _RESTART),
    (0.65, _RESUME),
)
"""Faults by share of the run. From 0.40 on two nodes are out, until the restart guard of the first one ends."""


class Fault(NamedTuple):
    """One action on a node.

    Attributes:
        at: Seconds from the start of the run.
        action: The name of the method of `LocalNodes` that performs it.
        node: Index of the node.
    """

    at: float
    action: str
    node: int

    @property
    def story(self) -> str:
        """The fault and the recovery in the past tense, for the report; empty for a recovery."""
        return f"node {self.node + 1} {_STORIES[self.action]}" if self.harms else ""

    @property
    def harms(self) -> bool:
        """True if it takes the node out, False if it brings it back."""
        return self.action in (_KILL, _PAUSE)

    def __str__(self) -> str:
        return f"node {self.node + 1} {_SENTENCES[self.action]}"


class Outage(NamedTuple):
    """A time during which a node was killed or hung.

    Attributes:
        node: Index of the node.
        what: "killed" or "hung".
        begin: The instant at which it began, in ns on the journals' clock.
        end: The instant at which the node had been restarted, or continued; None if neither happened.
    """

    node: int
    what: str
    begin: int
    end: int | None = None


def plan(seconds: float, nodes: int, rng: random.Random) -> list[Fault]:
    """Return the faults of a run, in order of time, on nodes that `rng` chooses."""
    bearable = (nodes - 1) // 2
    killed, paused = rng.sample(range(nodes), 2) if nodes > 1 else (0, 0)
    victims = {_KILL: killed, _RESTART: killed} if bearable else {}
    if bearable > 1:
        victims |= {_PAUSE: paused, _RESUME: paused}
    return [Fault(share * seconds, action, victims[action]) for share, action in _SCHEDULE if action in victims]


class FaultPlan:
    """Carries out faults when they are due.

    Attributes:
        injected: The faults carried out so far.
        outages: The outages of nodes, in the order in which they began.
    """

    def __init__(self, nodes: LocalNodes, faults: Sequence[Fault]) -> None:
        self._nodes = nodes
        self._left = sorted(faults)
        self.injected: list[Fault] = []
        self.outages: list[Outage] = []

    @property
    def next_at(self) -> float:
        """Seconds from the start of the run to the next fault; infinity if there is none."""
        return self._left[0].at if self._left else float("inf")

    def inject(self, elapsed: float) -> list[Fault]:
        """Carry out the faults that are due `elapsed` seconds after the start of the run; return them.

        Raises:
            ServerStartError: A killed node did not start again.
        """
        done: list[Fault] = []
        while self.next_at <= elapsed:
            fault = self._left.pop(0)
            begin = now_ns()
            getattr(self._nodes, fault.action)(fault.node)
            self._note(fault, begin)
            done.append(fault)
        self.injected += done
        return done

    def _note(self, fault: Fault, begin: int) -> None:
        """Record the begin of an outage as of just before the fault, or its end as of just after the recovery."""
        if fault.harms:
            self.outages.append(Outage(fault.node, _MARKS[fault.action], begin))
            return
        self.outages = [
            outage._replace(end=now_ns()) if outage.node == fault.node and outage.end is None else outage
            for outage in self.outages
        ]

    def marks(self) -> dict[int, str]:
        """Return "killed" or "hung" for each node that is out now, by index."""
        return {outage.node: outage.what for outage in self.outages if outage.end is None}
