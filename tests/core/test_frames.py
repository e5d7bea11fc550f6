"""Where a `with` stands, without any client."""

import asyncio
import subprocess
import sys
from contextlib import ExitStack

import pytest

from redsync._core.frames import statement


class Place:
    """Records the frames in which it is entered and left."""

    def __init__(self):
        self.seen = []

    def __enter__(self):
        self.seen.append(statement())

    def __exit__(self, *_):
        self.seen.append(statement())


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
