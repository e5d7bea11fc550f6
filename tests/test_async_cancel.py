"""Operations cancelled at any turn of the loop, and again at any later one: what they leave.

A cancelled operation leaves the lock either owned and releasable, or gone from every node; no place in any queue, no
task, and nothing that a loop complains about. The lease is a minute: a claim that is gone was released.
"""

import asyncio
import random
import select
from contextlib import asynccontextmanager, suppress
from functools import partial

import pytest

from redsync import HoldOrphaned, QuorumError, RedsyncError
from tests.aio_support import (
    claims,
    client_of,
    in_loop,
    no_uvloop,
    other_tasks,
    structures,
    take,
    turns,
    until,
    uvloop_in_sweeps,
)
from tests.support.locks import PATIENCE
from tests.support.sweeps import new_seed, swept

sweep = pytest.mark.sweep
states_of_nodes = pytest.mark.parametrize("state", ["spread", *swept("paused")])
"""Spread: each node is heard some turns of the loop after the previous one. Paused: one is silent."""


class Ground:
    """Two clients, and the expected state of the nodes after each trial."""

    def __init__(self, client, other, awake, events):
        self.client, self.other, self.awake, self.events = client, other, awake, events
        self._tasks = other_tasks()

    async def is_clean(self, held=()):
        """Check that nothing is left, and that the other client can acquire the lock if it is free."""
        await until(lambda: claims(self.awake) == sorted((i, key) for i in range(len(self.awake)) for key in held))
        await until(lambda: structures(self.client) == {})
        assert not [event for event in self.events if isinstance(event, HoldOrphaned)]
        await until(lambda: other_tasks() <= self._tasks)
        if not held:
            lock = self.other.get_lock("x")
            assert await lock.acquire(timeout=PATIENCE)  # A busy node may miss a round.
            await lock.release()


@asynccontextmanager
async def nodes_in(state, nodes, raw):
    """Pause one of the nodes if `state` says so, and give connections to the others; at the end nothing is left."""
    if state == "paused":
        nodes.pause(4)
    try:
        yield raw[:4] if state == "paused" else raw
    finally:
        nodes.resume(4)
    await until(lambda: claims(raw) == [])


@asynccontextmanager
async def ground_of(nodes, raw, state):
    events = []
    with pytest.MonkeyPatch.context() as patch:
        if state == "spread":
            epoll = select.epoll
            patch.setattr(select, "epoll", lambda: _LateEpoll(epoll()))
        async with (
            client_of(nodes, listeners=[events.append]) as client,
            client_of(nodes) as other,
            nodes_in(state, nodes, raw) as awake,
        ):
            yield Ground(client, other, awake, events)


class _LateEpoll:
    """An epoll that reports each link some turns of the loop later than the previous one."""

    def __init__(self, epoll):
        self._epoll = epoll
        self._turns = {}

    def __getattr__(self, name):
        return getattr(self._epoll, name)

    def register(self, fd, events):
        delay = 2 * len(self._turns)
        self._turns[fd] = [delay, delay]
        self._epoll.register(fd, events)

    def unregister(self, fd):
        del self._turns[fd]
        self._epoll.unregister(fd)

    def poll(self, timeout):
        return [(fd, events) for fd, events in self._epoll.poll(timeout) if self._is_due(self._turns[fd])]

    def _is_due(self, turns):
        delay, left = turns
        turns[1] = left - 1 if left else delay
        return not left


async def cancel_at(operation, k, j):
    """Start it, cancel it k turns of the loop after its start, and again j turns later if j is not 0.

    Returns the task, and whether each cancellation came before its end.
    """
    begun = asyncio.Event()
    task = asyncio.create_task(operation(begun))
    await begun.wait()
    await turns(k)
    first = task.cancel()
    second = False
    if j and first:
        await turns(j)
        second = task.cancel()
    await asyncio.wait([task], timeout=20)
    assert task.done(), "it hangs"
    if not task.cancelled() and task.exception() is not None:
        raise task.exception()
    if first:
        assert task.cancelled(), "the cancellation was swallowed"
    return first, second


async def for_every_turn(operation, check, *, limit=None):
    """Cancel it at any turn until its end, at most at `limit`, and again at any later turn.

    It leaves out more and more of the turns, by the seed.
    """
    rng = random.Random(new_seed())
    k, trials, first = 0, 0, True
    while first and (limit is None or k <= limit):
        j, second = 0, True
        while first and second:
            trials += 1
            try:
                first, second = await cancel_at(operation, k, j)
                await check()
            except BaseException as error:
                error.add_note(f"cancelled after {k} turns, again after {j}")
                raise
            second = second or not j
            j += rng.randrange(1, 3 + j)
        k += rng.randrange(1, 3 + k // 3)
    return trials


async def persist(step, is_unfinished):
    """Repeat a step until it is done, even if cancelled."""
    cancelled = None
    while is_unfinished():
        try:
            await step()
        except asyncio.CancelledError as error:
            cancelled = error
    if cancelled is not None:
        raise cancelled


async def give_back(lock):
    """Release everything, even if cancelled."""
    await persist(lock.release, lock.owned)


KINDS = {
    "lock": lambda client: client.get_lock("x"),
    "mutex": lambda client: client.get_mutex("x"),
    "multi": lambda client: client.get_multi_lock(
        client.get_mutex("y"), client.get_lock("x"), client.get_fair_lock("z")
    ),
}


# Cancelled operations that leave nothing.


async def acquire(lock, begun):
    begun.set()
    try:
        assert await lock.acquire()
    except asyncio.CancelledError:
        assert not any(each.hold_count() for each in getattr(lock, "_locks", [lock]))
        raise
    finally:
        await give_back(lock)


async def release(lock, begun):
    assert await lock.acquire()
    begun.set()
    try:
        await lock.release()
    finally:
        assert not any(each.hold_count() for each in getattr(lock, "_locks", [lock]))


async def extend(lock, begun):
    async with lock as hold:
        begun.set()
        try:
            await hold.extend(70)
        finally:
            hold.check()
            assert lock.owned()


async def enter_and_leave(lock, begun):
    begun.set()
    try:
        async with lock as hold:
            hold.check()
            await turns(3)
    finally:
        assert not lock._entered


@pytest.mark.parametrize(
    ("kind", "operation"),
    [
        *(("lock", operation) for operation in (acquire, release, extend, enter_and_leave)),
        *(("multi", operation) for operation in (acquire, release)),
        *swept(("mutex", acquire), ("mutex", release), ("multi", enter_and_leave)),
    ],
)
@pytest.mark.parametrize(
    ("state", "loop"),
    [("spread", "asyncio"), *swept(("paused", "asyncio")), pytest.param("healthy", "uvloop", marks=[no_uvloop, sweep])],
)
@in_loop
async def test_operation_cancelled_at_any_turn_leaves_nothing(nodes, raw, state, kind, operation, *, loop):
    async with ground_of(nodes, raw, state) as ground:
        lock = KINDS[kind](ground.client)
        trials = await for_every_turn(partial(operation, lock), ground.is_clean, limit=100 if kind == "multi" else None)
        assert trials > 1 or state != "spread"  # quick nodes may all answer in the first turn


# Cancelled operations that leave others unchanged.


@pytest.mark.parametrize(
    ("kind", "timeout", "limit"), [("lock", None, 300), ("lock", 0.004, None), *swept(("mutex", None, 300))]
)
@states_of_nodes
@in_loop
async def test_waiting_acquire_cancelled_at_any_turn_leaves_no_place_in_a_queue(
    nodes, raw, state, kind, *, timeout, limit
):
    async with ground_of(nodes, raw, state) as ground:
        lock, holder = KINDS[kind](ground.client), KINDS[kind](ground.other)
        await holder.acquire()

        async def operation(begun):
            begun.set()
            with suppress(QuorumError):  # where the machine is busy
                assert await lock.acquire(timeout=timeout) is False

        await for_every_turn(operation, partial(ground.is_clean, held=[b"redsync:x"]), limit=limit)
        await holder.release()
        await ground.is_clean()


@states_of_nodes
@in_loop
async def test_acquire_cancelled_during_a_hand_over_leaves_nothing(nodes, raw, state):
    """The wake-up, the try that follows and the cancellation come in every order; the next waiter waits no longer."""
    async with ground_of(nodes, raw, state) as ground:
        lock, holder = ground.client.get_lock("x"), ground.other.get_lock("x")

        async def operation(begun):
            try:
                waiting = asyncio.create_task(_wait_for_waiters(raw[0], 1))
                releasing = asyncio.create_task(_release_when(holder, waiting, begun))
                await lock.acquire()
            finally:
                await give_back(lock)
                await persist(lambda: asyncio.wait([releasing]), lambda: not releasing.done())

        async def check():
            await ground.is_clean()
            assert await holder.acquire()

        assert await holder.acquire()
        await for_every_turn(operation, check, limit=200)
        await holder.release()


async def _wait_for_waiters(node, n):
    await until(lambda: node.zcard("redsync_queue:{redsync:x}") >= n)


async def _release_when(holder, waiting, begun):
    await waiting
    begun.set()
    await asyncio.sleep(0)
    # The task that acquired it has ended.
    (state,) = holder._runner.session.holds
    await holder._runner.run(holder._release_steps(state, 1))


@in_loop
async def test_wait_for_a_loss_cancelled_at_any_turn_leaves_no_sleeper(nodes, raw):
    """That of a multi-lock sleeps on one of its holds, and listens to the others."""
    async with ground_of(nodes, raw, "healthy") as ground, KINDS["multi"](ground.client) as hold:
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


# A client's start and end.


healthy_or_paused = pytest.mark.parametrize("state", ["healthy", *swept("paused")])


@healthy_or_paused
@uvloop_in_sweeps
@in_loop
async def test_first_use_cancelled_at_any_turn_leaves_a_usable_client(nodes, raw, state, loop):
    """The task that connects is not the one that waits."""
    rng, k, ended = random.Random(new_seed()), 0, False
    async with nodes_in(state, nodes, raw) as awake, client_of(nodes) as other:
        while not ended:
            client = client_of(nodes)
            lock = client.get_lock("x")
            task = asyncio.create_task(take(lock))
            await turns(k)
            ended = not task.cancel()
            await asyncio.wait([task], timeout=20)
            assert task.cancelled() or task.exception() is None
            await until(lambda: claims(awake) == [])
            async with other.get_lock("x"):
                with suppress(QuorumError):  # where the machine is busy
                    assert await lock.acquire(False) is False
            await client.close()
            await until(lambda: claims(awake) == [])
            k += rng.randrange(1, 9 + k // (1 if state == "paused" else 10))
    assert k > 10


@healthy_or_paused
@in_loop
async def test_close_cancelled_at_any_turn_finishes_by_itself(nodes, raw, state):
    rng, k, ended = random.Random(new_seed()), 1, False
    async with nodes_in(state, nodes, raw) as awake:
        while not ended:
            client = client_of(nodes, node_timeout=0.05)
            lock, mutex = client.get_lock("x"), client.get_mutex("y")
            assert await lock.acquire()
            assert await mutex.acquire()
            task = asyncio.create_task(client.close())
            await turns(k)
            ended = not task.cancel()
            await turns(rng.randrange(3))
            task.cancel()
            await asyncio.wait([task])
            with pytest.raises(RedsyncError):
                await lock.acquire()
            await until(lambda: claims(awake) == [])
            assert len(client.runner.session.holds) == 0
            await client.close()
            await until(lambda: not other_tasks())
            k += rng.randrange(1, 3 + k // (2 if state == "paused" else 5))
    assert k > 3, "it was cancelled more than once"
