"""Nodes as given by callers; `tests/test_client.py` tests what a client refuses."""

import pickle

import pytest
import redis
import redis.asyncio

from redsync import Client
from redsync._drivers.nodes import make_nodes

CLASSES = [redis.Redis, redis.asyncio.Redis]


@pytest.mark.parametrize("client_class", CLASSES)
def test_urls_clients_and_groups_can_be_mixed(client_class):
    given = ["redis://a:1/2", client_class(host="b", port=3), "redis+sentinel://s1:4/m/5"]
    nodes = make_nodes(given, client_class)
    assert [node.address for node in nodes] == ["a:1", "b:3", "m@s1:4"]
    assert [node.index for node in nodes] == [0, 1, 2]
    assert [node.locator is None for node in nodes] == [True, True, False]


@pytest.mark.parametrize(
    "given", [redis.Redis(port=2), redis.Sentinel([("a", 1)]).master_for("m")], ids=["server", "group"]
)
def test_client_with_a_node_that_was_given_without_a_url_says_so_when_it_is_pickled(given):
    with Client(["redis://127.0.0.1:1", given], node_timeout=0.05) as client, pytest.raises(TypeError) as caught:
        pickle.dumps(client)
    assert "node 2" in str(caught.value)
    assert "was given as a redis-py client: give its URL instead" in str(caught.value)
