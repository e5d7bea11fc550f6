"""Servers of a group: replicas lag, start over, and follow; a replaced server ends its service."""

import pytest

from redsync.testing.simulator.network import CLOSED
from tests.testing.simulator.conftest import Caller

SIMULATION = {"seed": 3, "nodes": 1, "replicas": 2, "checkers": (), "begin": 0.5}


@pytest.fixture
def group(sim):
    sim.groups[0].slowness = 0.0
    return sim.groups[0]


@pytest.fixture
def servers(group):
    return group.servers


def kept(servers, key=b"x"):
    return [server.store.peek(key) is not None for server in servers]


def test_replica_applies_changes_in_order_and_later(sim, call, servers):
    call.connection.there.send(b"SET x 1\r\n".replace(b"SET x 1", b"*3\r\n$3\r\nSET\r\n$1\r\nx\r\n$1\r\n1"))
    seen = []
    while not all(kept(servers)):
        sim.run(until=sim.now + 0.0005)
        seen.append(kept(servers))
    assert [True, False, False] in seen
    for number in range(20):
        call("SET", "x", number)
    sim.run(until=sim.now + 1.0)
    assert {server.store.peek(b"x")[0] for server in servers} == {b"19"}
    assert {server.offset for server in servers} == {servers[0].offset}


def test_servers_do_not_change_shared_states(call, servers):
    call("HSET", "x", "a", 1)
    servers[1].store.execute(b"hset", b"x", b"b", b"2")
    assert servers[0].store.peek(b"x")[0] == {b"a": b"1"}
    call("HSET", "x", "c", 3)
    assert servers[1].store.peek(b"x")[0] == {b"a": b"1", b"c": b"3"}, "its own change is gone, as a replica takes over"


def test_replica_that_follows_another_server_takes_over_its_whole_state(sim, call, group, servers):
    call("SET", "x", 1)
    group.isolate([servers[0]])
    call("SET", "lost", 1)
    group.fail_over(servers[1])
    servers[1].store.execute(b"set", b"y", b"1")
    sim.run(until=sim.now + 1.0)
    assert kept(servers, b"lost") == [True, False, False]
    assert kept(servers, b"y") == [False, True, True]
    group.heal()
    sim.run(until=sim.now + 1.0)
    assert kept(servers, b"lost") == [False, False, False]
    assert kept(servers, b"y") == [True, True, True]
    assert group.is_settled


def test_server_that_learns_of_its_replacement_ends_all_connections(sim, call, group, servers):
    group.fail_over(servers[2])
    sim.run(until=sim.now + 1.0)
    assert servers[0].follows is servers[2]
    assert call.messages[-1] is CLOSED


def test_replica_refuses_scripts_and_reports_its_role(sim, servers):
    machine = sim.machine("b")
    sim.nodes[0] = servers[1]
    call = Caller(sim, machine)
    assert b"role:slave\r\nmaster_host:node-1a\r\n" in call("INFO", "replication")
    assert call("EVAL", "return 1", 0).startswith(b"-READONLY ")
    assert call("WAIT", 1, 100).startswith(b"-ERR WAIT cannot be used")
    assert b"role:master\r\n" in servers[0].describe()


def test_servers_that_do_not_reach_each_other_start_over_later(sim, call, group, servers):
    group.isolate([servers[1]])
    call("SET", "x", 1)
    assert kept(servers) == [True, False, True]
    assert not group.is_settled
    group.heal()
    sim.run(until=sim.now + 1.0)
    assert kept(servers) == [True, True, True]


def test_hung_replica_applies_everything_afterwards(sim, call, servers):
    servers[1].hang()
    call("SET", "x", 1)
    assert kept(servers) == [True, False, True]
    servers[1].resume()
    assert kept(servers) == [True, True, True]


def test_server_that_crashes_comes_back_to_its_place(sim, call, group, servers):
    call("SET", "x", 1)
    servers[1].crash()
    servers[0].crash()
    servers[0].restart(forget=True)
    servers[0].restart()
    sim.run(until=sim.now + 1.0)
    assert kept(servers) == [False, True, False], "an empty master empties its replicas"
    servers[1].restart()
    sim.run(until=sim.now + 1.0)
    assert kept(servers) == [False, False, False]
    assert group.is_settled


def test_flush_reaches_the_replicas(sim, call, servers):
    call("SET", "x", 1)
    servers[0].flush()
    sim.run(until=sim.now + 1.0)
    assert kept(servers) == [False, False, False]


def test_master_that_never_learned_of_a_failover_continues_as_the_same_process(sim, call, group, servers):
    process = servers[0].run_id
    group.isolate([servers[0]])
    group.fail_over(servers[1])
    sim.run(until=sim.now + 1.0)
    assert call("SET", "x", 1) == b"+OK\r\n"
    group.heal()
    group.fail_over(servers[0])
    assert call("SET", "y", 1) == b"+OK\r\n"
    sim.run(until=sim.now + 1.0)
    assert servers[0].run_id == process
    assert kept(servers) == [True, True, True]
    assert "GroupServer node-1a" in repr(servers[0])
