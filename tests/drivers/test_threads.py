"""The driver for threads: atomic steps, owners, and interrupted protocols."""

import os
import signal as signals
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from functools import partial

import pytest
import redis
from redis.credentials import CredentialProvider

from redsync import Client, LeaseLostError, QuorumError
from redsync._core.effects import Broadcast, Command, Tell, Wait, broadcast, signal, tell, wait
from redsync._drivers import threads
from redsync._drivers.process import clock
from tests.drivers.conftest import LOOKS, become, stand_by
from tests.support.locks import PATIENCE
from tests.support.sweeps import swept
from tests.support.traced import at_each_line


@pytest.fixture
def client(nodes):
    with Client(nodes.urls, lease=60.0, restart_guard=0.0) as client:
        with client.get_lock("warm"):
            pass
        yield client


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


def test_effects_are_performed_without_the_monitor(runner, eventually):
    """A sleeping protocol delays no other."""

    def sleep():
        yield from wait(Wait(clock() + 60, b"sleeper", unless=lambda: False))
        return clock()

    with ThreadPoolExecutor(1) as pool:
        sleeper = pool.submit(runner.run, sleep())
        for _ in range(20):
            runner.run(ring(b"unused"))
        assert not sleeper.done()
        eventually(lambda: runner.run(ring(b"sleeper")) or sleeper.done())


def ring(key):
    yield from signal(key)


def test_waiter_does_not_use_more_memory_with_each_look(runner, make_script):
    """A standby may ask every second for months."""
    assert runner.run(stand_by(runner.owner(), make_script("echo", "return ARGV[1]"))) < LOOKS / 2


def test_run_returns_a_protocols_result_and_raises_its_error(runner):
    def fail():
        yield from signal(b"unused")
        raise KeyError("mine")

    def succeed():
        yield from signal(b"unused")
        return "mine"

    with pytest.raises(KeyError, match="mine"):
        runner.run(fail())
    assert runner.run(succeed()) == "mine"


def test_owners_are_threads_and_never_reused(runner):
    owners = []

    def note():
        owners.append((runner.owner(), runner.owner()))

    for _ in range(20):
        thread = threading.Thread(target=note)
        thread.start()
        thread.join()
    assert all(first is second for first, second in owners)
    assert len({first.wire for first, _ in owners}) == 20
    assert runner.owner() is runner.owner()


# Sleeping and waking.


def test_signals_are_never_lost_between_check_and_sleep(runner):
    """A thread checks a value and sleeps until another thread changes it, many times, without a timeout."""
    rounds = 1000
    turn = [0]

    def play(me):
        for number in range(me, rounds, 2):
            while turn[0] != number:
                yield from wait(Wait(clock() + 30, b"turn", unless=lambda number=number: turn[0] == number))
            turn[0] += 1
            yield from signal(b"turn")

    started_at = time.monotonic()
    with ThreadPoolExecutor(2) as pool:
        list(pool.map(lambda me: runner.run(play(me)), range(2)))
    assert turn == [rounds]
    assert time.monotonic() - started_at < 20


# Interruptions.


def test_protocol_is_interrupted_at_its_effect_and_cleans_up(runner, boom, raw, make_script):
    append = make_script("append", "redis.call('rpush', KEYS[1], ARGV[1]) return 1")
    owner = runner.owner()
    for node in raw:
        node.script_load(append.source)
    seen = []

    def unless():
        raise boom

    def work():
        try:
            yield from wait(Wait(clock() + 30, b"key", unless=unless))
        except boom as error:
            seen.append(error)
            yield from tell(Tell(Command(append, (b"list",), (b"told",)), owner))
            command = Command(append, (b"list",), (b"asked",))
            tally = yield from broadcast(Broadcast(command, owner, lambda reply: True, 2.0))
            seen.append(tally.won)
            raise

    with pytest.raises(boom):
        runner.run(work())
    assert seen[1:] == [True]
    assert sum(node.lrange("list", 0, -1) == ["told", "asked"] for node in raw) >= 2


STRIDE = 5
"""A sweep tries every fifth of about 200 points; the seed says which."""


@pytest.fixture
def interrupt(interrupt_at_points, client):
    return partial(interrupt_at_points, [client], STRIDE)


@pytest.fixture(params=["lock", *swept("mutex")])
def make_lock(request, client):
    """Make locks of both kinds."""
    return getattr(client, f"get_{request.param}")


def enter_and_leave(lock):
    with lock:
        pass


def is_free(lock):
    """Check that the same object is usable again, and knows no earlier `with`."""
    if lock.hold_count():
        return "it counts a hold"
    with lock as hold:
        hold.check()
    return "the next `with` did not release it" if lock.hold_count() else None


def test_acquire_interrupted_at_any_point_leaves_nothing_held(interrupt, make_lock):
    interrupt(
        lambda point: make_lock(f"x {point}"),
        lambda lock: lock.acquire(timeout=PATIENCE),
        lambda lock: lock.hold_count(),
    )


def test_with_interrupted_at_any_point_leaves_nothing_held(interrupt, make_lock):
    interrupt(lambda point: make_lock(f"x {point}"), enter_and_leave, is_free)


def test_with_interrupted_while_an_error_propagates_leaves_nothing_held(interrupt, make_lock):
    def fail(lock):
        try:
            with lock:
                raise KeyError("the body's own")
        except KeyError:
            pass

    interrupt(lambda point: make_lock(f"x {point}"), fail, is_free)


def test_release_interrupted_at_any_point_leaves_nothing_behind(interrupt, make_lock):
    """If the release had not begun, the lock is held, and can be released."""

    def acquired(point):
        lock = make_lock(f"x {point}")
        assert lock.acquire(timeout=PATIENCE)
        return lock

    def released(lock):
        try:
            if lock.hold_count():
                lock.release()
        except LeaseLostError:
            return "a rolled-back hold was valid"

    interrupt(acquired, lambda lock: lock.release(), released)


def test_reentry_interrupted_at_any_point_leaves_the_outer_hold(interrupt, client):
    lock = client.get_lock("outer")
    with lock as outer:

        def still_held(_):
            outer.check()
            return None if lock.hold_count() == 1 else f"held {lock.hold_count()} times"

        interrupt(lambda point: lock, enter_and_leave, still_held, keys=["redsync:outer"], holds=1)
    assert lock.hold_count() == 0


def test_waiting_interrupted_at_any_point_leaves_no_place_in_a_queue(interrupt, make_lock, client):
    def wait_in_vain(lock):
        with suppress(QuorumError):  # where connections are discarded, or the machine is busy
            assert lock.acquire(timeout=0.1) is False

    holder = make_lock("x")
    with ThreadPoolExecutor(1) as pool:
        # Held by another thread, so by another owner.
        assert pool.submit(holder.acquire).result(20)
        interrupt(
            lambda point: make_lock("x"),
            wait_in_vain,
            lambda lock: lock.hold_count(),
            keys=["redsync:x"],
            holds=1,
        )
        pool.submit(holder.release).result(20)


def test_close_interrupted_at_any_point_leaves_nothing_on_the_nodes(nodes, raw, inject, points):
    """A second close finds it closed; only an interruption before the very first step leaves it open."""
    wrong = []
    for point in points(STRIDE):
        client = Client(nodes.urls, lease=60.0, restart_guard=0.0)
        assert client.get_lock("x").acquire(timeout=PATIENCE)
        mutex = client.get_mutex("y")
        assert mutex.acquire(timeout=PATIENCE)
        where = inject(point, client.close)
        if not client.runner.closed:
            client.close()
        left = become(raw, [])
        if left is not None:
            wrong.append(f"{where}: left {left}")
        if len(client.runner.session.holds):
            wrong.append(f"{where}: holds {[state.name for state in client.runner.session.holds]}")
        for node in raw:
            node.flushall()
        del client, mutex
        if where is None:
            break
    print(f"{point} points")
    assert wrong == []
    assert point > 50


# Connecting threads.


@pytest.fixture
def no_more_threads():
    """Return a context in which the system can start no more threads."""

    @contextmanager
    def no_more_threads():
        before = threading.stack_size(1 << 47)
        try:
            yield
        finally:
            threading.stack_size(before)

    return no_more_threads


def test_node_is_connected_once_there_are_threads_again(client, nodes, no_more_threads, eventually):
    with client.get_lock("x"):
        pass
    maintenance = client.runner._maintenance._thread
    with no_more_threads():
        nodes.restart(0)
        eventually(lambda: "thread" in (client.nodes()[0].last_error or ""))
        with client.get_lock("x"):
            pass
    eventually(lambda: client.nodes()[0].state == "up")
    assert maintenance.is_alive()


def test_client_without_threads_says_so_and_leaves_nothing(nodes, no_more_threads):
    with no_more_threads(), pytest.raises(RuntimeError, match="can't start new thread"):
        Client(nodes.urls, restart_guard=0.0)


class Password(CredentialProvider):
    """The application's provider, which fails the first times."""

    def __init__(self):
        self.asked = 0

    def get_credentials(self):
        self.asked += 1
        if self.asked <= 2:
            raise SystemExit("no password")
        return ("default", "")


def test_node_is_tried_again_even_if_the_application_exits_when_asked_for_a_password(nodes, make_client, eventually):
    password = Password()
    guarded = redis.Redis.from_url(nodes.urls[0], credential_provider=password)
    client = make_client([guarded, *[redis.Redis.from_url(url) for url in nodes.urls[1:3]]])
    with client.get_lock("x"):
        pass
    eventually(lambda: password.asked > 2)


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork")
@pytest.mark.filterwarnings("ignore:This process:DeprecationWarning")  # is multi-threaded, and forks
def test_child_closes_client_although_another_thread_was_closing_it_during_the_fork(nodes):
    """It ends there, at the latest when the child ends."""
    closing, go_on = threading.Event(), threading.Event()
    client = Client(nodes.urls, restart_guard=0.0)
    client.close()

    def close():
        with client.runner._opening:  # held for an instant, or until the threads of a new client that failed have ended
            closing.set()
            assert go_on.wait(PATIENCE)

    thread = threading.Thread(target=close)
    thread.start()
    assert closing.wait(PATIENCE)
    child = os.fork()
    if not child:
        signals.signal(signals.SIGALRM, signals.SIG_DFL)
        signals.alarm(10)
        client.close()
        os._exit(0)
    go_on.set()
    thread.join()
    assert os.waitpid(child, 0)[1] == 0


def test_exit_closes_all_clients_although_others_are_made_meanwhile(monkeypatch):
    monkeypatch.setattr(threads, "_runners", type(threads._runners)())
    before, later = [Client(["redis://127.0.0.1:1"]) for _ in range(2)], []
    with at_each_line(lambda: later.append(Client(["redis://127.0.0.1:1"]))):
        threads._close_all()
    assert all(client.runner.closed for client in before)
