"""Following a master from server to server, for asyncio; `test_watches` tests the rules."""

import asyncio
import time

import pytest

from redsync import AsyncClient, ConfigurationError, QuorumError
from tests.aio_support import run, until
from tests.support.sentinels import FakeSentinels

LEASE = 0.6


def test_client_follows_to_a_new_server_which_grants_after_the_guard(sentinels, servers):
    async def main():
        async with AsyncClient(sentinels.url, lease=LEASE, node_timeout=1.0) as client:
            assert client.nodes()[0].epoch == 1
            named_at = time.monotonic()
            sentinels.say(servers.ports[1], 2)
            await until(lambda: client.nodes()[0].server == f"127.0.0.1:{servers.ports[1]}")
            assert await client.get_lock("x").acquire(timeout=20)
            assert time.monotonic() - named_at > LEASE

    run(main)


def test_client_needs_a_majority_of_the_sentinels_to_connect(sentinels, servers):
    async def main():
        for index in (0, 2):
            sentinels.close(index)
        async with AsyncClient(sentinels.url, lease=LEASE, node_timeout=0.05) as client:
            with pytest.raises(QuorumError, match="1 of 3 Sentinels name the master, 2 must"):
                await client.get_lock("x").acquire(timeout=0)

    run(main)


def test_name_that_no_sentinel_knows_is_refused_at_once():
    async def main():
        with FakeSentinels() as sentinels, pytest.raises(ConfigurationError, match="know no master named 'mymaster'"):
            async with AsyncClient(sentinels.url, lease=LEASE) as client:
                await client.get_lock("x").acquire(timeout=0)

    run(main)


def test_closed_client_asks_no_sentinel(sentinels, servers):
    async def main():
        async with AsyncClient(sentinels.url, lease=LEASE, node_timeout=1.0) as client:
            await client.get_lock("x").acquire()
            watching = [task for task in asyncio.all_tasks() if task.get_name().startswith("redsync-watch-")]
            assert len(watching) == 3
        assert all(task.done() for task in watching)

    run(main)
