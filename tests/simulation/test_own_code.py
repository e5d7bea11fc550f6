"""A user's asyncio code on the simulated network: unchanged redis-py clients and asyncio streams."""

import asyncio

import pytest
import redis.asyncio
from redis import exceptions
from redis.asyncio.retry import Retry
from redis.backoff import NoBackoff

SIMULATION = {"seed": 5, "nodes": 2}


def client(**options):
    """Return a client of the first node that tries everything once."""
    return redis.asyncio.Redis(host="node-1", retry=Retry(NoBackoff(), 0), **options)


def run(sim, machine, program):
    task = machine.start(program)
    sim.run()
    return task.result()


@pytest.mark.parametrize("protocol", [2, 3])
def test_values_are_set_and_got_on_one_node_only(sim, machine, protocol):
    async def program():
        async with client(protocol=protocol) as one:
            await one.set("key", "value", px=500)
            first = await one.get("key")
            await asyncio.sleep(0.6)
            return first, await one.get("key"), await one.get("other")

    assert run(sim, machine, program()) == (b"value", None, None)
    assert sim.nodes[1].store.peek(b"key") is None


@pytest.mark.parametrize("options", [{"protocol": 2}, {}])
def test_replies_are_those_of_a_real_node(sim, machine, nodes, options):
    """With redis-py's own default protocol, too."""

    async def ask(one):
        await one.flushall()
        await one.zadd("scores", {"half": 2.5, "huge": 1e300})
        await one.hset("hash", "field", "value")
        replies = [
            await one.zscore("scores", "half"),
            await one.zscore("scores", "none"),
            await one.zrange("scores", 0, -1),
            await one.zrange("scores", 0, -1, withscores=True),
            await one.zrangebyscore("scores", 0, "inf", start=0, num=1, withscores=True),
            await one.hgetall("hash"),
            [sorted((await one.scan(**which))[1]) for which in ({}, {"match": "s*", "count": 9})],
        ]
        for words in ("SCAN", 0, "odd"), ("EVAL", "return 1"), *(("EVAL", "return 1", count) for count in ("x", 1, -1)):
            with pytest.raises(exceptions.ResponseError):
                await one.execute_command(*words)
        return replies

    async def program():
        async with client(**options) as one:
            return await ask(one)

    async def really():
        async with redis.asyncio.Redis(port=nodes.ports[0], **options) as one:
            return await ask(one)

    assert run(sim, machine, program()) == asyncio.run(really())


def test_timeouts_end_commands_that_a_partition_holds(sim, machine):
    async def program():
        ended = []
        async with client(socket_timeout=0.5, socket_connect_timeout=0.25) as one:
            await one.set("key", "before")
            sim.partition(machine, 0)
            for _ in range(2):
                began = sim.now
                with pytest.raises(exceptions.TimeoutError):
                    await one.set("key", "meanwhile")
                ended.append(round(sim.now - began, 3))
            sim.heal()
            await asyncio.sleep(0.5)
            return ended, await one.get("key")

    ended, value = run(sim, machine, program())
    assert ended == [0.5, 0.25], "the first waits for an answer, the second for a connection"
    assert value in {b"before", b"meanwhile"}, "a held command may arrive late"


def test_client_learns_of_the_crash_and_the_next_command_connects_again(sim, machine):
    async def program():
        async with client() as one:
            await one.set("key", "value")
            sim.nodes[0].crash()
            for _ in range(2):
                with pytest.raises(exceptions.ConnectionError):
                    await one.get("key")
            sim.nodes[0].restart()
            return await one.get("key")

    assert run(sim, machine, program()) == b"value"


def test_writes_are_lost_with_the_last_seconds_and_refused_by_a_node_in_trouble(sim, machine):
    async def program():
        async with client() as one:
            await one.set("key", "value")
            await asyncio.sleep(1.0)
            await one.flushall()
            await one.set("late", "value")
            async with one.pipeline(transaction=False) as reads:
                for _ in range(3000):
                    reads.get("late")
                await reads.execute()
            found = []
            for lost in (0.0, 0.5, 5.0):
                sim.nodes[0].crash()
                with pytest.raises(exceptions.ConnectionError):
                    await one.ping()
                sim.nodes[0].restart(lost=lost)
                found.append((await one.scan())[1])
            for code in ("READONLY", "MISCONF", "NOREPLICAS", "OOM"):
                sim.nodes[0].refuse(code)
                with pytest.raises(exceptions.ResponseError, match="the node is in trouble"):
                    await one.set("key", "value")
                assert await one.get("key") is None
            await one.flushall()  # needs no memory
            return found

    assert run(sim, machine, program()) == [[b"late"], [b"key"], []]


def test_streams_of_asyncio_read_and_write(sim, machine):
    async def program():
        reader, writer = await asyncio.open_connection("node-2", 6379)
        writer.write(b"*3\r\n$3\r\nSET\r\n$3\r\nkey\r\n$5\r\nvalue\r\n*2\r\n$3\r\nGET\r\n$3\r\nkey\r\n")
        await writer.drain()
        answers = [await reader.readline() for _ in range(3)]
        writer.write(b"*1\r\n$4\r\nPING\r\n")
        sim.tear(machine, 1, back=1.0)
        with pytest.raises(asyncio.IncompleteReadError) as invalidated:
            await reader.readuntil(b"\r\n")
        writer.close()
        await writer.wait_closed()
        return answers, invalidated.value.partial

    answers, part = run(sim, machine, program())
    assert answers == [b"+OK\r\n", b"$5\r\n", b"value\r\n"]
    assert b"+PONG\r\n".startswith(part)


def test_drain_waits_while_the_machine_accepts_nothing(sim, machine):
    async def program():
        _, writer = await asyncio.open_connection("node-1", 6379)
        sim.partition(machine, 0)
        writer.write(b"*3\r\n$3\r\nSET\r\n$3\r\nkey\r\n$400000\r\n" + b"v" * 400_000 + b"\r\n")
        with pytest.raises(asyncio.TimeoutError):
            await asyncio.wait_for(writer.drain(), 5.0)
        waited = sim.now
        writer.transport.abort()
        return waited

    assert run(sim, machine, program()) == pytest.approx(5.0, abs=0.1)
