"""The rate limiter as a decorator of coroutine functions."""

import pytest

from redsync import AcquireTimeout
from tests.aio_support import client_of, in_loop

DAY = 86_400


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
