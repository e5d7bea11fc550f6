"""Virtual nodes: how a crash, a hang, a restart and a wrong clock look to a client."""

import asyncio

import pytest

from redsync._core.keys import wake_channel
from redsync._core.scripts import Script
from redsync.testing.simulator.happenings import Decided, Disconnected, Executed, Refused, Told
from redsync.testing.simulator.letters import connection_of
from redsync.testing.simulator.scripting import run_script

SIMULATION = {"seed": 9, "lease": 2.0, "node_timeout": 0.1}


def start(sim, program, name="a"):
    machine = sim.machine(name)
    client = machine.client()
    return machine.start(program(client))


async def take(client):
    async with client.get_lock("x"):
        await asyncio.sleep(0.5)
    return client


def executions(sim, node, script):
    return [h for h in sim.trace.happenings if isinstance(h, Executed) and (h.node, h.script) == (node, script)]


@pytest.mark.parametrize("dark", [False, True])
def test_minority_that_is_down_costs_nothing(sim, dark):
    sim.nodes[1].crash(dark=dark)
    task = start(sim, take)
    sim.run()
    assert {status.state for status in task.result().nodes()} == {"up", "down"}
    assert executions(sim, 1, "lock_acquire") == []


def test_hung_node_executes_its_commands_late(sim):
    task = start(sim, take)
    sim.run(until=0.1)
    sim.nodes[0].hang()
    sim.run()
    assert executions(sim, 0, "lock_release") == []
    sim.nodes[0].resume()
    sim.run(until=sim.now + 1.0)
    (release,) = executions(sim, 0, "lock_release")
    assert release.reply == 1
    assert task.result().nodes()[0].state == "up"


def test_restarted_node_is_kept_out_of_new_grants_for_the_guard(sim):
    async def program(client):
        await take(client)
        sim.nodes[0].crash()
        await asyncio.sleep(0.2)
        sim.nodes[0].restart(forget=True)
        await asyncio.sleep(0.5)
        before = client.nodes()[0].state
        await asyncio.sleep(4.0)
        return before, client.nodes()[0].state

    task = start(sim, program)
    sim.run()
    assert task.result() == ("quarantined", "up")
    told = [h.event.state for h in sim.trace.happenings if isinstance(h, Told)]
    assert told[-3:] == ["down", "quarantined", "up"]


def test_restart_with_data_keeps_claims_and_their_expiry(sim):
    async def program(client):
        await client.get_lock("x").acquire(lease=2.0)
        await asyncio.sleep(0.1)
        for node in sim.nodes:
            node.crash()
        await asyncio.sleep(1.0)
        for node in sim.nodes:
            node.restart()
        left = [node.store.execute(b"PTTL", b"redsync:x") for node in sim.nodes]
        await asyncio.sleep(1.0)
        return left, [node.store.execute(b"EXISTS", b"redsync:x") for node in sim.nodes]

    task = start(sim, program)
    sim.run()
    left, exist = task.result()
    assert all(800 < ms < 1000 for ms in left)
    assert exist == [0, 0, 0]


def test_dark_node_leaves_connections_that_end_when_it_is_back(sim):
    start(sim, take)
    sim.run(until=0.1)
    sim.nodes[2].crash(dark=True)
    sim.run(until=0.4)
    assert not any(isinstance(h, Disconnected) for h in sim.trace.happenings)
    sim.nodes[2].restart()
    sim.run(until=0.5)
    assert [h.node for h in sim.trace.happenings if isinstance(h, Disconnected)] == [2]


def test_clock_that_jumps_ahead_waives_exclusion(sim):
    sim.nodes[0].jump(-1.0)
    assert not sim.waived
    sim.nodes[0].jump(1.0)
    assert "exclusion" in sim.waived


def test_clocks_further_apart_than_drift_factor_waive_exclusion(sim):
    sim.nodes[0].drift(1.005)
    assert not sim.waived
    sim.nodes[1].drift(0.994)
    assert "exclusion" in sim.waived


def write(sim, node, *words):
    """Execute a script that writes, tries to write, or only reads, on a node in trouble; return the reply."""
    script = Script("words", " ".join(words).encode(), b"".join(word.encode() for word in words))
    return run_script(script, sim.nodes[node].store, (b"key",), ())


def test_node_that_can_not_write_refuses_scripts_that_do(sim):
    sim.nodes[0].refuse("MISCONF")
    reply = write(sim, 0, "redis.call('set', KEYS[1], 'x') return 1")
    assert str(reply).startswith("MISCONF")
    assert write(sim, 0, "return redis.call('exists', KEYS[1])") == 0
    assert write(sim, 0, "return redis.pcall('del', KEYS[1]).err and 1 or 2") == 1
    sim.nodes[0].recover()
    assert write(sim, 0, "redis.call('set', KEYS[1], 'x') return 1") == 1


def test_node_without_memory_refuses_commands_that_need_some_unless_the_script_has_written(sim):
    sim.nodes[0].refuse("OOM")
    assert str(write(sim, 0, "redis.call('set', KEYS[1], 'y') return 1")).startswith("OOM")
    assert write(sim, 0, "redis.call('del', KEYS[1]) return 2") == 2
    assert write(sim, 0, "redis.call('del', KEYS[1]) redis.call('set', KEYS[1], 'z') return 3") == 3


@pytest.mark.parametrize("code", ["BUSY", "LOADING"])
def test_node_that_is_busy_refuses_everything(sim, code):
    task = start(sim, take)
    sim.run(until=0.2)
    sim.nodes[1].refuse(code)
    sim.run()
    sim.run(until=sim.now + 0.2)
    assert executions(sim, 1, "lock_release") == []
    refused = [h for h in sim.trace.happenings if isinstance(h, Refused) and h.script == "lock_release"]
    assert {str(each.reply)[: len(code)] for each in refused} == {code}
    assert [status.state for status in task.result().nodes()] == ["up"] * 3, "it answers"
    late = start(sim, take, "b")
    sim.run(until=sim.now + 0.5)
    sim.nodes[1].recover()
    sim.run(until=sim.now + 2.0)
    assert [status.state for status in late.result().nodes()] == ["up"] * 3
    assert 1 in [execution.reply for execution in executions(sim, 1, "lock_release") if execution.client == "a"]
    assert sim.nodes[1].store.peek(b"redsync:x") is None


@pytest.mark.parametrize("ends", [True, False])
def test_node_ends_abandoned_connections_if_the_client_may(sim, ends):
    sim.nodes[0].ends_former = ends
    task = start(sim, take)
    sim.run()
    runner = task.result().runner
    links = runner.links
    former = connection_of(links.links[0])
    sim.partition(sim.machines[0], 0)
    links.discard(links.links[0], "a test")
    sim.heal()
    sim.run(until=sim.now + 2.0)
    assert links.links[0] is not None
    assert former.open is not ends
    assert sim.nodes[0].listeners(wake_channel(runner.client_id)) == (1 if ends else 2)


async def hold_while(client, fault):
    """Hold a lock, cause a fault in between, and hold another."""
    async with client.get_lock("x") as hold:
        fault()
        await asyncio.sleep(1.0)
        hold.check()
    async with client.get_lock("y"):
        pass


def test_forgotten_scripts_are_loaded_again_and_cost_no_round(sim):
    forgotten_at = []

    def forget():
        forgotten_at.append(sim.now)
        for node in sim.nodes:
            node.forget_scripts()

    start(sim, lambda client: hold_while(client, forget))
    sim.run()
    sim.run(until=sim.now + 1.0)
    rounds = [h for h in sim.trace.happenings if isinstance(h, Decided) and h.at > forgotten_at[0]]
    assert {h.verdict for h in rounds} == {"won"}
    for index, node in enumerate(sim.nodes):
        # Before the leases end; a node whose connection was replaced may have got the second release alone.
        assert node.store.peek(b"redsync:x") is node.store.peek(b"redsync:y") is None
        assert [h.keys[0] for h in executions(sim, index, "lock_release")] == [b"redsync:x", b"redsync:y"]
        assert executions(sim, index, "lock_renew")


@pytest.mark.parametrize("code", ["MOVED", "CLUSTERDOWN"])
def test_redirecting_node_costs_its_vote_and_gets_the_release_later(sim, code):
    start(sim, lambda client: hold_while(client, lambda: sim.nodes[0].refuse(code)))
    sim.run()
    assert executions(sim, 0, "lock_release") == []
    sim.nodes[0].recover()
    sim.run(until=sim.now + 2.0)
    assert sim.nodes[0].store.peek(b"redsync:x") is sim.nodes[0].store.peek(b"redsync:y") is None
    assert b"redsync:x" in [h.keys[0] for h in executions(sim, 0, "lock_release") if h.reply == 1]


def test_connections_that_nodes_end_are_replaced(sim):
    def kick():
        for node in sim.nodes:
            node.kick()

    task = start(sim, lambda client: hold_while(client, kick))
    sim.run()
    assert task.exception() is None
    assert {h.node for h in sim.trace.happenings if isinstance(h, Disconnected)} == {0, 1, 2}


def test_unanswered_connection_is_abandoned(sim):
    def ignore():
        sim.nodes[0].ignore()
        sim.nodes[0].kick()

    machine = sim.machine("a")
    client = machine.client()
    machine.start(hold_while(client, ignore))
    sim.run()
    sim.run(until=sim.now + 5.0)
    assert client.nodes()[0].state == "down"
    sim.nodes[0].recover()
    sim.run(until=sim.now + 5.0)
    assert client.nodes()[0].state == "up"
    assert len([connection for connection in sim.nodes[0]._sessions if connection.open]) == 1
