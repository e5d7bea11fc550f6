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


def test_voters_of_two_clients_share_their_scripts():
    """Otherwise each client would leave its scripts behind, kept by dialect for the life of the process."""
    url = "redis+cluster://a,b,c?nodes=3"
    first, second = (make_nodes(url, redis.Redis) for _ in range(2))
    assert [node.dialect for node in first] == [node.dialect for node in second]
    assert len({node.dialect for node in first}) == 3
