"""One run by seed: workers contend under all kinds of faults, then in calm; at the end the checkers look once more."""

from __future__ import annotations

import logging
import math
import random
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import NamedTuple, Self

from redsync.testing.simulator.simulation import Checker
from redsync.testing.simulator.trace_events import Faulted
from tests.simulation.checks import OF_GROUPS
from tests.simulation.topologies import world_for
from tests.simulation.trial import Trial
from tests.simulation.trial_faults import LatePushes, Rewinds, TrialNemesis
from tests.simulation.workload import Workload

_FAULTS_UNTIL = 9.0
"""Seconds of faults, at most."""

_CALM = 3.0
"""Seconds of work after the last fault, at most."""

_FIRST = 1000
"""Seeds below this make runs of one shape; tests take a few. Later ones are for campaigns: most runs are shorter, some
have two nodes, or programs that wait for nodes for a time only.
"""

_REUSING = 0.5
"""The share of the other runs in which each worker is always the same owner."""

_LONG = 0.04
"""The share of the other runs that are long."""

_BEYOND = 0.1
"""The share of runs whose clocks are too wrong for any promise but liveness."""

_REWINDING = 0.4
"""The share of runs in which nodes come back again and again with data from just before a grant."""

_SLOWNESS = 0.15
"""The probability that a process is slow or paused before it looks at the clock again."""

_SEVERAL_FROM = 10_000
"""Only from this seed on runs have clients with several sets of links, as clients for threads do."""

_SEVERAL = [1, 1, 2, 4]
"""The numbers of sets of links, of which a run draws one."""

_WIRE = 0.5
"""The share of runs that also have faults of the wire."""

_SETTING = 5.0
"""The lease, in seconds, under which a latch is set; in some runs faults last longer."""


_SPLITS = (0.0, 0.0, 0.05, 0.5)
_ROOMS = (1 << 18, 1 << 18, 1 << 18, 1 << 14)
"""Bytes of a connection that a machine keeps: room for all scripts, which a new node gets at once, or for some."""


@dataclass
class Outcome:
    """The outcome of one run, or of many.

    Attributes:
        runs: The number of runs.
        seconds: The virtual time that passed.
        acquisitions: The number of acquisitions.
        losses: The number of losses that holders learned of.
        faults: The number of faults, by kind.
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


class _Shape(NamedTuple):
    """The parameters of a run that the seed decides; all times in seconds.

    `Workload` and `TrialNemesis` describe those that they get.

    Attributes:
        lease: The usual lease, and the restart guard.
        node_timeout: The clients' `node_timeout`.
        fault_free: The time for which workers continue after the last fault.
        long: True if faults outlast connections.
    """

    lease: float
    node_timeout: float
    until: float
    fault_free: float
    every: float
    lasting: float
    beyond: bool
    pace: float = 1.0
    reuses: bool = False
    long: bool = False
    rewinding: float | None = None

    @classmethod
    def of(cls, sim: Trial, kind: str, *, long: bool) -> _Shape:
        """Return the shape of a run."""
        first, rng = sim.seed < _FIRST, sim.random_for("shape")
        if long or (rng.random() < _LONG and not first):
            return cls._long(sim)
        rng, reuses = sim.random_for("run"), rng.random() < _REUSING and not first
        lease = rng.uniform(1.0, 2.5)
        node_timeout = rng.choice([0.05, 0.1, 0.25])
        length = 1.0 if first else sim.random_for("length").choice([0.25, 0.25, 0.5, 1.0])
        outlast = kind == "latch" and sim.random_for("lasting").random() < 0.3
        lasting = 2 * (max(_SETTING, lease) if outlast else lease)
        until, fault_free = length * _FAULTS_UNTIL, (1 + length) / 2 * _CALM
        every, beyond = rng.choice([0.4, 0.7, 1.5]), rng.random() < _BEYOND
        rewinding = lease if sim.random_for("rewinding").random() < _REWINDING else None
        return cls(lease, node_timeout, until, fault_free, every, lasting, beyond, reuses=reuses, rewinding=rewinding)

    def for_groups(self, sim: Trial) -> Self:
        """Return the shape of a run in which failovers take the time, and in some runs little else happens."""
        until = max(self.until, _FAULTS_UNTIL)
        every = self.every * sim.random_for("besides failovers").choice([1.0, 4.0, 20.0])
        return self._replace(until=until, every=every)

    @classmethod
    def _long(cls, sim: Trial) -> _Shape:
        rng = sim.random_for("long")
        return cls(
            lease=rng.choice([1.5, 5.0, 20.0, 30.0]),
            node_timeout=rng.choice([0.05, 0.25]),
            until=rng.uniform(40.0, 160.0),
            fault_free=15.0,
            every=rng.uniform(4.0, 12.0),
            lasting=rng.choice([20.0, 40.0, 100.0]),
            beyond=rng.random() < _BEYOND,
            pace=rng.choice([2.0, 5.0]),
            reuses=rng.random() < 0.8,
            long=True,
        )


def simulate(
    seed: int,
    *,
    kind: str = "lock",
    scripts: Mapping[str, str] | None = None,
    checkers: Iterable[type[Checker]] | None = None,
    traced: bool = False,
    long: bool = False,
    nodes: int | None = None,
    replicas: int | None = None,
    cluster: bool = False,
    unlisted: int = 0,
    sets: int | None = None,
) -> Outcome:
    """Make one run; the seed also decides the number of machines, and how long leases last.

    Args:
        seed: The seed.
        kind: The kind of synchronizer that workers contend for.
        scripts: As for `Trial`.
        checkers: The checkers to use; by default those for that kind.
        traced: True to return the trace as text.
        long: True for a long run, whatever the seed says: some minutes, with faults that outlast connections.
        nodes: The number of nodes; None if the seed decides.
        replicas: The number of replicas of each node, which makes it a Sentinel group; None for single servers.
        cluster: True for nodes that are masters of a cluster, as for `Trial`.
        unlisted: The number of last nodes that every other machine leaves off its list.
        sets: The number of sets of links of each client; None if the seed decides.

    Raises:
        SimulationError: A promise was broken.
    """
    replay = how_to_replay(
        seed, kind, long=long, cluster=cluster, nodes=nodes, replicas=replicas, sets=sets, unlisted=unlisted
    )
    count = _nodes(seed) if nodes is None else nodes
    if checkers is None:
        checkers = (OF_GROUPS if unlisted else world_for(replicas, cluster=cluster).CHECKERS)[kind]
    several = _sets(seed) if sets is None else sets
    sim = Trial(
        seed,
        nodes=count,
        replicas=replicas,
        cluster=cluster,
        unlisted=unlisted,
        sets=several,
        scripts=scripts,
        checkers=checkers,
        replay=replay,
    )
    shape = _Shape.of(sim, kind, long=long)
    failing_over = shape.every
    if sim.groups:
        shape = shape.for_groups(sim)
    sim.client_options.update(lease=shape.lease, restart_guard=shape.lease, node_timeout=shape.node_timeout)
    if seed >= _FIRST:
        sim.client_options["outage_timeout"] = sim.random_for("patience").choice([0.0, shape.lease, math.inf])
    sim.network.retransmits = shape.long
    # An abandoned connection must do no harm even where it is neither reset nor ended.
    remains = sim.random_for("remains")
    sim.network.kept = remains.choice([0.0, 0.0, 0.3, 1.0])
    ends_former = remains.random() < 0.6
    for node in sim.servers:
        node.ends_former = ends_former
    sim.slowness = _SLOWNESS
    _shape_wire(sim)
    workload = Workload(
        sim, kind, until=shape.until + shape.fault_free, lease=shape.lease, pace=shape.pace, reuses=shape.reuses
    )
    nemesis = TrialNemesis(
        sim,
        until=shape.until,
        every=shape.every,
        lasting=shape.lasting,
        beyond=shape.beyond,
        outlasting=shape.long,
        wire=shape.every if sim.random_for("wired").random() < _WIRE else None,
    )
    with _no_logs(), sim:
        workload.start()
        nemesis.start()
        if shape.rewinding is not None:
            Rewinds(sim, until=shape.until, every=shape.rewinding, lasting=shape.lasting).start()
        if several > 1:
            LatePushes(sim, until=shape.until, every=shape.every / 4, lasting=shape.lasting).start()
        sim.world.start_faults(until=shape.until, every=failing_over, lasting=shape.lasting)
        sim.run()
        # Claims that are never released expire now.
        sim.run(until=sim.now + 2 * shape.lease)
        assert all(server.is_well for server in sim.servers), "faults end"
        assert not any(route.troubled for route in sim.network._routes.values()), "faults of the network, too"
    kinds = (event.kind for event in sim.trace.events if event.__class__ is Faulted)
    text = sim.trace.text() if traced else ""
    return Outcome(1, sim.now, workload.acquisitions, workload.losses, Counter(kinds), text)


def how_to_replay(seed: int, kind: str, *, unlisted: int = 0, **how: int | None) -> str:
    """Return the command that repeats a run and prints its trace; options as for `simulate`."""
    options = {"kind": None if kind == "lock" else kind, **how, "unlisted": unlisted or None}
    words = [
        f"--{name}" if value is True else f"--{name} {value}"
        for name, value in options.items()
        if value is not None and value is not False
    ]
    return " ".join(["python -m tests.simulation --seed", str(seed), *words])


def _shape_wire(sim: Trial) -> None:
    """Set, by the seed, in which pieces bytes arrive, and how many of them leave a client at once."""
    rng, network = sim.random_for("pieces"), sim.network
    network.split, network.room = rng.choice(_SPLITS), rng.choice(_ROOMS)


def _sets(seed: int) -> int:
    return random.Random(f"{seed} sets").choice(_SEVERAL) if seed >= _SEVERAL_FROM else 1


def _nodes(seed: int) -> int:
    return (3, 5, 3, 1, 3, 4, 3 if seed < _FIRST else 2, 5)[seed % 8]


@contextmanager
def _no_logs() -> Iterator[None]:
    """Disable logging: losses are intended here, and the trace has them."""
    before = logging.root.manager.disable
    logging.disable(logging.CRITICAL)
    try:
        yield
    finally:
        logging.disable(before)
