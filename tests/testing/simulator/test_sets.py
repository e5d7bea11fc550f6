"""Clients with several sets of links: their calls borrow sets, and promises hold although sets have no order."""

import asyncio

import pytest

from redsync._core.effects import Broadcast
from redsync._drivers.owing import Owing
from redsync.testing.simulator import Simulation
from redsync.testing.simulator.checks import Zombies
from redsync.testing.simulator.runs import simulate
from redsync.testing.simulator.workload import SIMULATED
from tests.support.hunting import hunt
from tests.support.sweeps import swept


@pytest.mark.parametrize("kind", ["lock", *swept(*sorted(set(SIMULATED) - {"lock"}))])
def test_promises_are_kept_with_several_sets(kind):
    for seed in range(3):
        simulate(seed, kind=kind, sets=3)


def test_release_must_follow_its_claim_over_other_sets(monkeypatch):
    monkeypatch.setattr(Owing, "follow", lambda *_: False)
    hunt(Zombies, range(32, 42), sets=3)


def test_waiter_that_leaves_has_no_place_on_a_node_that_executes_its_ask_late():
    """It has asked over one set and left over another; found by seed."""
    simulate(9, kind="fair", sets=3)


async def wait(client, name):
    async with client.get_lock(name):
        pass


def test_waiter_whose_wake_ups_come_late_acquires_by_its_own_look():
    """Its rounds have other connections, so nodes answer at once."""
    with Simulation(seed=1, sets=3, lease=30.0, restart_guard=0.0) as sim:
        a, b = sim.machine("a"), sim.machine("b")
        a.start(hold(a.client(), "x", 1.0))
        sim.run(until=0.5)
        sim.delay_pushes(b, seconds=1000.0)
        b.start(wait(b.client(), "x"))
        sim.run(until=5.0)
        assert all(task.done() for task in b.tasks)
        sim.heal()


async def hold(client, name, seconds):
    async with client.get_lock(name):
        await asyncio.sleep(seconds)


def test_calls_at_the_same_time_have_a_set_each_and_later_ones_use_them_again():
    with Simulation(seed=1, sets=3, lease=2.0, restart_guard=0.0) as sim:
        machine = sim.machine("a")
        client = machine.client()
        runner = client.runner
        lent = []
        borrow = runner.make_maintenance

        def note(**settings):
            maintenance = borrow(**settings)
            links = runner.sets.links

            def choose(call, effect):
                chosen = links(call, effect)
                if isinstance(effect, Broadcast):
                    lent.append(chosen)
                return chosen

            runner.sets.links = choose
            return maintenance

        runner.make_maintenance = note
        for name in "xyzu":
            machine.start(hold(client, name, 0.1))
        sim.run()
        assert len(runner.sets.all) == 2
        assert set(lent) == {*runner.sets.all, runner.links}, "two are lent, others go out over the maintenance's"
        machine.start(hold(client, "v", 0.1))
        sim.run()
        assert len(runner.sets.all) == 2


def test_cancelled_round_costs_its_set():
    with Simulation(seed=1, sets=2, lease=2.0, restart_guard=0.0) as sim:
        machine = sim.machine("a")
        client = machine.client()
        machine.start(hold(client, "x", 0.1))
        sim.run()
        (first,) = client.runner.sets.all
        for node in sim.nodes:
            node.hang()
        task = machine.start(hold(client, "y", 0.1))
        sim.run(until=sim.now + 0.05)
        task.cancel()
        sim.run(until=sim.now + 0.05)
        assert first.closed
        assert client.runner.sets.all == []
        for node in sim.nodes:
            node.resume()
        sim.run(until=sim.now + 1.0)
        assert all(node.store.peek(b"redsync:y") is None for node in sim.nodes)
