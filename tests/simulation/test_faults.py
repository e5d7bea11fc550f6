"""Random faults: all kinds happen, and in the end there are none."""

import asyncio
import contextlib

from redsync.exceptions import LeaseLostError
from redsync.testing.simulator.faults import Nemesis
from redsync.testing.simulator.trace_events import Executed, Faulted
from tests.simulation.checks.base import who
from tests.simulation.trial import Trial


def unleash(seed, **options):
    sim = Trial(seed, nodes=5, lease=2.0)
    for name in "abc":
        sim.machine(name)
    with sim:
        Nemesis(sim, until=60.0, every=0.2, **options).start()
        sim.run(until=60.0)
        return sim


def test_all_kinds_of_faults_happen():
    kinds = {h.kind for h in unleash(1).trace.events if isinstance(h, Faulted)}
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


# Older data.


async def hold_one_after_the_other(client):
    for i in range(20):
        with contextlib.suppress(LeaseLostError):
            async with client.get_lock(f"x-{i}"):
                await asyncio.sleep(0.5)


def test_nodes_that_rewind_have_forgotten_holds():
    with Trial(1, lease=2.0, restart_guard=0.0) as sim:
        machine = sim.machine("a")
        machine.start(hold_one_after_the_other(machine.client()))
        Nemesis(sim, until=8.0, every=1e9, rewinding=0.5).start()
        sim.run()
    executed = [h for h in sim.trace.events if isinstance(h, Executed)]
    granted = {(h.node, h.args[0]) for h in executed if (h.script, h.reply) == ("lock_acquire", 1)}
    missed = {
        (h.node, h.args[0]) for h in executed if (h.script, h.reply) in [("lock_release", 0), ("lock_renew", [1])]
    }
    rewinds = [h for h in sim.trace.events if isinstance(h, Faulted) and h.kind == "node restart older"]
    assert len({who(h) for h in rewinds}) == 3
    assert len(granted & missed) > len(rewinds) / 3


# The wire.

WIRE = {"node scripts", "node ignore", "node kick", "tear", "room"}


def test_faults_of_the_wire_happen_on_request_and_end():
    sim = wired(1)
    happened = [h for h in sim.trace.events if isinstance(h, Faulted)]
    assert {h.kind for h in happened} >= WIRE
    assert {word for h in happened for word in h.text.split()} >= {"MOVED", "CLUSTERDOWN"}
    assert not any(node.ignores or node.trouble for node in sim.nodes)
    assert not any(sim.network.route(machine, node).troubled for machine in sim.machines for node in sim.nodes)
    assert sim.network.room == 1 << 18


def wired(seed):
    with Trial(seed, nodes=3, lease=2.0) as sim:
        for name in "ab":
            machine = sim.machine(name)
            machine.start(hold_one_after_the_other(machine.client()))
        Nemesis(sim, until=15.0, every=1e9, wire=0.1).start()
        sim.run()
        sim.run(until=max(sim.now, 20.0))
        return sim
