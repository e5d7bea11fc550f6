"""The async multi-lock: dropped between two of its locks, and the body of its `async with`.

`test_async_cancel` cancels it at every turn of the loop.
"""

import asyncio

import pytest

from redsync import AsyncMultiHold, HoldLost, LeaseLostError
from tests.aio_support import ENDLESS, claims, client_of, comes_out, goes_on, in_loop, run_until, turns, until
from tests.support.locks import lose
from tests.support.trouble import hanging


def multi_of(client):
    return client.get_multi_lock(client.get_mutex("y"), client.get_lock("x"), client.get_fair_lock("z"))


# Dropped: closed coroutines, as after the end of a loop.


def between_two_releases(multi):
    """Return a condition: the second lock was released, the first is next."""
    was_held = [multi._locks[1].owned()]

    def when():
        first, second, *_ = [lock.owned() for lock in multi._locks]
        was_held.append(second)
        return first and not second and True in was_held

    return when


@pytest.mark.parametrize("way", ["acquire", "busy", "release", "hold"])
@in_loop
async def test_call_dropped_between_two_locks_releases_the_rest(nodes, way):
    """A coroutine that awaits while it is closed raises a RuntimeError."""
    async with client_of(nodes) as client, client_of(nodes) as other, other.get_lock("z"):
        multi = multi_of(client)
        if way == "acquire":
            dropped, when = multi.acquire(), multi._locks[1].owned
        elif way == "busy":
            dropped, when = multi.acquire(timeout=0.5), between_two_releases(multi)
        else:
            multi = client.get_multi_lock(*multi._locks[:2])
            assert await multi.acquire()
            releasing = multi if way == "release" else AsyncMultiHold(multi._own())
            dropped, when = releasing.release(), between_two_releases(multi)
        await run_until(dropped, when)
        dropped.close()
        await until(lambda: not len(client.runner.session.holds))


# Cancelled.


@pytest.mark.parametrize("way", ["acquire", "release"])
@in_loop
async def test_cancelled_call_does_not_wait_for_the_nodes(nodes, way):
    async with client_of(nodes) as client, client_of(nodes) as other, other.get_lock("z"):
        if way == "acquire":
            task = asyncio.create_task(multi_of(client).acquire())
            await until(lambda: len(client.runner.session.holds) == 2)
        else:
            multi = client.get_multi_lock(client.get_mutex("y"), client.get_mutex("x"))
            assert await multi.acquire()
            task = asyncio.create_task(multi.release())
        with hanging(nodes, 0, 1, 2):
            await asyncio.sleep(0.01)
            task.cancel()
            await turns(10)
            assert task.cancelled()
        await until(lambda: not len(client.runner.session.holds))


# The body.


@in_loop
async def test_body_is_cancelled_once_when_several_are_lost(nodes, raw):
    async with client_of(nodes) as client:
        multi = multi_of(client)
        for names in ("x", "y", "z", "xz", "zyx"):
            cancelled = []
            with comes_out(LeaseLostError) as info:
                async with multi as hold:
                    for name in names:
                        lose(client, name)
                    try:
                        await asyncio.sleep(ENDLESS)
                    except asyncio.CancelledError:
                        cancelled.append(hold.lost)
                        await asyncio.sleep(0.01)
                        cancelled.append("cleaned up")
                        raise
            assert cancelled == [True, "cleaned up"]
            assert info.value.name == max(names), "released in reverse order"
            assert len(getattr(info.value, "__notes__", [])) == len(names) - 1
            await goes_on()
            await until(lambda: not claims(raw))
        async with multi:
            await goes_on()


@in_loop
async def test_body_is_cancelled_when_locks_of_several_clients_are_lost(nodes, raw):
    events = []
    async with client_of(nodes, listeners=[events.append]) as one, client_of(nodes, prefix="z:") as two:
        with comes_out(LeaseLostError):
            async with one.get_multi_lock(one.get_lock("x"), two.get_lock("x")):
                lose(two, "x")
                lose(one, "x")
                await asyncio.sleep(ENDLESS)
        await goes_on()
        await until(lambda: not claims(raw))
    assert [type(event) for event in events if isinstance(event, HoldLost)] == [HoldLost]


@in_loop
async def test_body_is_not_cancelled_for_a_lock_with_on_lost(nodes):
    lost = []
    async with client_of(nodes) as client:
        multi = client.get_multi_lock(client.get_lock("x", on_lost=lost.append), client.get_lock("y"))
        with comes_out(LeaseLostError, match="'x'"):
            async with multi as hold:
                lose(client, "x")
                assert await hold.wait_lost(5)
                await asyncio.sleep(0.01)
                lost.append("and continued")
        assert [getattr(each, "name", each) for each in lost] == ["x", "and continued"]
        with comes_out(LeaseLostError, match="'y'"):
            async with multi:
                lose(client, "y")
                await asyncio.sleep(ENDLESS)
        await goes_on()
