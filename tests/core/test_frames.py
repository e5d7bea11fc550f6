"""Where a `with` stands, and whether its end may await, without any client."""

import asyncio
import subprocess
import sys
import types
from contextlib import AsyncExitStack, ExitStack, aclosing, asynccontextmanager

import pytest

from redsync._core import frames
from redsync._core.frames import may_await, statement


class Place:
    """Records the frames in which it is entered and left."""

    def __init__(self):
        self.seen = []

    def __enter__(self):
        self.seen.append(statement())

    def __exit__(self, *_):
        self.seen.append(statement())


class Noted:
    """Records whether its end may await."""

    def __init__(self):
        self.may_await = []

    async def __aenter__(self):
        return self

    async def __aexit__(self, kind, error, traceback):
        self.may_await.append(may_await(error))


@types.coroutine
def pause():
    yield


def drop(coroutine):
    coroutine.send(None)
    coroutine.close()


# Where it stands.


def test_plain_function_has_no_statement():
    place = Place()
    with place:
        pass
    assert place.seen == [None, None]


@pytest.mark.parametrize("by_stack", [False, True])
def test_statement_of_a_generator_is_its_frame(by_stack):
    place = Place()

    def stream():
        with ExitStack() if by_stack else place as stack:
            if by_stack:
                stack.enter_context(place)
            yield

    generator = stream()
    frame = generator.gi_frame
    next(generator)
    generator.close()
    assert place.seen == [frame, frame]


def test_statement_of_a_coroutine_and_an_async_generator_is_their_frame():
    place = Place()

    async def stream():
        with place:
            yield

    async def work():
        with place:
            async for _ in stream():
                pass

    coroutine = work()
    frame = coroutine.cr_frame
    asyncio.run(coroutine)
    begun, inner, again, ended = place.seen
    assert begun is ended is frame
    assert inner is again is not frame


def test_bottom_of_the_stack_has_no_statement():
    code = "from redsync._core.frames import statement\nprint(statement())\n"
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout == "None\n"


# May its end await?


def test_closed_async_generator_may_await():
    noted = Noted()

    @asynccontextmanager
    async def manager():
        async with noted:
            yield

    async def stream():
        async with noted, manager(), AsyncExitStack() as stack:
            await stack.enter_async_context(noted)
            yield

    async def main():
        async with aclosing(stream()) as closing:
            await anext(closing)
        left = stream()
        await anext(left)
        await asyncio.create_task(left.aclose())
        async for _ in stream():
            break
        await asyncio.sleep(0)

    asyncio.run(main())
    assert noted.may_await == [True] * 9


def test_dropped_coroutine_may_not_await():
    noted = Noted()

    @asynccontextmanager
    async def manager():
        async with noted:
            yield

    async def work():
        async with noted, manager():
            await pause()

    drop(work())
    assert noted.may_await == [False] * 2


@pytest.mark.skipif(sys.version_info < (3, 13), reason="before Python 3.13 that is not passed on")
def test_async_generator_in_a_dropped_coroutine_may_not_await():
    noted = Noted()

    async def stream():
        async with noted:
            await asyncio.get_running_loop().create_future()
            yield

    async def work():
        async for _ in stream():
            pass

    async def main():
        drop(work())

    asyncio.run(main())
    assert noted.may_await == [False]


def test_instruction_is_found_where_each_python_has_it():
    """At the traceback's instruction or after it: both cases, with any Python."""
    code = types.SimpleNamespace(co_flags=frames.CO_ASYNC_GENERATOR)
    frame = types.SimpleNamespace(f_code=code)
    resume, other = frames._RESUME, frames._RESUME ^ 1
    for at, instructions, expected in [
        (0, [resume, 1], True),
        (0, [resume, 5], True),
        (0, [resume, 3], False),
        (0, [other, 1, resume, 1], True),
        (0, [other, 1, resume, 3], False),
        (2, [resume, 1, other, 1, other, 1], False),
    ]:
        code.co_code = bytes(instructions)
        assert frames._stands_at_yield(types.SimpleNamespace(tb_frame=frame, tb_lasti=at)) is expected
