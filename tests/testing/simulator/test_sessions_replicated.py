"""WAIT counts the replicas that have its own connection's last change, and blocks only that connection."""

import pytest

from redsync._drivers.channels import pack

SIMULATION = {"seed": 3, "nodes": 1, "replicas": 2, "checkers": (), "begin": 0.5}


@pytest.fixture
def group(sim):
    return sim.groups[0]


def test_wait_counts_the_replicas_that_have_the_latest_change(call, group):
    assert call("SET", "x", 1) == b"+OK\r\n"
    assert call("WAIT", 1, 500) == b":2\r\n"
    group.isolate([group.servers[1]])
    call("SET", "x", 2)
    assert call("WAIT", 2, 500) == b":1\r\n"


def test_wait_for_changes_of_other_connections_or_for_nothing_returns_at_once(call, other, group):
    group.isolate(group.servers[1:])
    other("SET", "x", 1)
    assert call("GET", "x") == b"$1\r\n1\r\n"
    assert call("SET", "x", 1) == b"+OK\r\n", "which changes nothing"
    assert call("WAIT", 2, 500) == b":2\r\n"
    assert call("PUBLISH", "unused", "") == b":0\r\n"
    assert call("WAIT", 2, 500) == b":0\r\n", "a message is a change"


def test_message_of_a_script_is_a_change_and_comes_before_it_is_acknowledged(sim, call, other, group):
    other("SUBSCRIBE", "news")
    group.isolate(group.servers[1:])
    before = group.servers[0].offset
    assert call("EVAL", "return redis.call('publish', 'news', 'x')", 0) == b":1\r\n"
    assert group.servers[0].offset == before + 1
    assert b"news" in b"".join(other.messages[2:])


def test_wait_blocks_its_connection_until_the_timeout_and_no_other(sim, call, other, group):
    group.isolate(group.servers[1:])
    call("SET", "x", 1)
    began = sim.now
    call.connection.there.send(pack("WAIT", "1", "3000") + pack("PING"))
    call.connection.there.send(pack("PING"))
    assert other("PING") == b"+PONG\r\n"
    count = len(call.messages)
    sim.run(until=began + 2.5)
    assert len(call.messages) == count
    sim.run(until=began + 4.0)
    assert b"".join(call.messages[count:]) == b":0\r\n+PONG\r\n+PONG\r\n"


def test_wait_ends_as_soon_as_enough_replicas_have_acknowledged(sim, call, group):
    group.isolate(group.servers[1:])
    call("SET", "x", 1)
    call.connection.there.send(pack("WAIT", "2", "0"))
    sim.run(until=sim.now + 1.0)
    count = len(call.messages)
    group.heal()
    sim.run(until=sim.now + 1.0)
    assert b"".join(call.messages[count:]) == b":2\r\n"


def test_hung_server_ends_no_wait(sim, call, group):
    group.isolate(group.servers[1:])
    call("SET", "x", 1)
    call.connection.there.send(pack("WAIT", "1", "200"))
    sim.run(until=sim.now + 0.1)
    count = len(call.messages)
    group.master.hang()
    sim.run(until=sim.now + 1.0)
    assert len(call.messages) == count
    group.master.resume()
    sim.run(until=sim.now + 1.0)
    assert b"".join(call.messages[count:]) == b":0\r\n"


def test_wait_ends_with_its_connection(sim, call, group):
    group.isolate(group.servers[1:])
    call("SET", "x", 1)
    call.connection.there.send(pack("WAIT", "1", "200"))
    sim.run(until=sim.now + 0.1)
    group.master.kick()
    sim.run(until=sim.now + 1.0)
    group.heal()
    sim.run(until=sim.now + 1.0)
    assert group.is_settled


def test_server_in_trouble_answers_both_by_its_error(call, group):
    group.master.refuse("BUSY")
    assert call("PUBLISH", "a", "b").startswith(b"-BUSY")
    assert call("WAIT", 1, 1).startswith(b"-BUSY")


def test_stale_acknowledgements_of_replicas_that_left_unseen_stay(sim, call, other, group):
    """A master that was cut off believes in its replicas; they lack its later changes."""
    call("SET", "x", 1)
    a, b, _ = group.servers
    group.isolate([a])
    group.fail_over(b)
    sim.run(until=sim.now + 3.0)
    assert other("WAIT", 2, 100) == b":2\r\n"
    other("PUBLISH", "unused", "")
    assert other("WAIT", 1, 100) == b":0\r\n"
