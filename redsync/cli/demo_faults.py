"""The faults of the demo: which node is killed or hung, when, and when it is mended.

Only a minority of the nodes is ever out at the same time: one node with three or four of them, two with five or more.
With fewer than three nodes there are no faults, because a quorum needs all of them.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from typing import TYPE_CHECKING, Final, NamedTuple

if TYPE_CHECKING:
    from redsync.testing import LocalNodes

__all__ = ["Fault", "FaultPlan", "plan"]

_KILL, _RESTART, _PAUSE, _RESUME = "kill", "restart", "pause", "resume"

_SENTENCES: Final = {
    _KILL: "is killed (SIGKILL)",
    _RESTART: "is started again, empty",
    _PAUSE: "hangs (SIGSTOP)",
    _RESUME: "goes on (SIGCONT)",
}

_STORIES: Final = {
    _KILL: "was killed and came back empty",
    _PAUSE: "hung for a time",
}

_SCHEDULE: Final = (
    (0.25, _KILL),
    (0.40, _PAUSE),
    (0.50, _RESTART),
    (0.65, _RESUME),
)
"""Faults by share of the run. From 0.40 on two nodes are out, until the restart guard of the restarted one is over."""


class Fault(NamedTuple):
    """One action on a node.

    Attributes:
        at: When, in seconds from the start of the run.
        action: The name of the method of `LocalNodes` that does it.
        node: Index of the node.
    """

    at: float
    action: str
    node: int

    @property
    def story(self) -> str:
        """The fault and its mending in the past tense, for the report; empty for the mending alone."""
        return f"node {self.node + 1} {_STORIES[self.action]}" if self.harms else ""

    @property
    def harms(self) -> bool:
        """Whether it takes the node away, rather than giving it back."""
        return self.action in (_KILL, _PAUSE)

    def __str__(self) -> str:
        return f"node {self.node + 1} {_SENTENCES[self.action]}"


def plan(seconds: float, nodes: int, rng: random.Random) -> list[Fault]:
    """Return the faults of a run, in the order of their time.

    Args:
        seconds: How long the run lasts.
        nodes: The number of nodes.
        rng: Chooses the nodes.
    """
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
    """

    def __init__(self, nodes: LocalNodes, faults: Sequence[Fault]) -> None:
        self._nodes = nodes
        self._left = sorted(faults)
        self.injected: list[Fault] = []

    @property
    def next_at(self) -> float:
        """When the next fault is due, in seconds from the start of the run; infinity when there is none."""
        return self._left[0].at if self._left else float("inf")

    def inject(self, elapsed: float) -> list[Fault]:
        """Carry out the faults that are due by now; return them.

        Args:
            elapsed: Seconds from the start of the run.

        Raises:
            ServerStartError: A killed node did not start again.
        """
        done: list[Fault] = []
        while self.next_at <= elapsed:
            fault = self._left.pop(0)
            getattr(self._nodes, fault.action)(fault.node)
            done.append(fault)
        self.injected += done
        return done

    def marks(self) -> dict[int, str]:
        """Return the nodes that are out at the moment, by index, with what was done to each."""
        out: dict[int, str] = {}
        for fault in self.injected:
            if fault.harms:
                out[fault.node] = "killed" if fault.action == _KILL else "hung"
            else:
                del out[fault.node]
        return out
