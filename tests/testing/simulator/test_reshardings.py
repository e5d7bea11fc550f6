"""Faults of clusters by seed: all kinds happen, and at the end every node has its own server."""

from functools import cache

from redsync.testing.simulator import Simulation
from redsync.testing.simulator.happenings import Faulted


@cache
def strike(seed):
    with Simulation(seed, nodes=3, replicas=2, cluster=True, checkers=()) as sim:
        sim.machine("a")
        sim.machine("b")
        sim.world.start_faults(until=30.0, every=0.3, lasting=2.0)
        sim.run(until=30.0)
        for server in sim.servers:
            server.resume()
            server.restart()
        sim.heal()
        sim.run(until=45.0)
    return sim


def test_all_kinds_of_faults_happen_and_end():
    sims = [strike(seed) for seed in range(3)]
    faults = [fault for sim in sims for fault in sim.trace.happenings if isinstance(fault, Faulted)]
    kinds = {fault.kind for fault in faults}
    assert {"group failover", "group isolation", "group lag", "group heal"} <= kinds
    assert {"cluster move", "cluster slot", "cluster loss", "node crash", "node hang", "partition"} <= kinds
    assert any("stays with" in fault.text for fault in faults)
    assert all(sim.world.is_settled and all(shard.is_settled for shard in sim.groups) for sim in sims)


def test_slots_move_back_and_forth_and_come_together():
    faults = [fault for seed in range(3) for fault in strike(seed).trace.happenings if isinstance(fault, Faulted)]
    owners = [fault.text.partition(",")[0] for fault in faults if fault.kind == "cluster slot"]
    there_and_back = [
        one for one, between, other in zip(owners, owners[1:], owners[2:], strict=False) if one == other != between
    ]
    assert there_and_back
    assert len(owners) > 30
