"""The rate limiter's asyncio parts: cancellation, and calls of coroutine functions."""

import asyncio
from functools import partial

import pytest

from redsync import AcquireTimeout
from tests.aio_support import client_of, in_loop, turns, until

DAY = 86_400


def is_gone(raw, key):
    return raw.count(key) == 0


@in_loop
async def test_acquire_cancelled_at_any_turn_acquires_nothing_unless_it_succeeded(nodes, raw):
    async with client_of(nodes) as client:
        for turn in range(12):
            limiter = client.get_rate_limiter(f"x{turn}", 1, DAY)
            task = asyncio.create_task(limiter.acquire())
            await turns(turn)
            if task.cancel():
                with pytest.raises(asyncio.CancelledError):
                    await task
                await until(partial(is_gone, raw, f"redsync:x{turn}"))
                assert await limiter.acquire(False), "nothing was acquired"
            else:
                assert task.result()
            assert not await limiter.acquire(False)
            assert len(client.runner.session.holds) == 0


@in_loop
async def test_call_of_a_coroutine_function_acquires_one(nodes):
    async with client_of(nodes) as client:
        limiter = client.get_rate_limiter("x", 3, DAY)

        @limiter
        async def call(number):
            return number

        @limiter(timeout=0, on_busy="skip")
        async def skip(number):
            return number

        async def instead(number):
            return -number

        assert [await call(1), await call(2), await skip(3), await skip(4)] == [1, 2, 3, None]
        assert await limiter(timeout=0, on_busy=instead)(call.__wrapped__)(5) == -5
        with pytest.raises(AcquireTimeout):
            await limiter(timeout=0.3)(call.__wrapped__)(6)
        with pytest.raises(TypeError, match="is not a coroutine function"):
            limiter(lambda: 1)
