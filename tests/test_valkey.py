"""Valkey by its own names: its schemes of URLs, and clients of valkey-py, a fork of redis-py, as nodes."""

import re

import fakeredis
import pytest
import valkey
import valkey.asyncio

from redsync import Client, ConfigurationError


def test_urls_may_have_the_scheme_of_valkey(nodes, make_client):
    client = make_client([re.sub("^redis", "valkey", url) for url in nodes.urls])
    with client.get_lock("x", timeout=5) as hold:
        assert not hold.lost


@pytest.mark.parametrize(
    ("url", "address"),
    [
        ("valkeys://127.0.0.1:1/3", "127.0.0.1:1"),
        ("valkey+sentinel://127.0.0.1:1,127.0.0.1:2/main", "main@127.0.0.1:1"),
        ("valkeys+cluster://127.0.0.1:1?nodes=1", "127.0.0.1:1/1 of 1"),
    ],
)
def test_urls_of_all_forms_may_have_it(url, address):
    with Client(url) as client:
        assert client.nodes()[0].address == address


@pytest.mark.asyncio_too
@pytest.mark.usefixtures("both_flavours")
def test_clients_of_valkey_py_are_nodes_with_all_their_settings(nodes, raw, make_client, flavour):
    module = valkey if flavour == "threads" else valkey.asyncio
    client = make_client([module.Valkey(port=port, db=1) for port in nodes.ports])
    with client.get_lock("x", timeout=5):
        assert not any(node.exists("redsync:x") for node in raw)  # it is in database 1


@pytest.mark.parametrize(
    ("given", "problem"),
    [
        (valkey.asyncio.Valkey(), "must be a URL string or a redis.Redis"),
        (valkey.Sentinel([("127.0.0.1", 1)]).master_for("main"), "give its URL instead"),
        (fakeredis.FakeValkey(), "give its URL instead"),
    ],
    ids=["of the other flavour", "by Sentinels", "fake"],
)
def test_other_clients_of_valkey_py_are_refused_with_a_reason(given, problem):
    with pytest.raises(ConfigurationError, match=f"node 1 .*{problem}"):
        Client([given])
