"""Without epoll, poll or select serves behind the same methods."""

import os
import selectors
import threading
import time

import pytest

from redsync._drivers import maintenance
from redsync._drivers.pollers import BOTH, READ, WRITE, SelectorPoller, make_poller
from redsync._drivers.transport import Transport


@pytest.fixture
def no_poll(monkeypatch):
    """Take poll away, as on Windows."""
    monkeypatch.delattr(selectors, "PollSelector", raising=False)


@pytest.fixture(params=["epoll", "poll", "select"])
def poller(request):
    if request.param == "select":
        request.getfixturevalue("no_poll")
    poller = make_poller() if request.param == "epoll" else SelectorPoller()
    yield poller
    poller.close()


@pytest.fixture
def pipe():
    near, far = os.pipe()
    yield near, far
    os.close(near)
    os.close(far)


def test_poll_returns_what_is_ready(poller, pipe):
    near, far = pipe
    poller.register(near, READ)
    poller.register(far, BOTH)
    assert poller.poll(1.0) == [(far, WRITE)]
    os.write(far, b"x")
    assert sorted(poller.poll(1.0)) == sorted([(near, READ), (far, WRITE)])
    poller.unregister(far)
    assert poller.poll(1.0) == [(near, READ)]


def test_poll_returns_nothing_at_its_timeout(poller, pipe):
    poller.register(pipe[0], READ)
    started_at = time.monotonic()
    assert poller.poll(0.05) == []
    assert time.monotonic() - started_at >= 0.049
    assert poller.poll(0) == []


def test_poll_sees_what_another_thread_registers_meanwhile(poller, pipe):
    near, far = pipe
    os.write(far, b"x")
    timer = threading.Timer(0.05, poller.register, (near, READ))
    timer.start()
    try:
        assert poller.poll(5.0) == [(near, READ)]
    finally:
        timer.join()


def test_modify_changes_what_is_reported(poller, pipe):
    poller.register(pipe[1], WRITE)
    assert poller.poll(0)
    poller.modify(pipe[1], READ)
    assert not poller.poll(0)


@pytest.mark.parametrize("system", ["macOS", "Windows"])
def test_client_works_without_epoll(system, request, monkeypatch, redsync_nodes):
    if system == "Windows":
        request.getfixturevalue("no_poll")
    monkeypatch.setattr(Transport, "make_poller", SelectorPoller)
    monkeypatch.setattr(maintenance, "make_poller", SelectorPoller)
    counter = 0
    with redsync_nodes.client(lease=2.0) as client:

        def work() -> None:
            nonlocal counter
            for _ in range(20):
                with client.get_lock("x"):
                    seen = counter
                    time.sleep(0.0005)
                    counter = seen + 1

        threads = [threading.Thread(target=work) for _ in range(6)]
        for thread in threads:
            thread.start()
        redsync_nodes.kill(0)
        redsync_nodes.pause(1)
        for thread in threads:
            thread.join()
        redsync_nodes.resume(1)
    assert counter == 120
