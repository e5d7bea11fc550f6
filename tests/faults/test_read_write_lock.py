"""Readers that die, nodes that hang, and thousands of readers."""

import asyncio
import contextlib
import signal
import statistics
import subprocess
import sys
import textwrap
import time

import pytest
import redis

from redsync import AsyncClient, QuorumError
from redsync._core.keys import LockKeys
from redsync._core.scripts import Script
from redsync.testing import LocalNodes
from tests.aio_support import until

KEYS = LockKeys.of(b"redsync:", b"x")
LEASE = 1.5

READER = """
    import sys, time
    from redsync import Client

    client = Client(sys.argv[2:], lease=float(sys.argv[1]), restart_guard=0.0)
    client.get_read_write_lock("x").read_lock.acquire()
    print("reads", flush=True)
    time.sleep(60)
"""


@contextlib.contextmanager
def reading_process(nodes):
    """Start another process that reads, and renews."""
    command = [sys.executable, "-c", textwrap.dedent(READER), str(LEASE), *nodes.urls]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout.readline() == "reads\n"
            yield process
        finally:
            process.kill()


def claims_of_others(node, client):
    """Return until when a node keeps what other clients have of it."""
    claims = node.zrange(KEYS.lock, 0, -1, withscores=True)
    return {claim: until for claim, until in claims if client.id.encode() not in claim}


@pytest.mark.parametrize(
    "trouble", [None, *(pytest.param(each, marks=pytest.mark.sweep) for each in ("kill", "restart", "pause"))]
)
def test_killed_reader_frees_the_writer_within_its_lease_although_another_renews(
    nodes, make_client, other, raw, trouble
):
    client = make_client(lease=LEASE)
    lock = client.get_read_write_lock("x")
    lock.read_lock.acquire()
    with reading_process(nodes) as process:
        for i in (0, 1) if trouble else ():
            getattr(nodes, trouble)(i)
        time.sleep(LEASE)
        writing = other.start(lock.write_lock.acquire)
        process.send_signal(signal.SIGKILL)
        process.wait()
        left = claims_of_others(raw[-1], client)
        assert left
        time.sleep(LEASE / 2)
        lock.read_lock.extend()
        assert claims_of_others(raw[-1], client).items() <= left.items(), "nobody renews them"
        lock.read_lock.release()
        assert writing.result(60)
    other.do(lock.write_lock.release)


def test_living_reader_keeps_the_writer_out_when_another_was_killed(nodes, make_client, other):
    client = make_client(lease=LEASE)
    lock = client.get_read_write_lock("x")
    with lock.read_lock as hold:
        with reading_process(nodes) as process:
            process.kill()
        assert not other.do(lock.write_lock.acquire, timeout=2 * LEASE)
        hold.check()


def test_nodes_that_hang_cost_readers_nothing_and_let_nobody_in_twice(nodes, make_client, other):
    client = make_client()
    lock = client.get_read_write_lock("x")
    lock.read_lock.acquire()
    for i in (0, 1):
        nodes.pause(i)
    assert not other.do(lock.write_lock.acquire, False)
    other.do(lock.read_lock.acquire)
    took = []
    for _ in range(50):
        started = time.perf_counter()
        lock.read_lock.acquire()
        lock.read_lock.release()
        took.append(time.perf_counter() - started)
    assert statistics.median(took) < 0.1
    for i in (0, 1):
        nodes.resume(i)
    assert not other.do(client.get_read_write_lock("x").read_lock.release)
    lock.read_lock.release()
    assert lock.write_lock.acquire(timeout=60)
    lock.write_lock.release()


def test_lock_is_had_again_when_the_majority_is_back(nodes, make_client):
    lock = make_client().get_read_write_lock("x")
    for i in range(3):
        nodes.kill(i)
    with pytest.raises(QuorumError):
        lock.read_lock.acquire(False)
    for i in range(3):
        nodes.restart(i)
    for mine in (lock.read_lock, lock.write_lock):
        assert mine.acquire(timeout=60)
        mine.release()


# Many.


def test_thousand_waiting_readers_are_all_let_in_together(nodes, raw, eventually):
    count = 1000

    async def crowd():
        async with AsyncClient(nodes.urls, restart_guard=0.0) as client:
            lock = client.get_read_write_lock("x")
            inside, everybody = 0, asyncio.Event()

            async def read():
                nonlocal inside
                async with lock.read_lock:
                    inside += 1
                    if inside == count:
                        everybody.set()
                    await everybody.wait()

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
    """The time that the node itself measures, beside each other so that a busy machine counts alike for both."""

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
