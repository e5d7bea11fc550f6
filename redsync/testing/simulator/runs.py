"""One run by seed: workers that contend while all kinds of faults happen, then quiet, then a last look."""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field

from redsync.testing.simulator.checks import OF_KIND, Checker
from redsync.testing.simulator.client import Kind
from redsync.testing.simulator.faults import Nemesis
from redsync.testing.simulator.happenings import Faulted
from redsync.testing.simulator.simulation import Simulation
from redsync.testing.simulator.workload import Workload

__all__ = ["Outcome", "how_to_replay", "simulate"]

_FAULTS_UNTIL = 9.0
"""Seconds of faults, at the longest."""

_CALM = 3.0
"""Seconds of work after the last fault, at the longest."""

_LONG = 1000
"""The first seeds, of which tests take a few, make long runs; most of the others, of campaigns, make short ones."""
_BEYOND = 0.1
"""How many of the runs have clocks that are too wrong for any promise but those about liveness."""

_SETTING = 5.0
"""Seconds of the lease under which a latch is set: faults of some runs last longer than that."""


@dataclass
class Outcome:
    """What came of one run, or of many.

    Attributes:
        runs: How many runs.
        seconds: How much virtual time has passed.
        acquisitions: How often something was acquired.
        losses: How often its holder was told that it was lost.
        faults: How many faults there were, by kind.
        trace: The trace as text; empty for many runs.
    """

    runs: int = 0
    seconds: float = 0.0
    acquisitions: int = 0
    losses: int = 0
    faults: Counter[str] = field(default_factory=Counter)
    trace: str = ""

    def add(self, other: Outcome) -> None:
        """Add other runs to these."""
        self.runs += other.runs
        self.seconds += other.seconds
        self.acquisitions += other.acquisitions
        self.losses += other.losses
        self.faults += other.faults


def simulate(
    seed: int,
    *,
    kind: Kind = "lock",
    scripts: Mapping[str, str] | None = None,
    checkers: Iterable[type[Checker]] | None = None,
    traced: bool = False,
) -> Outcome:
    """Make one run; the seed decides also how many nodes and machines there are, and how long leases last.

    Args:
        seed: The seed.
        kind: What is contended for.
        scripts: As for `Simulation`.
        checkers: Which checkers look on; by default those that have something to see then.
        traced: Whether to return the trace as text.

    Raises:
        SimulationError: A promise was broken.
    """
    looking = OF_KIND[kind] if checkers is None else checkers
    sim = Simulation(seed, nodes=_nodes(seed), scripts=scripts, checkers=looking, replay=how_to_replay(seed, kind))
    luck = sim.luck("run")
    lease = luck.uniform(1.0, 2.5)
    sim.client_options.update(lease=lease, restart_guard=lease, node_timeout=luck.choice([0.05, 0.1, 0.25]))
    length = 1.0 if seed < _LONG else sim.luck("length").choice([0.25, 0.25, 0.5, 1.0])
    until = length * _FAULTS_UNTIL
    workload = Workload(sim, kind, until=until + (1 + length) / 2 * _CALM, lease=lease)
    every, beyond = luck.choice([0.4, 0.7, 1.5]), luck.random() < _BEYOND
    outlast = kind == "latch" and sim.luck("lasting").random() < 0.3
    lasting = 2 * (max(_SETTING, lease) if outlast else lease)
    nemesis = Nemesis(sim, until=until, every=every, lasting=lasting, beyond=beyond)
    with _no_logs(), sim:
        workload.start()
        nemesis.start()
        sim.run()
        # What nobody gives back expires now.
        sim.run(until=sim.now + 2 * lease)
    kinds = (happening.kind for happening in sim.trace.happenings if happening.__class__ is Faulted)
    text = sim.trace.text() if traced else ""
    return Outcome(1, sim.now, workload.acquisitions, workload.losses, Counter(kinds), text)


def how_to_replay(seed: int, kind: Kind) -> str:
    """Return the command that makes a run again and prints its trace."""
    return f"python -m redsync.testing.simulator --seed {seed}" + ("" if kind == "lock" else f" --kind {kind}")


def _nodes(seed: int) -> int:
    return (3, 5, 3, 1, 3, 4, 3, 5)[seed % 8]


@contextmanager
def _no_logs() -> Iterator[None]:
    """Log nothing: all that is lost here is meant to be, and the trace tells of it."""
    before = logging.root.manager.disable
    logging.disable(logging.CRITICAL)
    try:
        yield
    finally:
        logging.disable(before)
