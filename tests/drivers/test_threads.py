"""The driver for threads: atomic steps, waking, and connecting threads."""

import gc
import threading
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager

import pytest
import redis

from redsync import Client, ClientClosedError
from redsync._core.effects import Broadcast, broadcast, signal
from redsync._core.quorum import Verdict
from redsync._core.scripts import Command
from redsync._drivers import any_runner, threads
from redsync._drivers.environment import clock
from redsync._drivers.maintenance import Maintenance
from redsync._drivers.requests import Waitable
from redsync._signal_safe import SafeEvent
from tests.drivers.conftest import LOOKS, Password, script, stand_by
from tests.support.forks import in_child
from tests.support.injection import Interruption
from tests.support.locks import PATIENCE
from tests.support.traced import at_each_line


@pytest.fixture
def client(lasting):
    return lasting


@pytest.fixture
def runner(client):
    return client.runner


# Steps.


def test_steps_are_atomic_over_many_threads(runner):
    counter = [0]

    def count(n):
        for _ in range(n):
            # No effect in between: no other steps may run, although the interpreter would switch threads here.
            before = counter[0]
            for _ in range(20):
                pass
            counter[0] = before + 1
            yield from signal(b"unused")

    with ThreadPoolExecutor(8) as pool:
        list(pool.map(lambda _: runner.run(count(500)), range(8)))
    assert counter == [4000]


def test_waiter_does_not_use_more_memory_with_each_look(runner):
    """A standby may ask every second for months."""
    assert runner.run(stand_by(runner.owner())) < LOOKS / 2


# Sleeping and waking.


def test_wake_up_just_before_a_sleeper_can_be_woken_is_not_lost(runner, monkeypatch):
    class Hasty(Waitable):
        """Is over just before the sleeper sets its waker."""

        @property
        def waker(self):
            return self.set

        @waker.setter
        def waker(self, waker):
            self.done = True
            self.set = waker

        set = None

    monkeypatch.setattr(threads, "_LONGEST_SLEEP", 60.0)
    sleeper = threading.Thread(target=runner.life.sleep, args=(Hasty(), clock() + 60.0), daemon=True)
    sleeper.start()
    sleeper.join(PATIENCE)
    assert not sleeper.is_alive()


# Connecting threads.


@contextmanager
def no_more_threads():
    """The system can start no more threads."""
    before = threading.stack_size(1 << 47)
    try:
        yield
    finally:
        threading.stack_size(before)


@pytest.mark.parametrize("agent", [False, True], ids=["plain", "with an agent that wraps threads' start"])
def test_node_is_connected_once_there_are_threads_again(client, nodes, monkeypatch, eventually, *, agent):
    if agent:
        start = threading.Thread.start

        def wrapped(thread):
            return start(thread)

        monkeypatch.setattr(threading.Thread, "start", wrapped)
    with client.get_lock("x"):
        pass
    maintenance = client.runner.life.maintenance._thread
    with no_more_threads():
        nodes.restart(0)
        eventually(lambda: "thread" in (client.nodes()[0].last_error or ""))
        with client.get_lock("x"):
            pass
    eventually(lambda: client.nodes()[0].state == "up")
    assert maintenance.is_alive()


def test_client_without_threads_says_so_and_leaves_nothing(nodes):
    with no_more_threads(), pytest.raises(RuntimeError, match="can't start new thread"):
        Client(nodes.urls, restart_guard=0.0)


def test_first_use_that_was_interrupted_can_be_repeated(nodes, monkeypatch):
    """In the child of a fork, too, which connects at its first use."""
    await_begun, struck = Maintenance.await_begun, []

    def strike(maintenance, timeout):
        if len(struck) < 2:
            struck.append(timeout)
            raise Interruption
        await_begun(maintenance, timeout)

    monkeypatch.setattr(Maintenance, "await_begun", strike)
    with pytest.raises(Interruption):
        Client(nodes.urls, restart_guard=0.0)
    struck[:] = [None, None]
    with Client(nodes.urls, restart_guard=0.0) as client:

        def use():
            struck.clear()
            monkeypatch.setattr(SafeEvent, "is_set", lambda event: False)
            said = []
            for _ in range(3):
                try:
                    said.append(str(client.get_lock("x").acquire(timeout=PATIENCE)))
                except Interruption:
                    said.append("interrupted")
            client.close()
            return " ".join(said)

        assert in_child(use) == "interrupted interrupted True"


def test_first_try_that_does_not_wait_succeeds_with_nodes_far_away(make_client, proxies):
    for proxy in proxies:
        proxy.delay = 0.1
    lock = make_client([proxy.url for proxy in proxies], node_timeout=5.0).get_lock("x")
    assert lock.acquire(blocking=False)
    lock.release()


def test_node_is_tried_again_even_if_the_application_exits_when_asked_for_a_password(nodes, make_client, eventually):
    password = Password(exits=2)
    guarded = redis.Redis.from_url(nodes.urls[0], credential_provider=password)
    client = make_client([guarded, *[redis.Redis.from_url(url) for url in nodes.urls[1:3]]])
    with client.get_lock("x"):
        pass
    eventually(lambda: password.asked > 2)


@pytest.mark.filterwarnings("ignore:This process:DeprecationWarning")  # is multi-threaded, and forks
def test_child_closes_client_although_another_thread_was_closing_it_during_the_fork(client):
    """It ends there, at the latest when the child ends."""
    closing, go_on = threading.Event(), threading.Event()

    def close():
        with client.runner.life._opening:  # held for an instant, or until the threads of a new client have ended
            closing.set()
            assert go_on.wait(PATIENCE)

    thread = threading.Thread(target=close)
    thread.start()
    assert closing.wait(PATIENCE)
    assert in_child(lambda: str(client.close())) == "None"
    go_on.set()
    thread.join()


def test_loss_is_reported_although_no_more_threads_can_start(make_lasting, raw, monkeypatch, eventually):
    """As on Python 3.12 once the main thread has ended."""
    lost = []
    lock = make_lasting(lease=3.0, listeners=[lost.append]).get_lock("x")

    def fail(thread):
        raise RuntimeError("can't start new thread")

    assert lock.acquire(timeout=PATIENCE)
    until = clock() + lock.remaining()
    eventually(lambda: clock() + lock.remaining() > until + 0.1)  # the watchdog runs
    monkeypatch.setattr(threading.Thread, "start", fail)
    for node in raw:
        node.delete("redsync:x")
    eventually(lambda: lost)


@pytest.mark.filterwarnings("ignore:This process:DeprecationWarning")  # is multi-threaded, and forks
def test_first_command_of_the_child_of_a_fork_names_the_processes_that_the_child_has_met(make_lasting):
    """With a restart guard, nodes whose process a command does not name grant nothing."""
    runner = make_lasting(node_timeout=5.0).runner

    def ask():
        command = Command(script("echo", "return ARGV[1]"), (b"k",), (runner.session.processes.guard(1),))
        tally = yield from broadcast(Broadcast(command, runner.owner(), lambda reply: reply != b"1,-,", PATIENCE))
        return tally.verdict

    assert in_child(lambda: str(runner.run(ask()))) == str(Verdict.WON)


def test_child_of_a_fork_may_collect_an_object_that_uses_the_client_as_it_begins():
    """Python 3.11 may collect wherever it allocates."""
    runner, thresholds = Client(["redis://127.0.0.1:1"]).runner, gc.get_threshold()

    class User:
        def __init__(self):
            self.me = self

        def __del__(self):
            runner._lives.pop(0, None)

    try:
        for allocations in range(1, 20):
            runner._lives[0] = runner.life
            gc.collect()
            User()
            gc.set_threshold(allocations)
            runner.close_copies()
            gc.set_threshold(*thresholds)
    finally:
        gc.set_threshold(*thresholds)


def test_exit_closes_all_clients_although_others_are_made_meanwhile(monkeypatch):
    monkeypatch.setattr(any_runner, "_runners", type(any_runner._runners)())
    before, later = [Client(["redis://127.0.0.1:1"]) for _ in range(2)], []
    with at_each_line(lambda: later.append(Client(["redis://127.0.0.1:1"]))):
        threads._close_all()
    assert all(client.runner.closed for client in before)


def test_client_closed_while_its_thread_starts_leaves_no_thread(nodes, monkeypatch):
    """Another thread of a fork's child may close it then, and finds no thread to end."""
    start, started = Maintenance.start, []

    def start_and_close(maintenance):
        start(maintenance)
        started.append(maintenance)
        with ThreadPoolExecutor(1) as other:
            other.submit(client.close).result()

    def acquire():
        monkeypatch.setattr(Maintenance, "start", start_and_close)
        try:
            client.get_lock("x").acquire()
        except ClientClosedError:
            return f"closed, alive: {started[0]._thread.is_alive()}"
        return "acquired"

    with Client(nodes.urls, restart_guard=0.0) as client:
        assert in_child(acquire) == "closed, alive: False"
