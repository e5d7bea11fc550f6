"""The rate limiter as a decorator of functions.

`test_decorator` and `test_wrapping` test the parts shared with `client.locked`.
"""

import time

import pytest

from redsync import AcquireTimeout
from tests.aio_support import client_of, in_loop


def test_each_call_acquires_one_and_waits_for_it(client):
    @client.get_rate_limiter("x", 2, 0.4)
    def call(number):
        return number, time.monotonic()

    done = [call(number) for number in range(5)]
    instants = [instant for _, instant in done]
    assert [number for number, _ in done] == list(range(5))
    assert all(later - sooner >= 0.4 for sooner, later in zip(instants, instants[2:], strict=False))


def test_call_that_the_rate_does_not_allow_in_time_follows_on_busy(client):
    limiter, calls = client.get_rate_limiter("x", 1, 60, timeout=0.1), []
    call = limiter(calls.append)
    call(1)
    for busy in (call, limiter(timeout=0.3)(calls.append)):
        with pytest.raises(AcquireTimeout):
            busy(2)
    assert limiter(timeout=0, on_busy="skip")(calls.append)(3) is None
    assert limiter(timeout=0, on_busy=lambda number: -number)(calls.append)(4) == -4
    assert calls == [1]


def test_decorator_is_refused_with_an_invalid_option(client):
    limiter = client.get_rate_limiter("x", 1, 60)
    with pytest.raises(ValueError, match="on_busy"):
        limiter(on_busy="wait")
    with pytest.raises(ValueError, match="timeout"):
        limiter(timeout=-5)


@in_loop
async def test_call_of_a_coroutine_function_acquires_one(nodes):
    async with client_of(nodes) as client:
        limiter = client.get_rate_limiter("x", 3, 86_400)

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
