"""The rate limiter as a decorator, of plain functions; see `test_async_rate_limiter` for coroutine functions."""

import inspect
import time

import pytest

from redsync import AcquireTimeout, QuorumError


@pytest.fixture
def limiter(client):
    return client.get_rate_limiter("x", 2, 0.4)


def test_each_call_takes_one_and_waits_for_it(limiter):
    @limiter
    def call(number):
        return number, time.monotonic()

    done = [call(number) for number in range(5)]
    instants = [instant for _, instant in done]
    assert [number for number, _ in done] == list(range(5))
    assert all(later - sooner >= 0.4 for sooner, later in zip(instants, instants[2:], strict=False))


def test_function_keeps_its_name_and_signature(limiter):
    @limiter(timeout=1)
    def call(number: int, *, word: str = "") -> int:
        """Say what it does."""
        return number + len(word)

    assert call.__name__ == "call"
    assert call.__doc__ == "Say what it does."
    assert list(inspect.signature(call).parameters) == ["number", "word"]
    assert call(1, word="ab") == 3


def test_call_raises_when_the_rate_does_not_allow_it_in_time(limiter):
    calls = []
    call = limiter(timeout=0.3)(calls.append)
    call(1)
    call(2)
    with pytest.raises(AcquireTimeout):
        call(3)
    assert calls == [1, 2]


def test_timeout_of_the_limiter_is_that_of_its_calls(client):
    limiter = client.get_rate_limiter("x", 1, 60, timeout=0.3)
    call = limiter(lambda: "done")
    assert call() == "done"
    with pytest.raises(AcquireTimeout):
        call()


def test_call_returns_none_when_told_to_skip(limiter):
    call = limiter(timeout=0, on_busy="skip")(lambda number: number)
    assert [call(1), call(2), call(3)] == [1, 2, None]


def test_call_goes_to_another_function_when_told_to(limiter):
    call = limiter(timeout=0, on_busy=lambda number: -number)(lambda number: number)
    assert [call(1), call(2), call(3)] == [1, 2, -3]


def test_errors_of_the_function_are_its_own(limiter):
    @limiter(timeout=0, on_busy="skip")
    def call():
        raise AcquireTimeout("y", 1.0)

    with pytest.raises(AcquireTimeout, match="y"):
        call()


def test_no_quorum_is_never_taken_for_busy(make_client):
    client = make_client([f"redis://127.0.0.1:{port}" for port in (1, 2, 3)])
    call = client.get_rate_limiter("x", 1, 1)(lambda: 1)
    skipping = client.get_rate_limiter("x", 1, 1)(timeout=0, on_busy="skip")(lambda: 1)
    with pytest.raises(QuorumError):
        skipping()
    assert callable(call)


def test_decorator_is_refused_for_what_would_run_without_the_limit(limiter):
    async def coroutine():
        """Await nothing."""

    def generator():
        yield

    with pytest.raises(TypeError, match="is a coroutine function: use the AsyncClient's"):
        limiter(coroutine)
    with pytest.raises(TypeError, match="would run without the limit"):
        limiter(generator)


def test_decorator_is_refused_when_an_option_can_not_be(limiter):
    with pytest.raises(ValueError, match="on_busy"):
        limiter(on_busy="wait")
    with pytest.raises(ValueError, match="timeout"):
        limiter(timeout=-5)
