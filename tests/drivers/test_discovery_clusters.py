"""Voters of a cluster: the conclusions from its servers' answers, and URLs.

`tests/core/test_clusters.py` reads the answers in all their forms; what a majority says is as in `test_discovery.py`.
"""

import hiredis
import pytest
import redis
import redis.asyncio

from redsync._drivers.discovery import ClusterLocator, Location, Witness
from redsync._drivers.nodes import make_nodes

SEEDS = [Witness(f"127.0.0.1:{port}", None) for port in (7000, 7001, 7002)]
IDS = [letter * 40 for letter in "abc"]
SLOTS = ["0-5460", "5461-8191 8193-10921", "8192 10922-16383"]


def told(slots=SLOTS, address="127.0.0.1:{}@17000"):
    """Return the answer of a cluster of three masters, each with a replica."""
    lines = []
    for index, owned in enumerate(slots):
        own = "master" if index else "myself,master"
        lines.append(f"{IDS[index]} {address.format(7000 + index)} {own} - 0 0 {index + 1} connected {owned}")
        flags = "slave" if index else "slave,fail"
        lines.append(f"{'r' * 39}{index} 127.0.0.1:{7100 + index}@1 {flags} {IDS[index]} 0 0 9 connected")
    return ["\n".join([*lines, ""]).encode()]


def locate(*answers, slot=100, nodes=3, replicas=0):
    locator = ClusterLocator(slot, nodes, SEEDS[: len(answers)], replicas)
    for index, answer in enumerate(answers):
        locator.note(index, answer, 0.0)
    return locator


def test_server_that_does_not_know_its_own_address_is_where_it_was_asked():
    assert locate(told(address=":{}@17000")).present == Location("127.0.0.1", 7000, 1)
    locator = ClusterLocator(100, 3, [Witness("[::1]:7000", None)], 0)
    locator.note(0, told(address=":{}@17000"), 0.0)
    assert locator.present.host == "::1"


def test_slot_without_an_owner_has_no_location():
    assert "no node owns slot 100" in locate(told(slots=["0-99", "5461-10921", "10922-16383"])).unknown_reason


def test_cluster_with_fewer_masters_than_voters_has_no_location():
    """It may be forming."""
    slots = ["0-8191", "8192-16383", ""]
    assert "knows too few masters for nodes=3: 2 have slots" in locate(told(slots=slots)).unknown_reason
    assert locate(told(slots=slots), nodes=2).present


def test_error_of_a_cluster_node_is_the_reason():
    no = hiredis.ReplyError("ERR This instance has cluster support disabled")
    assert "ERR This instance has cluster support disabled" in locate([no]).unknown_reason


@pytest.mark.parametrize("reply", [None, 5, b"OK", b"a b", [b"x"]], ids=repr)
def test_server_that_is_not_in_a_cluster_names_no_master(reply):
    assert locate([reply]).unknown_reason.endswith("it is not one of the cluster nodes")


# URLs.

URL = "redis+cluster://user:secret@127.0.0.1:1,127.0.0.1:2,127.0.0.1:3?nodes=3&replicas=2"


@pytest.mark.parametrize("client_class", [redis.Redis, redis.asyncio.Redis])
def test_url_stands_for_as_many_nodes_as_it_says(client_class):
    first, *nodes = make_nodes(["redis://a", URL], client_class)
    assert [node.address for node in nodes] == [f"127.0.0.1:1/{number} of 3" for number in (1, 2, 3)]
    assert [node.index for node in nodes] == [1, 2, 3]
    assert [node.locator.slot for node in nodes] == [2730, 8192, 13653]
    assert {node.needed for node in nodes} == {1}
    assert len({node.home for node in nodes}) == 3
    assert not first.has_slot
    assert all(node.has_slot for node in nodes)
    nodes[0].location = Location("h", 5, 1)
    connection = nodes[0].make_connection(1.0)
    assert (connection.host, connection.port, connection.username, connection.password) == ("h", 5, "user", "secret")
