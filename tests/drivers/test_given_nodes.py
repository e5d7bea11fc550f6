"""Nodes as given by callers; `tests/test_client.py` tests what a client refuses."""

import pytest
import redis
import redis.asyncio

from redsync._drivers.given_nodes import make_nodes


@pytest.mark.parametrize("client_class", [redis.Redis, redis.asyncio.Redis])
def test_urls_clients_and_groups_can_be_mixed(client_class):
    given = ["redis://a:1/2", client_class(host="b", port=3), "redis+sentinel://s1:4/m/5"]
    nodes = make_nodes(given, client_class)
    assert [node.address for node in nodes] == ["a:1", "b:3", "m@s1:4"]
    assert [node.index for node in nodes] == [0, 1, 2]
    assert [node.locator is None for node in nodes] == [True, True, False]
