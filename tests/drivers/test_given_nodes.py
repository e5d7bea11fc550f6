"""Nodes as callers name them; `tests/test_client.py` has what a client refuses."""

import pytest
import redis
import redis.asyncio

from redsync._drivers.given_nodes import make_nodes, split_urls

GROUP = "redis+sentinel://user:a,b@s1:1,s2:2/mymaster/0?replicas=2"


@pytest.mark.parametrize(
    ("text", "urls"),
    [
        ("", []),
        (" , ", []),
        ("redis://a", ["redis://a"]),
        ("redis://a,rediss://b , unix:///c,", ["redis://a", "rediss://b", "unix:///c"]),
        (f"{GROUP},redis://a", [GROUP, "redis://a"]),
        (f" {GROUP}, {GROUP} ", [GROUP, GROUP]),
        ("redis://a,b", ["redis://a,b"]),
    ],
)
def test_urls_are_separated_by_commas_which_they_may_have_themselves(text, urls):
    assert split_urls(text) == urls


@pytest.mark.parametrize("client_class", [redis.Redis, redis.asyncio.Redis])
def test_urls_clients_and_groups_can_be_mixed(client_class):
    given = ["redis://a:1/2", client_class(host="b", port=3), "redis+sentinel://s1:4/m/5"]
    nodes = make_nodes(given, client_class)
    assert [node.address for node in nodes] == ["a:1", "b:3", "m@s1:4"]
    assert [node.index for node in nodes] == [0, 1, 2]
    assert [node.locator is None for node in nodes] == [True, True, False]
