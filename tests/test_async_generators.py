"""`async with lock` in async generators and dropped coroutines: its body ends with a `GeneratorExit`."""

import asyncio
from contextlib import AsyncExitStack, aclosing

import pytest

from redsync import AsyncLock, HoldLost, HoldOrphaned, LeaseLostError
from tests.aio_support import ENDLESS, claims, client_of, goes_on, in_loop, run, run_until, until, uvloop_in_sweeps
from tests.support.kinds import KINDS, another, each_entered
from tests.support.locks import PATIENCE, lose


async def rows(lock):
    async with lock:
        for i in range(9):
            yield i


async def becomes_free(nodes, kind="lock"):
    """Wait until another client gets it."""
    async with client_of(nodes) as other:
        lock = another(kind)(other)
        assert await lock.acquire(timeout=PATIENCE)
        await lock.release()


def is_held(client):
    return len(client.runner.session.holds) > 0


async def begin(coroutine):
    """Run it in this task until it waits inside the body."""
    await run_until(coroutine, lambda: coroutine.cr_frame.f_locals.get("inside"))


async def drop(coroutine):
    await begin(coroutine)
    coroutine.close()  # RuntimeError if it awaited


async def sleep_in(lock):
    async with lock:
        inside = True
        await asyncio.sleep(ENDLESS)
    return inside


async def sleep_in_rows_of(lock):
    """Close a generator itself at the end."""
    async with aclosing(rows(lock)) as stream:
        await anext(stream)
        inside = True
        await asyncio.sleep(ENDLESS)
    return inside


# Closed in the regular way.


async def break_off(stream):
    async with aclosing(stream):
        async for i in stream:
            if i == 2:
                break


async def end(stream):
    async for _ in stream:
        pass


@each_entered
@uvloop_in_sweeps
@in_loop
async def test_closed_generator_has_sent_its_release(nodes, raw, kind, loop):
    """Even if another task ends it, as with fixtures of test frameworks: one task runs up to the `yield`."""
    async with client_of(nodes) as client:
        lock = KINDS[kind](client)
        await break_off(rows(lock))
        for finish in (break_off, end):
            if kind == "multi":  # the loop releases some of its locks
                await until(lambda: not any(part._entered for part in lock._locks))
            assert not is_held(client)
            await becomes_free(nodes, kind)
            await until(lambda: not lock._entered)
            await goes_on()
            stream = rows(lock)
            await anext(stream)
            await asyncio.create_task(finish(stream))
        await becomes_free(nodes, kind)
        await until(lambda: not lock._entered)


class Wrapped:
    """A context manager of the application around a lock."""

    def __init__(self, lock):
        self.lock = lock

    async def __aenter__(self):
        return await self.lock.__aenter__()

    async def __aexit__(self, *error):
        return await self.lock.__aexit__(*error)


class Stacked(Wrapped):
    async def __aenter__(self):
        self.stack = AsyncExitStack()
        return await self.stack.enter_async_context(self.lock)

    async def __aexit__(self, *error):
        return await self.stack.__aexit__(*error)


class Filled(Stacked):
    """Its stack is filled by a function, whose frame ends before the body begins."""

    async def __aenter__(self):
        self.stack = AsyncExitStack()
        return await self.fill()

    async def fill(self):
        return await self.stack.enter_async_context(self.lock)


@pytest.mark.parametrize("wrapper", [Wrapped, Stacked, Filled])
@pytest.mark.parametrize("kind", ["lock", "multi"])
@in_loop
async def test_closed_generator_releases_what_another_context_manager_entered(nodes, kind, wrapper):
    async with client_of(nodes) as client:
        lock = KINDS[kind](client)
        await break_off(rows(wrapper(lock)))
        await becomes_free(nodes, kind)
        await drop(sleep_in(wrapper(lock)))
        await becomes_free(nodes, kind)
        await until(lambda: not lock._entered)


@pytest.mark.parametrize("wrapper", [Wrapped, Stacked, Filled])
@in_loop
async def test_closed_generator_leaves_the_permit_of_another_task(nodes, wrapper):
    async with client_of(nodes) as client:
        semaphore = client.get_semaphore("x", 2)
        entered = asyncio.Event()

        async def keep():
            async with wrapper(semaphore):
                entered.set()
                await asyncio.sleep(ENDLESS)

        stream = rows(wrapper(semaphore))
        await anext(stream)
        task = asyncio.create_task(keep())
        await entered.wait()
        (_, permit) = semaphore._entered
        await stream.aclose()
        permit.check()
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task


@pytest.mark.parametrize("wrapper", [Wrapped, Stacked, Filled])
@in_loop
async def test_closed_generator_of_another_task_leaves_the_permit_of_the_task_that_closes_it(nodes, wrapper):
    async with client_of(nodes) as client:
        semaphore = client.get_semaphore("x", 2)
        stream = rows(wrapper(semaphore))
        await asyncio.create_task(anext(stream))
        async with semaphore as permit:
            await stream.aclose()
            await goes_on()
            permit.check()


@in_loop
async def test_loss_within_a_stack_is_raised_though_a_subclass_has_its_own_end(nodes):
    class Logged(AsyncLock):
        async def __aexit__(self, *error):
            return await super().__aexit__(*error)

    async def work():
        async with AsyncExitStack() as stack:
            await stack.enter_async_context(lock)
            lose(client)
            await asyncio.sleep(ENDLESS)

    async with client_of(nodes) as client:
        lock = Logged(client, "x")
        with pytest.raises(LeaseLostError):
            await work()
        await goes_on()
        assert not lock._entered


@in_loop
async def test_closed_generator_leaves_the_hold_of_another_task_if_it_began_no_with(nodes):
    """Pushed onto a stack after `acquire`, which has a timeout."""

    async def generator():
        async with AsyncExitStack() as stack:
            assert await lock.acquire(timeout=PATIENCE)
            stack.push_async_exit(lock)
            yield

    async with client_of(nodes) as client:
        lock = client.get_read_write_lock("x").read_lock
        stream = generator()
        await anext(stream)

        async def close():
            async with lock as hold:
                await stream.aclose()
                await goes_on()
                hold.check()

        await asyncio.create_task(close())


@in_loop
async def test_coroutine_dropped_in_its_own_with_leaves_the_hold_of_the_dropping_task(nodes):
    class Starting:
        async def __aenter__(self):
            async with semaphore:
                await asyncio.sleep(ENDLESS)

        async def __aexit__(self, *error):
            pass

    async def use():
        async with Starting():
            pass

    async with client_of(nodes) as client:
        semaphore = client.get_semaphore("x", 2)
        coroutine = use()
        await run_until(coroutine, lambda: semaphore._entered)
        async with semaphore as permit:
            coroutine.close()
            await goes_on()
            permit.check()
        await until(lambda: not semaphore._entered)


def test_generators_left_at_the_end_of_the_loop_are_silent(nodes, raw):
    streams = []

    async def main():
        client = client_of(nodes)
        streams.append(rows(client.get_lock("x")))
        await anext(streams[0])

    run(main, leaves_tasks=True)  # no complaints
    assert not claims(raw)


# Continued in another task than the one that began it; `test_generators` has more in both flavours.


@in_loop
async def test_loss_after_the_task_has_ended_is_raised_at_the_end_of_the_with(nodes):
    events = []
    async with client_of(nodes, listeners=[events.append]) as client:
        stream = rows(client.get_lock("x"))

        async def begin_and_leave():
            await anext(stream)
            await client.get_lock("acquired").acquire()

        await asyncio.create_task(begin_and_leave())
        await until(lambda: any(isinstance(event, HoldOrphaned) for event in events))
        lose(client)
        await until(lambda: any(isinstance(event, HoldLost) for event in events))
        with pytest.raises(LeaseLostError):
            await stream.aclose()
        await goes_on()


# Dropped: closed coroutines, in which no await is possible.


@each_entered
@in_loop
async def test_dropped_coroutine_releases_its_lock_in_the_next_turns(nodes, raw, kind):
    """Even if it is dropped in a callback of the loop, where no task runs."""
    async with client_of(nodes) as client:
        lock = KINDS[kind](client)
        for call in (lambda close: close(), asyncio.get_running_loop().call_soon):
            for sleep in (sleep_in, sleep_in_rows_of):
                coroutine = sleep(lock)
                await begin(coroutine)
                call(coroutine.close)  # RuntimeError if it awaited
                await becomes_free(nodes, kind)
                await until(lambda: not lock._entered)
                assert not is_held(client)
                await goes_on()


@in_loop
async def test_coroutine_dropped_in_the_middle_of_a_step_releases_its_lock_after_the_step(nodes):
    """The garbage collector may drop it anywhere; a step finds nothing changed meanwhile."""
    async with client_of(nodes) as client:
        coroutine = sleep_in(client.get_lock("x"))
        await begin(coroutine)
        (state,) = client.runner.session.holds

        def step():
            coroutine.close()
            return state.live
            yield

        assert await client.runner.run(step())
        await becomes_free(nodes)
        assert not is_held(client)


@in_loop
async def test_dropped_coroutine_leaves_the_hold_of_the_dropping_task(nodes, raw):
    """No matter in which thread, or loop, it is dropped."""
    async with client_of(nodes) as client:
        lock = client.get_lock("x")
        async with lock as hold:
            await drop(sleep_in(lock))
            assert lock.hold_count() == 1
            coroutine, stream = sleep_in(client.get_lock("y")), rows(client.get_lock("z"))
            await begin(coroutine)
            await asyncio.to_thread(coroutine.close)
            await anext(stream)
            await asyncio.to_thread(asyncio.run, stream.aclose())
            await until(lambda: {key for _, key in claims(raw)} == {b"redsync:x"})
            hold.check()
        await until(lambda: not claims(raw))


@in_loop
async def test_dropped_coroutine_with_a_lost_hold_raises_or_is_logged_in_another_thread(nodes, caplog):
    async def lose_in(client, lock):
        async with lock:
            (state,) = client.runner.session.holds
            state.lost = "the test says so"
            inside = True
            await asyncio.sleep(ENDLESS)
        return inside

    async with client_of(nodes) as client:
        with pytest.raises(LeaseLostError):
            await drop(lose_in(client, client.get_lock("x")))
        await goes_on()
        coroutine = lose_in(client, client.get_lock("y"))
        await begin(coroutine)
        await asyncio.to_thread(coroutine.close)
        await until(lambda: "a dropped coroutine" in caplog.text)
        await goes_on()


@in_loop
async def test_loop_closes_the_client_of_a_dropped_coroutine(nodes, raw):
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


def test_coroutine_dropped_after_its_loop_is_silent(nodes):
    coroutines = []

    async def main():
        async with client_of(nodes) as client:
            coroutines.append(sleep_in(client.get_lock("x")))
            await begin(coroutines[0])

    run(main)
    coroutines[0].close()
