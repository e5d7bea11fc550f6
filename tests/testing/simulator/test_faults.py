"""Random faults: all kinds happen, and in the end there are none."""

import asyncio
import contextlib

from redsync.exceptions import LeaseLostError
from redsync.testing.simulator import Simulation
from redsync.testing.simulator.faults import Nemesis
from redsync.testing.simulator.happenings import Executed, Faulted


def unleash(seed, sets=1, **options):
    sim = Simulation(seed, nodes=5, lease=2.0, sets=sets)
    for name in "abc":
        sim.machine(name)
    with sim:
        Nemesis(sim, until=60.0, every=0.2, **options).start()
        sim.run(until=60.0)
        return sim


def test_all_kinds_of_faults_happen():
    kinds = {h.kind for h in unleash(1).trace.happenings if isinstance(h, Faulted)}
    network = {"partition", "delay", "loss", "heal"}
    lives = "crash", "restart", "restart empty", "restart older", "hang", "resume", "refuse", "recover", "flush"
    nodes = {f"node {kind}" for kind in (*lives, "drift", "jump")}
    machines = {f"machine {kind}" for kind in ("pause", "resume", "crash", "drift", "jump")}
    assert kinds == network | nodes | machines


def test_all_faults_end():
    for seed in range(3):
        sim = unleash(seed)
        assert {node.state for node in sim.nodes} == {"up"}
        assert not any(machine.paused and not machine.crashed for machine in sim.machines)
        assert not any(sim.network.route(machine, node).troubled for machine in sim.machines for node in sim.nodes)
        assert not all(machine.crashed for machine in sim.machines)
        assert not sim.waived


def test_faults_beyond_waive_exclusion():
    assert "exclusion" in unleash(1, beyond=True).waived


def test_outlasting_faults_are_mostly_of_the_network():
    happened = [h for h in unleash(1, outlasting=True).trace.happenings if isinstance(h, Faulted)]
    network = sum(h.kind in {"partition", "delay"} for h in happened)
    assert network > sum(h.kind in {"node crash", "node hang", "machine pause"} for h in happened)
    assert any("up to 120.000 s" in h.text for h in happened)


# Older data.


async def hold_one_after_the_other(client):
    for i in range(20):
        with contextlib.suppress(LeaseLostError):
            async with client.get_lock(f"x-{i}"):
                await asyncio.sleep(0.5)


def test_nodes_that_rewind_have_forgotten_holds():
    with Simulation(1, lease=2.0, restart_guard=0.0) as sim:
        machine = sim.machine("a")
        machine.start(hold_one_after_the_other(machine.client()))
        Nemesis(sim, until=8.0, every=1e9, rewinding=0.5).start()
        sim.run()
    executed = [h for h in sim.trace.happenings if isinstance(h, Executed)]
    granted = {(h.node, h.args[0]) for h in executed if (h.script, h.reply) == ("lock_acquire", 1)}
    missed = {
        (h.node, h.args[0]) for h in executed if (h.script, h.reply) in [("lock_release", 0), ("lock_renew", [1])]
    }
    rewinds = [h for h in sim.trace.happenings if isinstance(h, Faulted) and h.kind == "node restart older"]
    assert len({h.who for h in rewinds}) == 3
    assert len(granted & missed) > len(rewinds) / 3


# The wire.

WIRE = {"node scripts", "node ignore", "node kick", "tear", "room"}


def beyond_the_wire(sim):
    """Return all faults that have happened but those of the wire."""
    happened = [h for h in sim.trace.happenings if isinstance(h, Faulted)]
    return [h for h in happened if h.kind not in WIRE and "MOVED" not in h.text and "CLUSTERDOWN" not in h.text]


def test_faults_of_the_wire_happen_on_request_and_end():
    sim = wired(1)
    happened = [h for h in sim.trace.happenings if isinstance(h, Faulted)]
    assert {h.kind for h in happened} >= WIRE
    assert {word for h in happened for word in h.text.split()} >= {"MOVED", "CLUSTERDOWN"}
    assert not any(node.ignores or node.trouble for node in sim.nodes)
    assert not any(sim.network.route(machine, node).troubled for machine in sim.machines for node in sim.nodes)
    assert sim.network.room == 1 << 18


def wired(seed):
    with Simulation(seed, nodes=3, lease=2.0) as sim:
        for name in "ab":
            machine = sim.machine(name)
            machine.start(hold_one_after_the_other(machine.client()))
        Nemesis(sim, until=15.0, every=1e9, wire=0.1).start()
        sim.run()
        sim.run(until=max(sim.now, 20.0))
        return sim


def test_pushes_come_late_where_clients_have_several_sets():
    sim = unleash(1, sets=3)
    assert any(h.kind == "late pushes" for h in sim.trace.happenings if isinstance(h, Faulted))
    assert not any(sim.network.route(machine, node).troubled for machine in sim.machines for node in sim.nodes)


def test_other_faults_are_the_same_with_faults_of_the_wire_and_late_pushes():
    def others(seed, **options):
        return [
            (h.at, h.text)
            for h in beyond_the_wire(unleash(seed, **options))
            if h.kind.startswith(("machine", "node hang", "node flush"))
        ]

    assert others(1, wire=0.5) == others(1, sets=3) == others(1)
    assert others(1)
