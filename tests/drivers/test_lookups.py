"""Lookups of names, with a resolver whose answers a test holds back."""

import asyncio
import socket
import threading

import pytest
import redis.asyncio
from redis.exceptions import RedisError
from redsync._drivers.aio_links import open_link
from redsync._drivers.lookups import Lookups

from redsync import AsyncClient
from redsync._drivers.given_nodes import make_nodes
from redsync.testing import LocalNodes
from tests.aio_support import run, until

FAILED = OSError, RedisError
NAME = "node.invalid"


class Resolver:
    """Resolves `NAME` to this machine, or to nothing, once `answers` is set.

    Attributes:
        waiting: The number of threads that wait for an answer.
    """

    def __init__(self, ask):
        self._ask = ask
        self.answers = threading.Event()
        self.asked = self.waiting = 0
        self.knows = True

    def __call__(self, host, *args, **options):
        if host == NAME:
            self.asked += 1
            self.waiting += 1
            self.answers.wait(60)
            self.waiting -= 1
            host = "127.0.0.1" if self.knows else "unknown.invalid"
        if host == "unknown.invalid":
            raise socket.gaierror(socket.EAI_NONAME, "Name or service not known")
        return self._ask(host, *args, **options)


@pytest.fixture
def resolver(monkeypatch):
    resolver = Resolver(socket.getaddrinfo)
    monkeypatch.setattr(socket, "getaddrinfo", resolver)
    yield resolver
    resolver.answers.set()  # otherwise the loop's threads would never end


@pytest.fixture(scope="module")
def servers():
    with LocalNodes(3) as servers:
        yield servers


def node_at(host, port):
    return make_nodes([f"redis://{host}:{port}"], redis.asyncio.Redis)[0]


def test_connects_that_give_up_leave_two_lookups_of_a_name_at_most(resolver, servers):
    async def main():
        lookups, node = Lookups(), node_at(NAME, servers.ports[0])
        for _ in range(5):
            with pytest.raises(FAILED):
                await open_link(node, 0.05, lookups)
        assert resolver.waiting <= 2
        assert len(lookups.under_way) == 1
        resolver.answers.set()
        await until(lambda: not lookups.under_way)
        asked = resolver.asked
        for _ in range(2):
            (await open_link(node, 5.0, lookups)).shut()
        assert resolver.asked == asked + 3, "no further lookup is needed once a connect was in time"

    run(main)


def test_connect_fails_with_the_error_of_a_late_lookup_and_the_next_one_asks_again(resolver, servers):
    async def main():
        lookups, node = Lookups(), node_at(NAME, servers.ports[0])
        for _ in range(2):
            with pytest.raises(FAILED):
                await open_link(node, 0.05, lookups)
        resolver.knows = False
        resolver.answers.set()
        with pytest.raises(OSError, match="not known"):
            await open_link(node, 5.0, lookups)
        resolver.knows = True
        (await open_link(node, 5.0, lookups)).shut()

    run(main)


def test_address_is_never_looked_up(monkeypatch):
    async def main():
        with socket.create_server(("127.0.0.1", 0)) as silent:
            lookups, node = Lookups(), node_at("127.0.0.1", silent.getsockname()[1])
            monkeypatch.setattr(asyncio.get_running_loop(), "getaddrinfo", None)
            for _ in range(3):
                with pytest.raises(FAILED):
                    await open_link(node, 0.05, lookups)

    run(main)


@pytest.mark.parametrize("url", [f"redis://{NAME}:1", f"redis+sentinel://{NAME}/m"])
def test_closed_client_leaves_no_lookup(url, resolver, servers):
    async def main():
        async with AsyncClient([*servers.urls[:2], url], restart_guard=0) as client:
            lookups = client.runner._maintenance._lookups
            await until(lambda: lookups.under_way)
        assert asyncio.all_tasks() == {asyncio.current_task()}
        resolver.answers.set()

    run(main)
