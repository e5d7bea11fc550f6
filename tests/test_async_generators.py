"""`async with lock` in async generators and dropped coroutines: where its body ends by a `GeneratorExit`."""

import asyncio
import gc
import threading
import types
from contextlib import AsyncExitStack, aclosing, asynccontextmanager

import pytest

from redsync import HoldOrphaned, LeaseLostError
from tests.aio_support import claims, client_of, comes_out, in_loop, run, until, uvloop_in_sweeps
from tests.support.kinds import KINDS, each_entered
from tests.test_async_with import goes_on, lose

ENDLESS = 30


async def rows(lock):
    async with lock:
        for i in range(9):
            yield i


async def is_free(nodes, kind="lock"):
    """Whether another client gets it at once."""
    async with client_of(nodes) as other:
        lock = KINDS[kind](other)
        return bool(await lock.acquire(False)) and await lock.release() is None


async def becomes_free(nodes, kind="lock"):
    while not await is_free(nodes, kind):  # noqa: ASYNC110  (nodes tell nobody)
        await asyncio.sleep(0.01)


def is_held(client):
    return len(client.runner.session.holds) > 0


@types.coroutine
def begin(coroutine):
    """Run it in this task until it is inside, and then waits for something."""
    waits_for = coroutine.send(None)
    while not coroutine.cr_frame.f_locals.get("inside"):
        yield waits_for
        waits_for = coroutine.send(None)
    waits_for.cancel()


async def drop(coroutine):
    await begin(coroutine)
    coroutine.close()  # RuntimeError if it awaited


async def sleep_in(lock):
    async with lock:
        inside = True
        await asyncio.sleep(ENDLESS)
    return inside


# Closed as it should be.


@each_entered
@uvloop_in_sweeps
@in_loop
async def test_generator_that_is_closed_has_given_back_what_it_held(nodes, raw, kind, loop):
    async with client_of(nodes) as client:
        lock = KINDS[kind](client)
        async with aclosing(rows(lock)) as stream:
            async for i in stream:
                if i == 2:
                    break
        assert await is_free(nodes, kind)
        assert not is_held(client)
        assert not lock._entered
        await goes_on()


@each_entered
@in_loop
async def test_generator_that_another_task_ends_has_given_back(nodes, raw, kind):
    """By closing it, or as fixtures of some test frameworks: one task goes up to the `yield`, another on from it."""
    async with client_of(nodes) as client:
        lock = KINDS[kind](client)

        async def fixture():
            async with lock:
                yield 1

        for end in (lambda stream: stream.aclose(), lambda stream: anext(stream, None)):
            stream = fixture()
            await anext(stream)
            await asyncio.create_task(_awaiting(end(stream)))
            assert await is_free(nodes, kind)
            assert not lock._entered
            await goes_on()


async def _awaiting(awaitable):
    return await awaitable


@in_loop
async def test_generator_that_nobody_has_any_more_gives_back(nodes, raw):
    """The loop closes it, in a task of its own."""
    async with client_of(nodes) as client:
        async for _ in rows(client.get_lock("x")):
            break
        gc.collect()
        await becomes_free(nodes)
        assert not is_held(client)


def test_generators_that_are_left_when_the_loop_ends_say_nothing(nodes, raw):
    streams = []

    async def main():
        client = client_of(nodes)
        streams.append(rows(client.get_lock("x")))
        await anext(streams[0])

    run(main, leaves_tasks=True)  # no complaints
    assert not claims(raw)


@in_loop
async def test_generator_that_another_loop_closes_is_given_back_by_its_own(nodes, raw):
    async with client_of(nodes) as client:
        stream = rows(client.get_lock("x"))
        await anext(stream)
        closer = threading.Thread(target=lambda: asyncio.run(stream.aclose()))
        closer.start()
        closer.join()
        await until(lambda: not claims(raw))
        await goes_on()


@in_loop
async def test_generator_of_a_task_that_ended_says_no_more_than_that(nodes, raw):
    events = []
    async with client_of(nodes, listeners=[events.append]) as client:
        stream = rows(client.get_lock("x"))
        await asyncio.create_task(_awaiting(anext(stream)))
        await until(lambda: [event for event in events if isinstance(event, HoldOrphaned)])
        await stream.aclose()
        assert not claims(raw)


# The loss.


@in_loop
async def test_generator_that_is_closed_is_cancelled_by_no_loss_any_more(nodes):
    async with client_of(nodes) as client:
        stream = rows(client.get_lock("x"))
        await anext(stream)
        (state,) = client.runner.session.holds
        await stream.aclose()
        assert not state.watching
        await goes_on()


@in_loop
async def test_loss_while_a_generator_is_used_comes_out_where_that_is_closed(nodes):
    async with client_of(nodes) as client:
        with comes_out(LeaseLostError):
            async with aclosing(rows(client.get_lock("x"))) as stream:
                async for _ in stream:
                    lose(client)
                    await asyncio.sleep(ENDLESS)
        await goes_on()


@in_loop
async def test_what_a_generator_released_itself_is_no_problem_where_that_is_closed(nodes):
    async with client_of(nodes) as client:
        lock = client.get_lock("x")
        stream = rows(lock)
        await anext(stream)
        await lock.release()
        await stream.aclose()
        await goes_on()


# Dropped: coroutines that are closed, in which nothing may be awaited.


@each_entered
@in_loop
async def test_coroutine_that_is_dropped_gives_back_in_the_next_turns(nodes, raw, kind):
    async with client_of(nodes) as client:
        lock = KINDS[kind](client)
        await drop(sleep_in(lock))
        await becomes_free(nodes, kind)
        await until(lambda: not lock._entered)
        assert not is_held(client)
        await goes_on()


@in_loop
async def test_coroutine_that_another_thread_drops_gives_back_in_the_next_turns(nodes, raw):
    async with client_of(nodes) as client:
        coroutine = sleep_in(client.get_lock("x"))
        await begin(coroutine)
        await asyncio.to_thread(coroutine.close)
        await until(lambda: not claims(raw))
        await goes_on()


@in_loop
async def test_coroutine_that_is_dropped_gives_back_what_a_context_manager_holds_for_it(nodes, raw):
    async with client_of(nodes) as client:

        @asynccontextmanager
        async def guarded():
            async with client.get_lock("x"):
                yield

        async def stack_of():
            async with AsyncExitStack() as stack:
                await stack.enter_async_context(client.get_lock("y"))
                inside = True
                await asyncio.sleep(ENDLESS)
            return inside

        await drop(sleep_in(guarded()))
        await drop(stack_of())
        await until(lambda: not claims(raw))


@in_loop
async def test_coroutine_that_is_dropped_leaves_the_hold_of_the_task_that_drops_it(nodes, raw):
    async with client_of(nodes) as client:
        lock = client.get_lock("x")
        async with lock as hold:
            await drop(sleep_in(lock))
            assert lock.hold_count() == 2
            await until(lambda: lock.hold_count() == 1)
            hold.check()
        assert not claims(raw)


@in_loop
async def test_coroutine_that_is_dropped_with_a_lost_hold_is_written_down(nodes, caplog):
    async with client_of(nodes) as client:
        lock = client.get_lock("x", on_lost=print)
        await drop(_lose_in(client, lock))
        await until(lambda: "a dropped coroutine" in caplog.text)
        await goes_on()


async def _lose_in(client, lock):
    async with lock:
        (state,) = client.runner.session.holds
        state.lost = "the test says so"
        inside = True
        await asyncio.sleep(ENDLESS)
    return inside


@in_loop
async def test_coroutine_that_is_dropped_has_its_client_closed_by_the_loop(nodes, raw):
    clients = []

    async def work():
        async with client_of(nodes) as client, client.get_lock("x"):
            clients.append(client)
            inside = True
            await asyncio.sleep(ENDLESS)
        return inside

    await drop(work())
    await clients[0].close()
    assert not claims(raw)


@in_loop
async def test_generator_that_is_closed_has_closed_its_client(nodes, raw):
    async def stream():
        async with client_of(nodes) as client, client.get_lock("x"):
            yield client

    async with aclosing(stream()) as closing:
        client = await anext(closing)
    assert client.runner.closed
    assert not claims(raw)


@in_loop
async def test_callback_is_no_task_that_could_await(nodes):
    async with client_of(nodes) as client:
        seen = asyncio.get_running_loop().create_future()
        asyncio.get_running_loop().call_soon(lambda: seen.set_result(client.runner.in_task()))
        assert await seen is False
        assert await asyncio.to_thread(client.runner.in_task) is False
        assert client.runner.in_task()
        assert not client_of(nodes).runner.in_task()


@in_loop
async def test_coroutine_that_is_dropped_without_a_loop_says_nothing(nodes, monkeypatch):
    """As in the child of a fork."""
    async with client_of(nodes) as client:
        coroutine = sleep_in(client.get_lock("x"))
        await begin(coroutine)
        with monkeypatch.context() as patched:
            patched.setattr(client.runner, "_loop", None)
            coroutine.close()


@each_entered
@in_loop
async def test_coroutine_that_is_dropped_and_closes_a_generator_itself_gives_back_all_the_same(nodes, kind):
    """That can't be told from a generator whose end may await, see `frames`."""

    async def work(lock):
        async with aclosing(rows(lock)) as stream:
            await anext(stream)
            inside = True
            await asyncio.sleep(ENDLESS)
        return inside

    async with client_of(nodes) as client:
        coroutine = work(KINDS[kind](client))
        await begin(coroutine)
        with pytest.raises(RuntimeError, match="ignored GeneratorExit"):
            coroutine.close()
        coroutine.close()
        await becomes_free(nodes, kind)
        assert not is_held(client)


def test_coroutine_that_is_dropped_after_its_loop_says_nothing(nodes):
    coroutines = []

    async def main():
        async with client_of(nodes) as client:
            coroutines.append(sleep_in(client.get_lock("x")))
            await begin(coroutines[0])

    run(main)
    coroutines[0].close()
