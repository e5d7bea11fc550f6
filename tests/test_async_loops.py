"""Clients and event loops: which belongs to which, their start and end, and forks."""

import asyncio
import contextlib
import functools
import gc
import itertools
import random
import subprocess
import sys
import textwrap
import threading
import time
import weakref
from concurrent.futures import ThreadPoolExecutor

import pytest

from redsync import AsyncClient, ClientClosedError, ConfigurationError, LeaseLostError, RedsyncError
from redsync._core.effects import Signal
from tests.aio_support import (
    ENDLESS,
    claims,
    client_of,
    comes_out,
    in_loop,
    loop_factory,
    other_tasks,
    run,
    take,
    turns,
    until,
    uvloop_in_sweeps,
)
from tests.support.locks import PATIENCE
from tests.support.sweeps import new_seed
from tests.support.trouble import hanging

BELONGS = "belongs to another event loop"


# Several loops.


@pytest.fixture
def elsewhere():
    """Return a function that runs a coroutine in another loop and thread."""
    with ThreadPoolExecutor(1) as pool:
        yield lambda coroutine: pool.submit(asyncio.run, coroutine).result(20)


@in_loop
async def test_other_loop_gets_a_clear_error_for_any_operation(nodes, raw, elsewhere):
    async with client_of(nodes) as client:
        lock = client.get_lock("x")
        async with lock as hold:
            for ask in (
                lock.acquire,
                lambda: lock.acquire(False),
                lock.locked,
                lock.force_release,
                lambda: client.inspect("x"),
                client.get_mutex("y").acquire,
                hold.release,
                hold.extend,
                lambda: hold.wait_lost(0.1),
                client.close,
                client.__aenter__,
                lambda: take(lock),
            ):
                with pytest.raises(ConfigurationError, match=BELONGS):
                    await asyncio.to_thread(elsewhere, ask())
            hold.check()
            await hold.extend()
        await until(lambda: claims(raw) == [])
        assert set(client.runner.life.owners._owners) <= {asyncio.current_task()}


@in_loop
async def test_hold_found_lost_in_another_thread_is_lost_in_the_loop(nodes, raw, caplog):
    """Like a computation in `asyncio.to_thread` that checks the hold; it touches nothing of the loop's."""
    threads = set()

    def step(life):
        yield Signal(b"x")
        return life.stepping

    def check(hold):
        assert not client.runner.run_at_once(step(client.runner.life)), "the loop's own"
        assert hold.remaining() > 10
        hold.check()
        hold._state.valid_until = 0.0
        with pytest.raises(LeaseLostError):
            hold.check()

    async with client_of(nodes, listeners=[lambda _: threads.add(threading.get_ident())]) as client:
        with comes_out(LeaseLostError):
            async with client.get_lock("x") as hold:
                await asyncio.to_thread(check, hold)
                await asyncio.sleep(ENDLESS)
        await until(lambda: claims(raw) == [])
    assert threads == {threading.get_ident()}
    assert "raised" not in caplog.text


@uvloop_in_sweeps
def test_client_serves_one_loop_even_with_stops_and_raises_in_the_next(nodes, raw, loop):
    client = client_of(nodes)
    with asyncio.Runner(loop_factory=loop_factory(loop)) as runner:
        for _ in range(2):
            runner.run(take(client.get_lock("x")))
        runner.run(client.get_lock("x").acquire())
    assert claims(raw) == []

    async def main():
        with pytest.raises(ConfigurationError, match=BELONGS):
            await client.get_lock("x").acquire()
        await client.close()
        with pytest.raises(RedsyncError):
            await client.get_lock("x").acquire()

    run(main, loop)


@uvloop_in_sweeps
def test_close_after_the_end_of_its_loop_ends_the_connections(nodes, raw, eventually, loop):
    client = client_of(nodes)
    runner = asyncio.Runner(loop_factory=loop_factory(loop))
    runner.run(take(client.get_lock("x")))
    # Without the runner, which would cancel the client's task.
    runner.get_loop().close()
    connected = len(raw[0].client_list())
    asyncio.run(client.close())
    eventually(lambda: len(raw[0].client_list()) < connected)
    del client
    gc.collect()  # Now: asyncio reports that the client's task did not end.


# Before any loop.


@uvloop_in_sweeps
def test_client_and_locks_may_be_made_outside_of_any_loop(nodes, raw, loop):
    client_of(nodes)  # unused, so it needs no close
    gc.collect()
    client = client_of(nodes)
    lock, mutex = client.get_lock("x"), client.get_mutex("y")
    assert [status.state for status in client.nodes()] == ["down"] * 5
    assert client.quorum == 3
    assert not mutex.owned()
    with pytest.raises(RuntimeError):
        lock.owned()

    async def main():
        async with lock, mutex:
            assert lock.owned()
        await client.close()

    run(main, loop)
    assert claims(raw) == []


# The start.


@in_loop
async def test_each_call_to_a_client_with_one_server_twice_tells_why_it_is_closed(nodes):
    """Not only those that wait when its first connections find that out: they may be cancelled, or have a timeout."""
    client = AsyncClient([nodes.urls[0], nodes.urls[0].replace("127.0.0.1", "localhost")])
    starting = asyncio.create_task(client.__aenter__())
    await turns(1)
    starting.cancel()
    await asyncio.wait([starting])
    lengths = []
    for _ in range(3):
        with pytest.raises(ConfigurationError, match="are the same server") as raised:
            await client.get_lock("x").acquire()
        lengths.append(len(raised.traceback))
    assert lengths[1] == lengths[2]
    await client.close()
    with pytest.raises(ClientClosedError):
        await client.get_lock("x").acquire()


@in_loop
async def test_start_goes_on_for_the_others_when_one_waiter_is_cancelled(nodes):
    for after in (1, 3, 10):
        client = client_of(nodes)
        cancelled, *others = [asyncio.create_task(client.__aenter__()) for _ in range(3)]
        others.append(asyncio.create_task(client.get_lock("x").acquire()))
        await turns(after)
        cancelled.cancel()
        await asyncio.wait([cancelled])
        assert await asyncio.gather(*others) == [client, client, True]
        await client.close()


# The end.


@uvloop_in_sweeps
def test_ending_loop_releases_its_tasks_holds(nodes, raw, loop):
    async def main():
        client, other = client_of(nodes), client_of(nodes)
        tasks.append(asyncio.create_task(_hold(client.get_lock("x"))))
        tasks.append(asyncio.create_task(_hold(client.get_mutex("y"))))
        await until(lambda: {key for _, key in claims(raw)} == {b"redsync:x", b"redsync:y"})
        tasks.append(asyncio.create_task(other.get_lock("x").acquire()))
        assert await client.get_lock("z").acquire()
        assert await other.get_lock("u").acquire()
        await until(lambda: raw[0].exists("redsync_queue:{redsync:x}"))

    tasks = []
    started_at = time.monotonic()
    run(main, loop, leaves_tasks=True)
    assert time.monotonic() - started_at < PATIENCE
    assert claims(raw) == []
    assert not raw[0].keys("redsync:client:*")


async def _hold(lock):
    async with lock:
        await asyncio.sleep(ENDLESS)


@uvloop_in_sweeps
@pytest.mark.parametrize("end", ["closed", "dropped"])
@pytest.mark.parametrize(
    "steps", [pytest.param([13, 21, 34], id="some"), pytest.param([1, 1, 2, 3, 5], id="most", marks=pytest.mark.sweep)]
)
def test_loop_that_ends_at_any_turn_of_a_clients_life_leaves_nothing(nodes, raw, loop, end, steps):
    """Each of its tasks may be cancelled before its first step."""

    async def live():
        client = client_of(nodes)
        mutex = client.get_mutex("x")
        assert await mutex.acquire()
        await turns(5)
        if end == "closed":
            await client.close()

    async def main(after):
        task = asyncio.create_task(live())
        await turns(after)
        return task

    rng, after, over = random.Random(new_seed()), 0, False
    while not over:
        task = run(functools.partial(main, after), loop, leaves_tasks=True)
        gc.collect()
        assert claims(raw) == [], after
        over = after > 250 or (task.done() and not task.cancelled())
        after += rng.choice(steps)


def test_loop_that_ends_while_nodes_hang_does_not(nodes, raw, eventually):
    async def main():
        client = client_of(nodes)
        assert await client.get_lock("x").acquire()
        stack.enter_context(hanging(nodes, *range(5)))
        tasks.append(asyncio.create_task(client.get_lock("y").acquire()))
        await turns(10)

    tasks = []
    started_at = time.monotonic()
    with contextlib.ExitStack() as stack:
        run(main, leaves_tasks=True)
        assert time.monotonic() - started_at < PATIENCE
    # Their commands were late, not lost.
    eventually(lambda: not claims(raw))


@pytest.mark.parametrize("after", [None, 1, 20, 100])
@uvloop_in_sweeps
@in_loop
async def test_dropped_client_is_closed_by_its_loop(nodes, raw, loop, after):
    """Even if its start is cancelled after some turns."""
    client = client_of(nodes)
    if after is None:
        assert await client.get_lock("x").acquire()
    else:
        starting = asyncio.create_task(client.get_lock("x").acquire())
        await turns(after)
        starting.cancel()
        await asyncio.wait([starting])
        del starting
    seen, runner, clients = weakref.ref(client), client.runner, [client]
    del client
    await asyncio.to_thread(clients.clear)
    gc.collect()
    assert seen() is None
    await until(lambda: claims(raw) == [] and not other_tasks())
    assert runner.closed


@in_loop
async def test_close_while_others_connect_or_acquire_leaves_nothing(nodes, raw):
    async def work(client, number):
        while True:
            try:
                async with client.get_lock(f"x {number % 2}"), client.get_mutex(f"y {number}"):
                    await turns(number)
            except ClientClosedError:
                return

    for met, after in itertools.product((False, True), (0, 2, 8, 20, 60)):
        client = client_of(nodes)
        if met:
            await take(client.get_lock("warm"))
        tasks = [asyncio.create_task(work(client, number)) for number in range(6)]
        await turns(after)
        await client.close()
        await asyncio.wait_for(asyncio.gather(*tasks), PATIENCE)
        await until(lambda: claims(raw) == [])


@uvloop_in_sweeps
@in_loop
async def test_close_twice_and_concurrently_is_one_close(nodes, raw, loop):
    client = client_of(nodes)
    assert await client.get_lock("x").acquire()
    await asyncio.gather(*(client.close() for _ in range(5)))
    assert not other_tasks() - {asyncio.current_task()}
    assert claims(raw) == []
    await client.close()
    with pytest.raises(ClientClosedError):
        await client.__aenter__()
    async with client_of(nodes) as other:
        await other.close()
        await other.close()


# Forks.


FORKS = """
    import asyncio, gc, os, signal, sys, traceback
    from redsync import AsyncClient

    client, unused, other = (AsyncClient(sys.argv[1:], lease=60, node_timeout=20, restart_guard=0) for _ in range(3))

    def in_child(main):
        # The child runs a new loop although the parent's is running, as with multiprocessing.
        child = os.fork()
        if not child:
            asyncio.events._set_running_loop(None)
            try:
                asyncio.run(main())
                gc.collect()
            except BaseException:
                traceback.print_exc()
                os._exit(1)
            os._exit(0)
        return child

    async def use(one, of_parent):
        lock = one.get_lock("x")
        assert of_parent.remaining() == 0.0
        assert not lock.owned()
        assert not await lock.acquire(False)
        async with one.get_lock("child") as hold:
            assert not hold.owner.startswith(PARENTS), (hold.owner, PARENTS)
        await one.close()

    async def pass_through(name):
        async with client.get_lock(name):
            return True

    async def main():
        async with other.get_lock("w"), client.get_lock("x") as hold, client.get_mutex("y"):
            waiting = asyncio.create_task(pass_through("w"))
            while not (await client.inspect("w")).waiters:
                await asyncio.sleep(0.01)
            for one in (client, unused):
                asking = asyncio.create_task(pass_through(one.id))
                await asyncio.sleep(0)  # It has sent its command, and nodes have yet to answer.
                _, status = await asyncio.to_thread(os.waitpid, in_child(lambda: use(one, hold)), 0)
                assert status == 0, status
                assert await asking
            await other.close()
            assert await waiting
            await hold.extend()
            async with unused.get_lock("z") as mine:
                assert {hold.owner[:36], mine.owner[:36]} == set(PARENTS)
            assert not [node for node in client.nodes() if node.last_error], client.nodes()
            signal.setitimer(signal.ITIMER_REAL, 0.05)
            await asyncio.sleep(60)

    PARENTS = (client.id, unused.id)
    signal.signal(signal.SIGALRM, signal.default_int_handler)
    try:
        asyncio.run(main())
    except KeyboardInterrupt:
        print("interrupted")
"""


def test_forked_child_has_its_own_clients_and_an_interrupted_parent_releases_its_holds(nodes, raw):
    """The child holds nothing and does not harm its parent's connections; nothing closes the parent's clients.

    When it forks, the parent holds locks, waits for one, and has a round under way.
    """
    # The second fork is that of a process with a thread, of which Python warns from 3.12 on.
    options = ["-W", "error", "-W", "ignore:This process:DeprecationWarning"]
    command = [sys.executable, *options, "-c", textwrap.dedent(FORKS), *nodes.urls]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert (done.returncode, done.stdout, done.stderr) == (0, "interrupted\n", "")
    assert claims(raw) == []
