"""An owner's work with one hold, drawn at random: how it acquires it, and what it does until it releases it.

`WORK` names the mixtures. Each is a function of a random source and the client's lease.
"""

import random
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Final, TypeAlias


@dataclass(frozen=True)
class Task:
    """The work under one hold, and how the hold is acquired.

    Attributes:
        timeout: The longest wait for it in seconds; None for no limit.
        seconds: The seconds for which the owner works under it, over all levels; or a function that draws a new time
            for each level.
        lease: The lease to ask for; None for the client's, which is renewed.
        levels: How often it is acquired, including re-entries, where these are allowed.
        extends: The probability that the owner extends it.
        rest: The seconds for which the owner rests afterwards.
        operation: "enter"; "acquire", to acquire and release it by methods; "leave", to acquire it and not to release
            it; "cancel", to return a success of a rate limiter.
        mode: "read" or "write" for a read-write lock.
        n: The number of permits or successes to ask for at once.
        max_hold: The seconds after which the client itself releases it; None for never.
        waits: Draws how to acquire it once more; None for the same way as at first.
    """

    timeout: float | None
    seconds: float | Callable[[random.Random], float]
    lease: float | None = None
    levels: int = 1
    extends: float = 0.0
    rest: float = 0.0
    operation: str = "enter"
    mode: str = ""
    n: int = 1
    max_hold: float | None = None
    waits: Callable[[random.Random], dict[str, Any]] | None = None

    @property
    def how(self) -> dict[str, Any]:
        """The time to wait, as an argument."""
        if self.operation != "enter" and not self.timeout:
            return {} if self.timeout is None else {"blocking": False}
        return {"timeout": self.timeout}

    def again(self, rng: random.Random) -> dict[str, Any]:
        """Return how to acquire it once more, as arguments."""
        return {"timeout": self.timeout, "lease": self.lease} if self.waits is None else self.waits(rng)

    def share(self, rng: random.Random, levels: int) -> float:
        """Return how long to work at one of `levels` levels."""
        return self.seconds(rng) if callable(self.seconds) else self.seconds / levels


Choose: TypeAlias = Callable[[random.Random, float], Task]


def nested(rng: random.Random, _lease: float) -> Task:
    """Return a short task, often nested; it waits for longer than any fault of a minority may take."""
    return Task(2.0, rng.uniform(0.001, 0.002), levels=rng.randint(1, 3))


def mixed(rng: random.Random, client_lease: float) -> Task:
    """Return a task: mostly a short one, at times one that puts a promise to the test."""
    timeout = rng.choice([0.0, 0.3, 1.0, 3.0, 3.0])
    levels = rng.choice([1, 1, 2, 3])
    rest = rng.uniform(0.0, 0.03)  # bounds the load
    draw = rng.random()
    if draw < 0.01:  # renewed several times
        return Task(timeout, rng.uniform(1.0, 1.6) * client_lease, levels=levels, extends=0.5, rest=rest)
    if draw < 0.03:  # renewed at least once
        return Task(timeout, rng.uniform(0.35, 0.6) * client_lease, levels=levels, rest=rest)
    if draw < 0.04:  # lost by its own fault: works beyond its lease and the time to report that
        lease = rng.uniform(0.3, 0.6)
        return Task(timeout, lease + rng.uniform(0.1, 1.6), lease, levels, rest=rest)
    if draw < 0.09:  # not renewed, so that nodes which forget it do not learn it again
        lease = rng.uniform(0.5, 1.0) * client_lease
        return Task(timeout, rng.uniform(0.2, 0.8) * lease, lease, levels, rest=rest)
    seconds = rng.choice([0.0, 0.001, 0.003, 0.01, rng.uniform(0.02, 0.15)])
    return Task(timeout, seconds, levels=levels, rest=rest)


def eager(rng: random.Random, client_lease: float) -> Task:
    """Return a task that, repeated by all owners, keeps everything in demand all the time.

    Most are short, but the long ones take most of the time, so that nodes have something to forget. A hold with its own
    lease is not written again to nodes that have forgotten it. Nodes that forgot wake no waiter, so newcomers are the
    first to notice.
    """
    lease = client_lease if rng.random() < 0.5 else None
    timeout = rng.choice([60.0, 60.0, 0.05, 0.3])
    long = rng.random() < 0.05
    seconds = rng.uniform(0.3, 1.5) * client_lease if long else rng.choice([0.0, 0.0, 0.002, 0.02])
    return Task(timeout, seconds, lease)


WORK: Final[Mapping[str, Choose]] = {work.__name__: work for work in (nested, mixed, eager)}
