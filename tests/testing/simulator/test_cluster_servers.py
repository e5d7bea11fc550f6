"""Servers of a cluster: they redirect, drop lost slots, and appear without tags."""

import pytest

SIMULATION = {"seed": 3, "nodes": 2, "cluster": True, "checkers": (), "begin": 0.5}


@pytest.fixture
def cluster(sim):
    return sim.world


@pytest.fixture
def key(cluster):
    """The name of a key of the first node on its servers."""
    return lambda name: (cluster.tags[0] + name.encode()).decode()


def test_server_answers_only_for_its_slots(call, cluster, key):
    assert call("SET", key("x"), 1) == b"+OK\r\n"
    other = cluster.tags[1].decode() + "x"
    assert call("SET", other, 1) == b"-MOVED 12288 node-2a:6379\r\n"
    assert call("SET", "x", 1).startswith(b"-CLUSTERDOWN")
    assert call("PING") == b"+PONG\r\n"
    assert call("EVAL", "return 7", 0) == b":7\r\n"


def test_nodes_appear_without_tags(sim, call, key):
    call("HSET", key("x"), "a", 1)
    node = sim.nodes[0]
    assert node.store.peek(b"x")[0] == node.store.look(b"x")[0].value == {b"a": b"1"}
    assert sim.nodes[1].store.peek(b"x") is None
    assert node.store.now_ms == sim.servers[0].store.now_ms
    assert repr(node) == "<LentNode 1 on node-1a>"


def test_leaving_slot_redirects_with_ask(sim, call, cluster, key):
    call("SET", key("x"), 1)
    source, target = cluster.groups[0].master, cluster.groups[2].master
    source.leaving[0] = target
    assert call("GET", key("x")) == b"$1\r\n1\r\n"
    assert call("GET", key("y")) == b"-ASK 4096 node-3a:6379\r\n"
    assert call("EVAL", "return 1", 2, key("x"), key("y")).startswith(b"-TRYAGAIN")
    assert call("EVAL", "return 1", 1, key("x")) == b":1\r\n"
    source.follow(cluster.groups[0].servers[1])
    assert source.leaving == {}


def test_messages_go_over_channels_of_a_slot_and_end_with_it(sim, call, cluster, key):
    call("HELLO", "3")
    assert call("SSUBSCRIBE", key("wake")).startswith(b">3\r\n$10\r\nssubscribe")
    assert sim.nodes[0].listeners(b"wake") == 1
    said = call("EVAL", "return redis.call('spublish', KEYS[1], 'now')", 1, key("wake"))
    assert b"smessage" in said
    cluster.seize(0, cluster.groups[2])
    assert sim.nodes[0].listeners(b"wake") == 0
    assert b"sunsubscribe" in b"".join(call.ask())
    assert call("SSUBSCRIBE", key("wake")) == b"-MOVED 4096 node-3a:6379\r\n"


def test_slot_that_moves_without_its_keys_loses_them(sim, call, cluster, key):
    call("SET", key("x"), 1)
    cluster.seize(0, cluster.groups[2])
    assert call("GET", key("x")) == b"-MOVED 4096 node-3a:6379\r\n"
    assert not any(server.keys_of(cluster.tags[0]) for server in cluster.groups[2].servers)
    assert not any(server.keys_of(cluster.tags[0]) for server in cluster.groups[0].servers)
    assert "1 keys of slot 4096 are lost" in sim.trace.text()


def test_restarted_process_forgets_which_slots_are_leaving(cluster):
    server = cluster.groups[0].master
    server.leaving[0] = cluster.groups[2].master
    server.restart()
    assert server.leaving, "it is up"
    server.crash()
    server.restart()
    assert server.leaving == {}


def test_server_reports_cluster_mode(call):
    assert b"redis_mode:cluster" in call("INFO")
    assert call("CLUSTER", "NODES").count(b"master") == 3
