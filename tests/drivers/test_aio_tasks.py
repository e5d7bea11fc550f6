"""Tasks as owners, and scopes that cancel a body, without a client."""

import asyncio
import itertools
from contextlib import suppress

import pytest

from redsync._core.holds import Owner
from redsync._drivers.aio import TaskOwners, TaskScope
from tests.aio_support import in_loop, turns, until

ENDLESS = 30


class Book:
    """Owners, and those that have ended."""

    def __init__(self):
        serials = itertools.count(1)
        self.ended = []
        self.owners = TaskOwners(lambda: Owner("client", next(serials)), self.ended.append)


@in_loop
async def test_owner_is_the_task_and_stays_the_same():
    book = Book()

    async def ask():
        first = book.owners()
        await asyncio.sleep(0)
        assert book.owners() is first
        return first

    here = book.owners()
    others = await asyncio.gather(*(ask() for _ in range(20)))
    assert len({owner.wire for owner in [here, *others]}) == 21
    assert book.owners() is here


@pytest.mark.parametrize("ending", ["return", "error", "cancelled"])
@in_loop
async def test_ended_task_is_reported_once_and_forgotten(ending):
    book = Book()

    async def work():
        owners.append(book.owners())
        book.owners()
        if ending == "error":
            raise KeyError("mine")
        if ending == "cancelled":
            await asyncio.sleep(ENDLESS)

    owners = []
    task = asyncio.create_task(work())
    await turns(2)
    task.cancel()
    await asyncio.wait([task])
    assert task.cancelled() or task.exception() is None or isinstance(task.exception(), KeyError)
    await until(lambda: book.ended)
    assert book.ended == owners
    assert book.owners._owners == {}


def test_owner_outside_a_task_raises():
    with pytest.raises(RuntimeError):
        Book().owners()


# Scopes.


@in_loop
async def test_scope_cancels_at_the_next_await():
    scope = TaskScope()
    scope.cancel()
    reached = True
    with pytest.raises(asyncio.CancelledError) as info:
        await asyncio.sleep(ENDLESS)
    assert reached
    assert scope.close(info.value) is True
    assert asyncio.current_task().cancelling() == 0


@in_loop
async def test_scope_distinguishes_its_own_cancellation_from_another():
    async def work(also):
        scope = TaskScope()
        if also:
            scope.cancel()
        begun.set()
        try:
            await asyncio.sleep(ENDLESS)
        except asyncio.CancelledError as error:
            is_own.append(scope.close(error))
            raise

    is_own = []
    for also in (False, True):
        begun = asyncio.Event()
        task = asyncio.create_task(work(also))
        await begun.wait()
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert task.cancelling() == 1
    assert is_own == [False, False]


@in_loop
async def test_scope_whose_body_raised_another_error_withdraws_its_cancellation():
    scope = TaskScope()
    scope.cancel()
    with pytest.raises(asyncio.CancelledError):
        await asyncio.sleep(ENDLESS)
    assert scope.close(KeyError("mine")) is False
    assert asyncio.current_task().cancelling() == 0


@pytest.mark.parametrize("cancels", [False, True])
@in_loop
async def test_scope_in_a_closed_generator_tells_if_another_cancelled_the_task(cancels):
    """The cancellation is raised where the task uses the generator."""
    scopes = [TaskScope(), TaskScope()]
    for other, scope in enumerate(scopes):
        if cancels:
            scope.cancel()
        if other:
            asyncio.current_task().cancel()
        with suppress(asyncio.CancelledError):
            await turns(3)
        assert scope.close(GeneratorExit()) is not bool(other)
    assert asyncio.current_task().uncancel() == 0


@in_loop
async def test_nested_scopes_leave_the_cancellation_to_the_outermost_that_asked():
    outer, inner = TaskScope(), TaskScope()
    outer.cancel()
    inner.cancel()
    with pytest.raises(asyncio.CancelledError) as info:
        await asyncio.sleep(ENDLESS)
    assert inner.close(info.value) is False
    assert outer.close(info.value) is True
    assert asyncio.current_task().cancelling() == 0
