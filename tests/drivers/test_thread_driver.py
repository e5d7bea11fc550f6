"""Any error of a signal handler propagates: no code mistakes it for a failure of a node, or for its own."""

from contextlib import suppress

import pytest

from redsync import Client, LeaseLostError, NodeChanged, NotOwnedError
from redsync._core.effects import Wait, wait
from redsync._drivers.process import clock
from tests.support.leftovers import claims
from tests.support.locks import PATIENCE

STRIDE = 5
"""A sweep tries every fifth of about 300 points; the seed says which."""

KINDS = {
    "TimeoutError": (TimeoutError, "time limit"),  # raised by SIGALRM handlers; an OSError
    "BlockingIOError": (BlockingIOError, "busy"),  # raised by a socket that accepts nothing now
    "ValueError": (ValueError, "odd"),  # raised by the library for a malformed reply
    "IndexError": (IndexError, "none"),  # raised for a reply to no command
    "LeaseLostError": (LeaseLostError, "other", "it was lost"),  # raised by `check()` of another lock
}


@pytest.fixture(params=KINDS)
def error(request):
    return KINDS[request.param]


@pytest.fixture
def downs():
    return []


@pytest.fixture
def client(nodes, downs):
    """A client whose lease is a minute, so any leftover is a bug."""

    def listen(event):
        if isinstance(event, NodeChanged) and event.state == "down":
            downs.append(event)

    with Client(nodes.urls, lease=60.0, restart_guard=0.0, listeners=[listen]) as client:
        yield client


@pytest.fixture
def come_out(inject, error, raw, downs, eventually, points):  # noqa: PLR0917  (fixtures)
    """Return a function that raises an error at each point of a function, and checks that it propagates."""

    def held():
        return {key for node in raw for key in claims(node)}

    def strike():
        # A new one each time, because it keeps the frames of its traceback.
        raise error[0](*error[1:])

    def come_out(prepare):
        swallowed = []
        for point in points(STRIDE):
            function, clean_up = prepare(point)
            try:
                where = inject(point, function, strike)
            except error[0]:
                pass
            else:
                if where is None:
                    clean_up()
                    break
                swallowed.append(where)
            clean_up()
            eventually(lambda: not held())
        assert swallowed == []
        assert downs == []
        assert point > 50

    return come_out


def nothing():
    """There is nothing to clean up."""


def test_error_in_a_with_statement_propagates(come_out, client):
    def prepare(point):
        lock = client.get_lock(f"x {point}", timeout=PATIENCE)

        def use():
            with lock:
                pass

        return use, nothing

    come_out(prepare)


def test_error_in_acquire_and_release_propagates(come_out, client):
    def prepare(point):
        lock = client.get_lock(f"x {point}")

        def use():
            assert lock.acquire(timeout=PATIENCE)
            lock.release()

        def clean_up():
            with suppress(NotOwnedError):
                lock.release()

        return use, clean_up

    come_out(prepare)


def test_error_in_a_sleep_propagates(come_out, client):
    def sleep():
        for _ in range(5):
            yield from wait(Wait(clock() + 0.001))

    come_out(lambda point: (lambda: client.runner.run(sleep()), nothing))


def test_error_that_looks_like_the_end_of_a_protocol_propagates(client):
    def end(effect):
        raise StopIteration("not the result")

    runner = client.runner
    with pytest.raises(RuntimeError, match="StopIteration"):
        runner._drive(asleep(), lambda *_: end(None))


def asleep():
    yield from wait(Wait(clock()))
