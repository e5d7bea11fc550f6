"""Signal handlers, finalizers and callbacks that use the client whose code they interrupt."""

import gc
import itertools
import signal
import subprocess
import sys
import threading
from contextlib import contextmanager, suppress
from functools import partial

import pytest

from redsync import ClientClosedError, LeaseLostError, NotOwnedError, ReentrantCallError
from redsync._core.keys import wake_channel
from redsync._drivers.link_sets import LinkSet
from redsync._drivers.maintenance import Maintenance
from tests.support.forks import in_child
from tests.support.injection import alarm, inject
from tests.support.leftovers import claims
from tests.support.locks import PATIENCE, connect_set, timed

STRIDE = 7
"""A run tries every seventh of about 300 points; the seed says which."""


@pytest.fixture
def client(make_lasting):
    return make_lasting()


def held(raw):
    return sorted({key for node in raw for key in claims(node)})


def compose(outer, inner):
    return lambda: outer(inner())


def aside(function):
    """Call a function in a new thread, which must end; return its result or raise its error."""
    results, errors = [], []

    def body():
        try:
            results.append(function())
        except BaseException as error:
            errors.append(error)

    thread = threading.Thread(target=body, daemon=True)
    thread.start()
    thread.join(PATIENCE)
    if thread.is_alive():
        frame = sys._current_frames()[thread.ident]
        pytest.fail(f"hangs in {frame.f_code.co_filename}:{frame.f_lineno} {frame.f_code.co_name}")
    if errors:
        raise errors[0]
    return results[0]


@pytest.fixture
def at_any_point(seed):
    """Return a function that calls a handler at each point of another function, one by one."""

    def at_any_point(prepare, stride=STRIDE):
        """`prepare(point)` returns the function, the handler, and a check for afterwards."""
        refused = 0
        for point in itertools.count(1 + seed % stride, stride):
            function, handler, check = prepare(point)
            outcome = []
            note = compose(outcome.append, handler)
            where = aside(partial(inject, point, function, note))
            if where is None:
                break
            refused += outcome == [ReentrantCallError]
            assert outcome, where
            check()
        assert point > 50
        return refused, point // stride

    return at_any_point


@contextmanager
def stepping(client):
    """Be in the middle of a step, as a signal's handler may be."""
    client.runner.life.ours.stepping = True
    try:
        yield
    finally:
        client.runner.life.ours.stepping = False


# At every point of a handler's call.


def release(client, point, hold):
    hold.release()


def acquire(client, point, hold):
    lock = client.get_lock(f"other {point}")
    try:
        assert lock.acquire(timeout=20)
    except ReentrantCallError:
        return ReentrantCallError
    lock.release()
    return None


def query(client, point, hold):
    assert len(client.nodes()) == 3
    assert client.get_lock(f"x {point}").hold_count() <= 1


@pytest.mark.parametrize("handler", [release, acquire, query])
def test_call_in_a_handler_at_any_point_neither_waits_nor_leaves_anything(
    at_any_point, client, raw, eventually, handler
):
    """A release takes effect at once, or a moment later; an acquire is performed or refused; a query is answered."""

    def prepare(point):
        lock, mutex = client.get_lock(f"x {point}"), client.get_mutex(f"mutex {point}")
        hold = mutex.__enter__()

        def use():
            assert lock.acquire(timeout=20)
            lock.release()

        def check():
            if handler is not release:
                mutex.release()
            eventually(lambda: not held(raw))

        return use, partial(handler, client, point, hold), check

    refused, points = at_any_point(prepare)
    assert (0 < refused < points) == (handler is acquire)


def test_release_in_a_handler_that_interrupts_the_pool_does_not_wait_for_the_maintenance(client, raw, eventually):
    """Which can't continue before the pool does: each wake-up needs the same lock."""
    lent, life, mutex = [], client.runner.life, client.get_mutex("x")
    hold = mutex.__enter__()
    connect_set(client)
    life.pool.borrow(lent)

    def release():
        with life.mutex:
            for node in raw:
                node.publish(wake_channel(life.client_id), b"0 any key")
            hold.release()

    aside(release)
    eventually(lambda: not held(raw))
    life.pool.take_back(lent)


def test_handler_that_interrupts_a_thread_with_the_mutex_does_not_wait(client, raw, eventually):
    """The client's own thread needs it: until that is over it could neither close nor renew."""
    lock, life = client.get_lock("x"), client.runner.life
    assert lock.acquire(timeout=PATIENCE)
    with life.mutex:
        with pytest.raises(ReentrantCallError):
            client.get_lock("y").acquire(timeout=PATIENCE)
        _, seconds = timed(client.close)
    assert seconds < 3.0
    eventually(lambda: not held(raw))


@pytest.mark.sweep
def test_client_closed_by_a_handler_at_any_point_releases_everything(at_any_point, make_lasting, raw, eventually):
    def prepare(point):
        client = make_lasting()
        kept, lock = client.get_lock("kept"), client.get_lock("x")

        def use():
            with suppress(ClientClosedError):
                kept.acquire()
                lock.acquire()
                with suppress(LeaseLostError):  # The client was closed, and so the lock free, before its first step.
                    lock.release()

        def check():
            eventually(lambda: not held(raw))
            eventually(lambda: not client.runner.life.maintenance._thread.is_alive())
            assert not client.runner.life.pool.idle()
            with pytest.raises(ClientClosedError):
                lock.acquire()

        return use, client.close, check

    at_any_point(prepare, stride=5 * STRIDE)


def test_closed_client_says_so_even_in_the_middle_of_a_call(client):
    """It does not say that it was called at the wrong moment: then callers would try again."""
    with stepping(client):
        client.close()
        with pytest.raises(ClientClosedError):
            client.get_lock("x").acquire()
        with pytest.raises(ClientClosedError):
            client.runner.give_back(iter(()))


def test_queries_never_wait_in_the_middle_of_a_call(client):
    lock = client.get_lock("x")
    with lock as hold, stepping(client):
        assert lock.owned()
        assert lock.remaining() > 0
        assert not hold.lost
        with pytest.raises(ReentrantCallError, match="set a flag"):
            hold.check()
    assert len(client.nodes()) == 3


def test_failed_release_by_the_maintenance_is_logged_in_the_thread_for_events(client, caplog, eventually):
    """A slow log handler must not delay renewals."""
    lock = client.get_lock("x")
    with lock as hold:
        with stepping(client):
            hold.release()
            hold.release()
        eventually(lambda: hold.lost or hold._released)
        eventually(lambda: caplog.records)
    (record,) = caplog.records
    assert (record.name, record.levelname, record.threadName) == ("redsync", "WARNING", "redsync-events")
    assert "was released already" in record.getMessage()


@pytest.mark.filterwarnings("ignore:This process:DeprecationWarning")  # is multi-threaded, and forks
def test_call_in_a_handler_that_interrupts_the_first_call_of_a_forked_child_starts_no_second_thread(
    client, monkeypatch
):
    started, refused, start = [], [], Maintenance.start

    def strike(maintenance):
        start(maintenance)
        started.append(maintenance)
        if len(started) == 1:
            try:
                client.get_lock("y").acquire()
            except ReentrantCallError:
                refused.append(True)

    def use():
        monkeypatch.setattr(Maintenance, "start", strike)
        with client.get_lock("x", timeout=PATIENCE) as hold:
            hold.check()
        return f"started {len(started)}, refused {len(refused)}"

    assert in_child(use) == "started 1, refused 1"


# Signal handlers, in a sleeping thread.


def test_handler_uses_the_client_while_its_thread_waits_for_a_lock(client, make_lasting, raw, eventually):
    holder, done = make_lasting().get_lock("x"), []
    hold = holder.__enter__()

    def handler():
        for i in range(3):
            with client.get_lock(f"other {i}", timeout=5.0) as other:
                other.check()
        mine.release()
        done.append(held(raw))
        hold.release()

    mine = client.get_mutex("mine")
    mine.acquire()
    with alarm(handler):
        assert client.get_lock("x").acquire(timeout=PATIENCE)
    assert "redsync:mine" not in done[0]
    assert client.get_lock("x").owned()
    client.get_lock("x").release()


def test_close_by_a_handler_in_a_sleeping_thread_releases_all_holds(client, make_lasting, raw, eventually):
    """By the time `close` returns; the interrupted call rolls back its own request when it continues."""
    blocker = make_lasting().get_lock("x")
    blocker.acquire()
    client.get_lock("mine").acquire()
    left = []

    def handler():
        client.close()
        left.append("redsync:mine" in held(raw))

    with alarm(handler), pytest.raises(ClientClosedError):
        client.get_lock("x").acquire()
    assert left == [False]
    eventually(lambda: held(raw) == ["redsync:x"])
    eventually(lambda: not client.runner.life.maintenance._thread.is_alive())
    blocker.release()


def test_call_whose_client_a_handler_closed_still_gives_up_what_it_asked_for(client, raw, monkeypatch, eventually):
    """The handler may raise afterwards, as the usual one for SIGTERM does."""
    connect_set(client)
    thread = client.runner.life.maintenance._thread

    def close(link_set, *_):
        client.close()
        thread.join(0.5)
        raise SystemExit

    with monkeypatch.context() as patch:
        patch.setattr(LinkSet, "wait", close)
        with pytest.raises(SystemExit):
            client.get_lock("x").acquire()
    eventually(lambda: not thread.is_alive())
    eventually(lambda: not held(raw))


@pytest.mark.parametrize("error", [SystemExit, None])
def test_call_whose_client_a_handler_closed_gives_up_what_it_asked_for_however_long_the_handler_works(
    client, raw, monkeypatch, eventually, error
):
    connect_set(client)
    wait = LinkSet.wait

    def close(link_set, *rest):
        monkeypatch.undo()
        client.close()
        client.runner.life.maintenance._thread.join(4.0)
        if error:
            raise error
        return wait(link_set, *rest)

    monkeypatch.setattr(LinkSet, "wait", close)
    with pytest.raises(error or ClientClosedError):
        client.get_lock("x").acquire()
    eventually(lambda: not held(raw))
    eventually(lambda: not client.runner.life.maintenance._thread.is_alive())


PROGRAM = """
import signal, sys
from redsync import Client

client = Client(sys.argv[1:], lease=600, restart_guard=0)
kept, lock = client.get_lock("kept"), client.get_lock("x")


def end(number, frame):
    client.close()
    raise SystemExit(7)


signal.signal(signal.SIGTERM, end)
kept.acquire()
print("ready", flush=True)
while True:
    with lock:
        pass
"""


def test_process_that_closes_its_client_on_sigterm_ends_and_leaves_nothing(nodes, raw, eventually):
    """A common program. Several runs, because it matters what the signal interrupts."""
    times = 3
    crew = [
        subprocess.Popen([sys.executable, "-c", PROGRAM.replace('"kept"', f'"kept {i}"'), *nodes.urls], stdout=-1)
        for i in range(times)
    ]
    try:
        for process in crew:
            assert process.stdout.readline() == b"ready\n"
        for process in crew:
            process.send_signal(signal.SIGTERM)
        assert [process.wait(PATIENCE) for process in crew] == [7] * times
        # A lock handed over to a client that has left is free again after three seconds.
        eventually(lambda: not held(raw))
    finally:
        for process in crew:
            process.kill()
            process.communicate()


# Finalizers.


def test_object_that_releases_a_lock_when_collected_blocks_no_thread(client, raw, eventually):
    """Python may collect it anywhere: even in the client's own thread, and in the middle of a step."""

    class Job:
        def __init__(self, number):
            self.me = self  # a cycle, as many objects have
            self.mutex = client.get_mutex(f"job {number}")
            self.mutex.acquire()

        def __del__(self):
            # The client may have come first, as the mutex is garbage too.
            with suppress(NotOwnedError):
                self.mutex.release()

    def work():
        lock = client.get_lock("x")
        for i in range(60):
            if i % 5 == 0:
                Job(i)
            assert lock.acquire(timeout=20)
            lock.release()

    before = gc.get_threshold()
    gc.set_threshold(20, 2, 2)
    try:
        aside(work)
    finally:
        gc.set_threshold(*before)
    gc.collect()
    eventually(lambda: not held(raw))


# Callbacks.


def test_callback_may_close_the_client(make_lasting, raw, caplog, eventually):
    client = make_lasting(lease=3.0)
    client.get_lock("other").acquire()
    client.get_lock("x", on_lost=lambda hold: client.close()).acquire()
    for node in raw:
        node.delete("redsync:x")
    thread = client.runner.life.maintenance._thread
    eventually(lambda: not thread.is_alive())
    assert held(raw) == []
    assert [record.getMessage()[:16] for record in caplog.records] == ["lost the hold of"]
    with pytest.raises(ClientClosedError):
        client.get_lock("y").acquire()
    client.close()
