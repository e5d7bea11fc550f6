"""What an owner does with one hold, drawn at random: how it takes it, and what it does until it gives it back.

`WORK` names the mixtures. Each is a function of a source of randomness and of the client's lease.
"""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Final, TypeAlias

__all__ = ["WORK", "Choose", "Task"]


@dataclass(frozen=True)
class Task:
    """What is done under one hold, and how it is taken.

    Attributes:
        timeout: The longest wait for it in seconds; None for ever, infinity for the rest of the run.
        seconds: How long the owner works under it, over all levels; or what draws that anew at each level.
        lease: The lease to ask for; None for the client's, which is renewed.
        levels: How often it is acquired, re-entries included, by an owner that may.
        extends: The probability that the owner lengthens it by hand.
        rest: How many seconds the owner rests afterwards.
        way: "enter"; "acquire", to take it and give it back by methods; "leave", to take it and not to give it back;
            "watch", to look at a latch or wait for it.
        mode: Of a read-write lock, "read" or "write".
        n: How many permits or successes to take at once.
        max_hold: After how many seconds the client gives it back itself, if any.
        waits: Draws how it is acquired once more; None for the same way as at first.
    """

    timeout: float | None
    seconds: float | Callable[[random.Random], float]
    lease: float | None = None
    levels: int = 1
    extends: float = 0.0
    rest: float = 0.0
    way: str = "enter"
    mode: str = ""
    n: int = 1
    max_hold: float | None = None
    waits: Callable[[random.Random], dict[str, Any]] | None = None

    @property
    def how(self) -> dict[str, Any]:
        """How long to wait, as an argument."""
        if self.way != "enter" and not self.timeout:
            return {} if self.timeout is None else {"blocking": False}
        return {"timeout": self.timeout}

    def again(self, rng: random.Random) -> dict[str, Any]:
        """Return how to acquire it once more, as arguments."""
        return {"timeout": self.timeout, "lease": self.lease} if self.waits is None else self.waits(rng)

    def share(self, rng: random.Random, levels: int) -> float:
        """Return how long to work at one of so many levels."""
        return self.seconds(rng) if callable(self.seconds) else self.seconds / levels


Choose: TypeAlias = Callable[[random.Random, float], Task]


def nested(rng: random.Random, _lease: float) -> Task:
    """Return a short task, often nested. It waits for longer than any fault of a minority may cost."""
    return Task(2.0, rng.uniform(0.001, 0.002), levels=rng.randint(1, 3))


def mixed(rng: random.Random, client_lease: float) -> Task:
    """Return a task: mostly short ones, and some of each kind that the promises speak of."""
    timeout = rng.choice([0.0, 0.3, 1.0, 3.0, 3.0])
    levels = rng.choice([1, 1, 2, 3])
    rest = rng.uniform(0.0, 0.03)  # so that the load is bounded
    draw = rng.random()
    if draw < 0.01:  # renewed several times
        return Task(timeout, rng.uniform(1.0, 1.6) * client_lease, levels=levels, extends=0.5, rest=rest)
    if draw < 0.03:  # renewed once at least
        return Task(timeout, rng.uniform(0.35, 0.6) * client_lease, levels=levels, rest=rest)
    if draw < 0.04:  # lost by its own fault: worked on for longer than the lease and the time in which that is told
        lease = rng.uniform(0.3, 0.6)
        return Task(timeout, lease + rng.uniform(0.1, 1.6), lease, levels, rest=rest)
    if draw < 0.09:  # not renewed, so that nodes which forget it are not told again
        lease = rng.uniform(0.5, 1.0) * client_lease
        return Task(timeout, rng.uniform(0.2, 0.8) * lease, lease, levels, rest=rest)
    seconds = rng.choice([0.0, 0.001, 0.003, 0.01, rng.uniform(0.02, 0.15)])
    return Task(timeout, seconds, levels=levels, rest=rest)


def counting(rng: random.Random, client_lease: float) -> Task:
    """Return a task to which a failure of a minority costs only time: no lease of its own, a long enough timeout."""
    long = rng.random() < 0.01  # than the watchdog's period, and than a node is gone
    seconds = 0.45 * client_lease if long else rng.choice([0.0, 0.001, 0.003, 0.01, 0.1 * rng.random()])
    return Task(2.0, seconds)


def leased(rng: random.Random, client_lease: float) -> Task:
    """Return a task that holds for long, with a claim that nobody writes down again."""
    return Task(0.3, rng.uniform(0.6, 0.8) * client_lease, client_lease, rest=rng.uniform(0.0, 0.03))


def brief(rng: random.Random, _lease: float) -> Task:
    """Return a short task, at times too long for its lease."""
    rest = rng.uniform(0.0, 0.03)
    if rng.random() < 0.15:
        return Task(0.3, rng.uniform(0.35, 0.5), 0.3, rest=rest)
    return Task(0.3, rng.choice([0.0, 0.01, 0.3]), rest=rest)


def steady(rng: random.Random, _lease: float) -> Task:
    """Return a task such that a lock that few share is held most of the time."""
    levels = rng.choice([1, 1, 2])
    return Task(rng.choice([1.0, 3.0, 10.0]), rng.uniform(0.1, 2.5), levels=levels, rest=0.01)


def eager(rng: random.Random, client_lease: float) -> Task:
    """Return a task such that all there is to have is wanted all the time.

    Most are short, but the long ones take most of the time, so that nodes have something to forget. A hold with its own
    lease is not written again to nodes that have forgotten it. Nodes that forgot wake nobody, so newcomers are the
    first to notice.
    """
    lease = client_lease if rng.random() < 0.5 else None
    timeout = rng.choice([math.inf, math.inf, 0.05, 0.3])
    long = rng.random() < 0.05
    seconds = rng.uniform(0.3, 1.5) * client_lease if long else rng.choice([0.0, 0.0, 0.002, 0.02])
    return Task(timeout, seconds, lease)


def watching(rng: random.Random, _lease: float) -> Task:
    """Return a task to find out when a latch is open: some wait for long, others again and again."""
    return Task(rng.choice([15.0, rng.uniform(0.05, 0.5)]), 0.0, rest=rng.uniform(0.0, 0.03), way="watch")


WORK: Final[Mapping[str, Choose]] = {
    work.__name__: work for work in (nested, mixed, counting, leased, brief, steady, eager, watching)
}
