"""Hundreds of readers that wait, and thousands that read."""

import asyncio
import statistics

import pytest
import redis

from redsync import AsyncClient
from redsync._core.keys import LockKeys
from redsync._core.scripts import Script
from redsync.testing import LocalNodes
from tests.aio_support import until

KEYS = LockKeys.of(b"redsync:", b"x")


def test_hundreds_of_waiting_readers_are_all_admitted_together(nodes, raw, eventually):
    count = 300

    async def crowd():
        async with AsyncClient(nodes.urls, restart_guard=0.0) as client:
            lock = client.get_read_write_lock("x")
            inside, all_inside = 0, asyncio.Event()

            async def read():
                nonlocal inside
                async with lock.read_lock:
                    inside += 1
                    if inside == count:
                        all_inside.set()
                    await all_inside.wait()

            async with asyncio.timeout(60):
                async with lock.write_lock:
                    tasks = [asyncio.create_task(read()) for _ in range(count)]
                    # Places expire and are renewed all the time.
                    await until(lambda: raw[0].zcard(KEYS.queue) >= 0.9 * count, 30)
                await asyncio.gather(*tasks)

    asyncio.run(crowd())
    eventually(lambda: raw.keys() == [set()] * 5)


@pytest.fixture
def server():
    with LocalNodes(1) as nodes:
        connection = redis.Redis(port=nodes.ports[0])
        for script in Script.shipped():
            connection.script_load(script.source)
        yield connection
        connection.close()


@pytest.mark.sweep
def test_cost_per_operation_is_the_same_with_thousands_of_readers(server):
    """The node itself measures the time; both measurements alternate, so that a busy machine affects both alike."""

    def run(verb, owner, *args, keys=KEYS.all):
        return server.evalsha(Script.load(verb).sha.decode(), len(keys), *keys, owner, *args)

    def fill(count, key):
        keys = LockKeys.of(b"", key).all
        for number in range(count):
            run("read_lock_acquire", f"c-{number}:1", 1, 600_000, 0, keys=keys)
        return keys

    def cost(keys):
        server.config_resetstat()
        for number in range(50):
            assert run("read_lock_acquire", f"me-{number}:1", 1, 30_000, 0, keys=keys) == 1
            assert run("write_lock_acquire", "writer:1", 1, 30_000, 0, keys=keys)[1] == b"readers"
            assert run("read_lock_renew", f"me-{number}:1", 1, 30_000, keys=keys[:1]) == [2]
            assert run("read_lock_release", f"me-{number}:1", 0, "", keys=keys) == 1
        return server.info("commandstats")["cmdstat_evalsha"]["usec_per_call"]

    few, many = fill(10, b"few"), fill(5_000, b"many")
    rounds = [(cost(few), cost(many)) for _ in range(20)]
    with_few, with_many = (statistics.median(costs) for costs in zip(*rounds, strict=True))
    print(f"{with_few:.1f} us with 10 readers, {with_many:.1f} us with 5000")
    assert with_many < 2 * with_few
