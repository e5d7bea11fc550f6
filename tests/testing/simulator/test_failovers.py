"""Faults of groups by seed: all kinds happen, and at the end there are none."""

from functools import cache

from redsync.testing.simulator import Simulation
from redsync.testing.simulator.failovers import Failovers
from redsync.testing.simulator.happenings import Faulted


@cache
def strike(seed):
    with Simulation(seed, nodes=2, replicas=2, checkers=()) as sim:
        sim.machine("a")
        sim.machine("b")
        Failovers(sim, until=30.0, every=0.3, lasting=2.0).start()
        sim.run(until=30.0)
        for server in sim.servers:
            server.resume()
            server.restart()
        sim.heal()
        sim.run(until=40.0)
    return sim


def test_all_kinds_of_faults_happen_and_end():
    sims = [strike(seed) for seed in range(3)]
    kinds = {fault.kind for sim in sims for fault in sim.trace.happenings if isinstance(fault, Faulted)}
    wanted = {"failover", "isolation", "deafness", "lag", "reset", "heal"}
    assert {f"group {kind}" for kind in wanted} <= kinds
    assert {"node crash", "node hang", "node follow", "partition"} <= kinds
    assert all(group.is_settled for sim in sims for group in sim.groups)
    assert any(group.epoch > 10 for sim in sims for group in sim.groups)


def test_old_masters_are_promoted_again_as_the_same_processes():
    named = []
    for seed in range(4):
        lines = [str(fault) for fault in strike(seed).trace.happenings]
        for number, line in enumerate(lines):
            if "becomes the master" in line:
                server = line.split()[2]
                told = f"*** {server} follows "
                earlier = [
                    other
                    for other in lines[:number]
                    if other.startswith((told, f"*** {server} crashes")) or f": {server} becomes" in other
                ]
                named += earlier[-1:]
    assert any("becomes the master" in line for line in named)
