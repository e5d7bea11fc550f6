"""The adapter for threads: it makes each call at once, and awaits the methods that the async twin awaits."""

import inspect
from types import SimpleNamespace

import pytest

import redsync
from redsync.testing.harness import blocking
from redsync.testing.harness.blocking import Blocking, run

ASYNC = [
    value for name in redsync.__all__ if name.startswith("Async") and inspect.isclass(value := getattr(redsync, name))
]


def test_adapter_awaits_the_same_methods_as_the_async_twins():
    coroutines, others = set(), set()
    for kind in ASYNC:
        for name in dir(kind):
            if not name.startswith("_"):
                known = coroutines if inspect.iscoroutinefunction(getattr(kind, name)) else others
                known.add(name)
    assert coroutines == blocking._AWAITED
    assert coroutines & others == {"locked"}, "which is a decorator of a client, which no owner uses"


def test_adapter_passes_a_whole_turn_on_to_the_thread_flavour(redsync_client):
    async def use(client):
        async with client.get_lock("x", timeout=1.0) as hold:
            assert hold.remaining() > 0
            assert hold.name == "x"
            assert not hold.lost
            assert hold._state.name == "x"
            await hold.extend()
        lock = client.get_read_write_lock("y").write_lock
        assert await lock.acquire()
        await lock.release()
        permit = await client.get_semaphore("z", 2).acquire()
        await permit.release()
        return await client.get_lock("x").locked()

    assert run(use(Blocking(redsync_client))) is False


def test_errors_of_the_body_leave_the_lock_free(redsync_client):
    async def fail(client):
        async with client.get_lock("x"):
            raise KeyError

    with pytest.raises(KeyError):
        run(fail(Blocking(redsync_client)))
    assert not redsync_client.get_lock("x").locked()


def test_plain_values_are_not_wrapped():
    inner = SimpleNamespace(count=3, names=["a"])
    assert Blocking(inner).names == ["a"]
    assert Blocking(inner).count == 3


def test_run_refuses_a_coroutine_that_needs_a_loop():
    import asyncio

    with pytest.raises(AssertionError, match="event loop"):
        run(asyncio.sleep(0))
