"""The async multi-lock: cancelled at every turn of the loop, and the body of its `async with`."""

import asyncio
import types
from contextlib import suppress
from functools import partial

import pytest

from redsync import AsyncMultiHold, HoldLost, LeaseLostError, QuorumError
from tests.aio_support import claims, client_of, comes_out, in_loop, turns, until
from tests.support.locks import lose
from tests.support.sweeps import swept
from tests.test_async_cancel import for_every_turn, give_back, ground_of, states_of_nodes
from tests.test_async_with import goes_on

ENDLESS = 30


def multi_of(client):
    return client.get_multi_lock(client.get_mutex("y"), client.get_lock("x"), client.get_fair_lock("z"))


# Cancelled at any turn, and again at any later one.


async def acquire(multi, begun):
    begun.set()
    try:
        assert await multi.acquire()
    except asyncio.CancelledError:
        assert not any(lock.hold_count() for lock in multi._locks)
        raise
    finally:
        await give_back(multi)


async def acquire_in_vain(multi, begun):
    begun.set()
    try:
        with suppress(QuorumError):  # where the machine is busy
            assert await multi.acquire(timeout=0.004) is False
    finally:
        assert not any(lock.hold_count() for lock in multi._locks)


async def acquire_beside_a_hold(multi, begun):
    lock = multi._locks[0]
    assert await lock.acquire()
    begun.set()
    try:
        assert await multi.acquire()
    except asyncio.CancelledError:
        assert [each.hold_count() for each in multi._locks] == [1, 0, 0]
        raise
    finally:
        try:
            await give_back(multi)
        finally:
            await give_back(lock)


async def release(multi, begun):
    assert await multi.acquire()
    begun.set()
    try:
        await multi.release()
    finally:
        assert not any(lock.hold_count() for lock in multi._locks)


async def enter_and_leave(multi, begun):
    begun.set()
    try:
        async with multi as hold:
            hold.check()
            await turns(3)
    finally:
        assert not multi._entered
        assert not any(lock._entered for lock in multi._locks)


@pytest.mark.parametrize(
    "operation", [acquire, release, *swept(acquire_in_vain, acquire_beside_a_hold, enter_and_leave)]
)
@states_of_nodes
@in_loop
async def test_operation_cancelled_at_any_turn_leaves_nothing(nodes, raw, state, operation):
    async with ground_of(nodes, raw, state) as ground:
        multi, holder = multi_of(ground.client), ground.other.get_lock("z")
        if operation is acquire_in_vain:
            assert await holder.acquire()
        check = partial(ground.is_clean, held=[b"redsync:z"] if holder.owned() else [])
        assert await for_every_turn(partial(operation, multi), check, limit=100) > 1
        await give_back(holder)


@in_loop
async def test_wait_for_a_loss_cancelled_at_any_turn_leaves_no_sleeper(nodes, raw):
    async with ground_of(nodes, raw, "healthy") as ground, multi_of(ground.client) as hold:
        states = [part._state for part in hold._holds]
        before = [list(state.loss_callbacks) for state in states]

        async def operation(begun):
            begun.set()
            await hold.wait_lost(0.002)

        async def check():
            assert not any(state.end_waiters for state in states)
            assert [list(state.loss_callbacks) for state in states] == before
            hold.check()

        # On a busy machine the wait may be over in its first turn.
        while await for_every_turn(operation, check) == 1:
            pass


# Dropped: closed coroutines, as after the end of a loop.


@types.coroutine
def drop(coroutine, when):
    """Run it in this task until the condition is true at an await, and close it there."""
    waits_for = coroutine.send(None)
    while not when():
        yield waits_for
        waits_for = coroutine.send(None)
    waits_for.cancel()
    coroutine.close()


@in_loop
async def test_dropped_acquire_awaits_nothing_more(nodes):
    async with client_of(nodes) as client, client_of(nodes) as other, other.get_lock("z"):
        multi = multi_of(client)
        # A coroutine that awaits while being closed raises a RuntimeError.
        await drop(multi.acquire(), multi._locks[1].owned)
        await until(lambda: not len(client.runner.session.holds))


def between_two_releases(multi):
    """Return a condition: the second lock was released, the first is next."""
    was_held = [multi._locks[1].owned()]

    def when():
        first, second, *_ = [lock.owned() for lock in multi._locks]
        was_held.append(second)
        return first and not second and True in was_held

    return when


@pytest.mark.parametrize("way", ["busy", "release", "hold"])
@in_loop
async def test_release_dropped_between_two_locks_releases_the_rest(nodes, way):
    async with client_of(nodes) as client, client_of(nodes) as other, other.get_lock("z"):
        multi = multi_of(client)
        if way == "busy":
            dropped = multi.acquire(timeout=0.05)
        else:
            multi = client.get_multi_lock(*multi._locks[:2])
            assert await multi.acquire()
            hold = AsyncMultiHold(multi._own())
            dropped = multi.release() if way == "release" else hold.release()
        await drop(dropped, between_two_releases(multi))
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
async def test_body_that_released_a_lost_hold_still_gets_the_error(nodes):
    async with client_of(nodes) as client:
        with comes_out(LeaseLostError, match="'y'"):
            async with multi_of(client) as hold:
                lose(client, "y")
                try:
                    await asyncio.sleep(ENDLESS)
                finally:
                    with suppress(LeaseLostError):
                        await hold.release()
        await goes_on()


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
