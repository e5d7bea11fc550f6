"""The semaphore's asyncio parts: cancellation, and the body of `async with` when a permit is lost."""

import asyncio
import time

import pytest

from redsync import LeaseLostError
from tests.aio_support import client_of, in_loop, turns, until
from tests.support.locks import PATIENCE, lose

LIMIT = b"redsync_limit:{redsync:x}"


def is_free(raw):
    return all(keys <= {LIMIT} for keys in raw.keys())  # noqa: SIM118  (a node that was late has not met it)


@in_loop
async def test_acquire_cancelled_at_any_turn_leaves_nothing(nodes, raw):
    async with client_of(nodes) as client:
        semaphore = client.get_semaphore("x", 2)
        await (await semaphore.acquire()).release()
        for turn in range(12):
            task = asyncio.create_task(semaphore.acquire(n=2))
            await turns(turn)
            if task.cancel():
                with pytest.raises(asyncio.CancelledError):
                    await task
            else:
                await task.result().release()
            assert len(client.runner.session.holds) == 0
            await until(lambda: is_free(raw))


@in_loop
async def test_cancelled_waiter_lets_those_behind_it_advance(nodes, raw):
    async with client_of(nodes) as client, client_of(nodes) as other:
        semaphore, elsewhere = client.get_semaphore("x", 2), other.get_semaphore("x", 2)

        async def cancel_first():
            permit = await semaphore.acquire()
            many = asyncio.create_task(elsewhere.acquire(n=2))
            await until(lambda: raw.count("redsync_queue:{redsync:x}") == 5)
            one = asyncio.create_task(semaphore.acquire())
            await until(lambda: all(node.zcard("redsync_queue:{redsync:x}") == 2 for node in raw))
            cancelled_at = time.monotonic()
            many.cancel()
            assert await asyncio.wait_for(one, PATIENCE)
            took = time.monotonic() - cancelled_at
            await semaphore.release()
            await permit.release()
            await until(lambda: is_free(raw))
            return took

        # Without a wake-up it would look again after 0.5 s at the earliest.
        assert min([await cancel_first() for _ in range(5)]) < 0.4


@in_loop
async def test_cancelled_release_still_releases_the_permit(nodes, raw):
    async with client_of(nodes) as client:
        semaphore = client.get_semaphore("x", 2)
        permit = await semaphore.acquire()
        task = asyncio.create_task(permit.release())
        await turns(1)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        await until(lambda: is_free(raw))
        assert await semaphore.available() == 2


@pytest.mark.parametrize("of_permit", [False, True])
@in_loop
async def test_body_is_cancelled_when_its_permit_is_lost(nodes, of_permit):
    async with client_of(nodes) as client:
        semaphore = client.get_semaphore("x", 2)

        async def body():
            async with await semaphore.acquire() if of_permit else semaphore:
                lose(client)
                await asyncio.sleep(30)

        with pytest.raises(LeaseLostError, match="permit of semaphore 'x'"):
            await body()
        assert await semaphore.available() == 2


@in_loop
async def test_body_goes_on_with_an_on_lost_callback(nodes):
    lost = []
    async with client_of(nodes) as client:
        semaphore = client.get_semaphore("x", 2, on_lost=lost.append)
        seen = []

        async def body():
            async with semaphore as permit:
                seen.append(permit.id)
                lose(client)
                assert await permit.wait_lost(5)

        with pytest.raises(LeaseLostError):
            await body()
        assert [permit.id for permit in lost] == seen
