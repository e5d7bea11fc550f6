"""Groups: decisions, when each server learns of them, and real clients that follow."""

import asyncio
import math

import pytest

from redsync.testing.simulator.checks import OF_GROUPS, OF_KIND, Zombies

SIMULATION = {"seed": 5, "nodes": 1, "replicas": 2, "checkers": OF_GROUPS["lock"], "lease": 2.0}


@pytest.fixture
def group(sim):
    return sim.groups[0]


async def work(lock, turns):
    for _ in range(turns):
        async with lock:
            await asyncio.sleep(0.05)


def test_clients_follow_a_failover_and_continue_after_one_lease(sim, group):
    workers = [sim.machine(name) for name in "ab"]
    for machine in workers:
        machine.start(work(machine.client().get_lock("x"), 60))
    sim.run(until=1.0)
    group.fail_over(group.servers[1])
    sim.run(until=2.9)
    held = [state for machine in workers for runner in machine.runners for state in runner.session.holds]
    assert not [state for state in held if state.live]
    sim.run()
    assert sim.nodes == [group.servers[1]]
    assert sim.nodes[0].index == 0
    assert sim.now < 14.0


def test_hold_whose_claim_the_next_master_has_continues(sim, group):
    machine = sim.machine("a")
    lost = []

    async def hold():
        async with machine.client(listeners=[lost.append]).get_lock("x") as held:
            await asyncio.sleep(6.0)
            held.check()

    machine.start(hold())
    sim.run(until=1.0)
    group.fail_over(group.servers[2])
    sim.run()
    assert "HoldLost" not in str(lost)


def test_each_server_learns_a_decision_at_its_own_instant(sim, group):
    group.fail_over(group.servers[1])
    heard = {}
    while len(heard) < 5 and sim.now < 5.0:
        sim.run(until=sim.now + 0.01)
        who = [sentinel for sentinel in group.sentinels if sentinel.knows.epoch == 1]
        who += [server for server in group.servers if server.follows is group.servers[1]]
        for each in who:
            heard.setdefault(each, sim.now)
    assert len(heard) == 5
    assert len(set(heard.values())) >= 4
    assert max(heard.values()) < group.slowness + 0.2
    sim.run(until=sim.now + 0.5)
    assert group.is_settled


def test_candidates_are_those_that_answer_the_sentinels(group):
    _, b, c = group.servers
    assert group.candidates() == [b, c]
    group.isolate([b])
    assert group.candidates() == [c]
    c.crash()
    assert group.candidates() == []


def test_server_may_never_learn_a_decision(sim, group):
    a, b, c = group.servers
    group.fail_over(b)
    group.tell(c, math.inf)
    group.isolate([c])
    group.heal()
    sim.run(until=5.0)
    assert (a.follows, c.follows) == (b, a)
    group.tell(c, sim.now)
    sim.run(until=6.0)
    assert c.follows is b


def test_sentinel_that_learns_nothing_answers_with_old_knowledge(sim, group):
    group.deafen(group.sentinels[0])
    group.fail_over(group.servers[1])
    sim.run(until=3.0)
    assert [sentinel.knows.epoch for sentinel in group.sentinels] == [0, 1, 1]
    group.heal()
    sim.run(until=6.0)
    assert [sentinel.knows.epoch for sentinel in group.sentinels] == [1, 1, 1]


def test_sentinels_that_were_reset_list_the_replicas_after_a_while(sim, group):
    group.reset(1.0)
    sim.run(until=0.9)
    assert [sentinel.knows.replicas for sentinel in group.sentinels] == [0, 0, 0]
    assert not group.is_settled
    sim.run(until=1.5)
    assert [sentinel.knows.replicas for sentinel in group.sentinels] == [2, 2, 2]


def test_changes_may_take_longer(sim, group):
    group.delay(3.0)
    assert max(group.lag() for _ in range(100)) > 1.0
    group.heal()
    assert max(group.lag() for _ in range(100)) < 0.011


def test_partition_of_a_node_is_one_of_all_its_servers(sim, group):
    machine = sim.machine("a")
    sim.partition(machine, 0)
    assert all(sim.network.route(machine, server).troubled for server in group.servers)
    assert not any(sim.network.route(machine, sentinel).troubled for sentinel in group.sentinels)
    sim.heal(machine)
    sim.partition(machine)
    assert all(sim.network.route(machine, sentinel).troubled for sentinel in group.sentinels)


def test_checkers_of_one_server_s_data_are_not_for_groups():
    assert set(OF_GROUPS["lock"]) < set(OF_KIND["lock"])
    assert Zombies not in OF_GROUPS["lock"]
