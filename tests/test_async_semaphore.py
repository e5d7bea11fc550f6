"""The semaphore's asyncio parts: cancellation, and the body of `async with` when a permit is lost."""

import asyncio

import pytest

from redsync import LeaseLostError
from tests.aio_support import client_of, in_loop, turns, until
from tests.support.locks import lose

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
