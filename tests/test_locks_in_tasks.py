"""Locks of a client for threads in asyncio tasks: a thread is one owner, so two tasks of it would both be inside."""

import asyncio

import pytest

from redsync import ReentrantCallError
from tests.support.kinds import LOCKS

MAKERS = {
    **{kind: make for kind, make in LOCKS.items() if kind != "mutex"},
    "multi": lambda client: client.get_multi_lock(client.get_lock("x"), client.get_lock("y")),
}


@pytest.fixture(params=MAKERS)
def lock(request, client):
    return MAKERS[request.param](client)


async def enter(lock):
    with lock:
        pass


def test_second_task_of_a_thread_is_refused_and_changes_nothing(lock):
    async def try_once():
        lock.acquire(False)

    async def hold(count):
        with lock:
            for use in (enter(lock), try_once()):
                with pytest.raises(ReentrantCallError, match="AsyncClient"):
                    await asyncio.create_task(use)
            await enter(lock)  # this task may enter again
            assert lock.hold_count() == count

    async def main():
        await hold(1)
        await asyncio.create_task(enter(lock))

    asyncio.run(main())
    with lock:  # which the thread holds around the loop
        asyncio.run(enter(lock))
        asyncio.run(hold(2))
        assert lock.owned()
    assert not lock.owned()


def test_reader_is_refused_while_another_task_of_its_thread_writes(client):
    lock = client.get_read_write_lock("x")

    async def main():
        with lock.write_lock:
            with pytest.raises(ReentrantCallError):
                await asyncio.create_task(enter(lock.read_lock))
            await enter(lock.read_lock)

    asyncio.run(main())


def test_lock_of_a_multi_lock_is_refused_too_and_a_mutex_is_only_busy(client):
    part, mutex = client.get_lock("y"), client.get_mutex("x")

    async def try_once():
        return mutex.acquire(False)

    async def main():
        with client.get_multi_lock(mutex, part):
            with pytest.raises(ReentrantCallError):
                await asyncio.create_task(enter(part))
            assert await asyncio.create_task(try_once()) is False

    asyncio.run(main())


def test_hold_that_an_ended_task_left_is_its_threads(lock):
    async def leave():
        assert lock.acquire()

    async def main():
        await asyncio.create_task(leave())
        assert lock.acquire(False)
        lock.release()
        lock.release()

    asyncio.run(main())
    assert not lock.owned()
