"""Calls that are interrupted at any point, for threads.

After an exception at any point nothing is held that the caller does not know, nothing hangs, other threads continue,
and nothing stays on the nodes. The clients' lease is a minute, so any leftover is a bug, and would be renewed for as
long as it is in a table.
"""

import gc
import itertools
import random
import threading
import time
import traceback
import weakref
from contextlib import contextmanager, suppress

import pytest

from redsync import (
    Client,
    LeaseLostError,
    Lock,
    NodeChanged,
    NotOwnedError,
    OverReleaseError,
    QuorumError,
    RedsyncError,
)
from redsync._core.effects import Wait, wait
from redsync._drivers import threads
from redsync._drivers.environment import clock
from redsync._drivers.threads import Call
from redsync._facades.multi_hold import Performing
from tests.support.injection import Interruption, alarm, inject
from tests.support.leftovers import become
from tests.support.locks import PATIENCE
from tests.support.sweeps import swept

MANY = pytest.mark.parametrize("points", [12, *swept(100)], indirect=True)


@pytest.fixture
def points(request, seed):
    """Return a function that returns twelve points of interruption, others in each run: the seed says which."""

    def points(most=900):
        stride = most // getattr(request, "param", 12)
        return range(1 + seed % stride, most, stride)

    return points


@pytest.fixture
def client(lasting):
    return lasting


def use(client):
    """Use the client in the calling thread."""
    with client.get_lock("next", timeout=PATIENCE) as hold:
        hold.check()


@pytest.fixture
def interrupt(raw, points, other):
    """Return a function that interrupts an action at several points, and checks each time that nothing is left."""

    def interrupt(clients, prepare, do, check=lambda prepared: None, *, keys=(), holds=0, most=900):
        """Interrupt `do(prepare(point))`; `check` follows, and `keys` and `holds` are of other acquisitions.

        The action has about `most` points, or more.
        """
        tables, wrong, struck = [client.runner.session.holds for client in clients], [], 0
        for point in points(most):
            prepared = prepare(point)
            where = inject(point, lambda prepared=prepared: do(prepared))
            if where is None:
                break
            struck += 1
            problem = check(prepared)
            if problem:
                wrong.append(f"{where}: {problem}")
            if sum(map(len, tables)) != holds:
                wrong.append(f"{where}: holds {[state.name for table in tables for state in table]}")
            if any(client.runner.life.active for client in clients):
                wrong.append(f"{where}: the call never ends, nor does its set")
            if rest := become(raw, keys):
                wrong.append(f"{where}: left {rest}")
                break
            for client in clients:
                try:
                    other.do(use, client)
                    use(client)
                except (QuorumError, TimeoutError) as error:
                    wrong.append(f"{where}: {error!r}")
        print(f"{point} points")
        assert wrong == []
        assert struck > 3

    return interrupt


# Locks.


@pytest.fixture(params=["lock", *swept("mutex", "fair_lock")])
def make_lock(request, client):
    """Make locks of several kinds."""
    return lambda point="": getattr(client, f"get_{request.param}")(f"x {point}".strip())


def enter_and_leave(lock):
    with lock:
        pass


def leave_with_an_error(lock):
    with suppress(KeyError), lock:
        raise KeyError("the body's own")


def is_free(lock):
    """Check that the same object is usable again, and knows no earlier `with`."""
    if lock.hold_count():
        return "it counts a hold"
    with lock as hold:
        hold.check()
    return "the next `with` did not release it" if lock.hold_count() else None


@pytest.mark.parametrize("act", [enter_and_leave, leave_with_an_error])
@MANY
def test_interrupted_with_holds_nothing(interrupt, client, make_lock, act):
    interrupt([client], make_lock, act, is_free)


def test_interrupted_release_has_released_or_can_be_repeated(interrupt, client, make_lock):
    def acquired(point):
        lock = make_lock(point)
        assert lock.acquire(timeout=PATIENCE)
        return lock

    def released(lock):
        try:
            if lock.hold_count():
                lock.release()
        except LeaseLostError:
            return "a rolled-back hold was valid"
        return is_free(lock)

    interrupt([client], acquired, lambda lock: lock.release(), released)


def test_release_interrupted_before_its_first_step_is_completed(client, make_lock):
    """As by a time limit, while it waits until another thread's step is over."""
    lock, life = make_lock(), client.runner.life
    is_busy, go_on = threading.Event(), threading.Event()

    def step():
        with life.monitor:
            is_busy.set()
            go_on.wait(PATIENCE)

    def strike():
        go_on.set()
        raise Interruption

    assert lock.acquire(timeout=PATIENCE)
    thread = threading.Thread(target=step)
    thread.start()
    is_busy.wait(PATIENCE)
    with alarm(strike), pytest.raises(Interruption):
        lock.release()
    thread.join()
    assert is_free(lock) is None


def test_interrupted_wait_leaves_no_place_in_a_queue(interrupt, client, make_lock, make_worker):
    def wait_in_vain(lock):
        with suppress(QuorumError):  # where connections are discarded, or the machine is busy
            assert lock.acquire(timeout=0.1) is False

    holder, held, lock = make_worker(), make_lock(), make_lock()  # a mutex belongs to its object, whatever the thread
    assert holder.do(held.acquire)
    interrupt([client], lambda point: lock, wait_in_vain, lambda lock: lock.hold_count(), keys=["redsync:x"], holds=1)
    holder.do(held.release)


@pytest.mark.parametrize(
    ("act", "most"),
    [
        pytest.param(lambda lock, hold: enter_and_leave(lock), 200, id="reentry"),
        pytest.param(lambda lock, hold: hold.extend(), 900, id="extension"),
        pytest.param(lambda lock, hold: hold.wait_lost(0.005), 80, id="wait for a loss"),
    ],
)
def test_interruption_inside_a_with_leaves_the_hold(interrupt, client, act, most):
    lock = client.get_lock("x")
    with lock as hold:

        def still_held(_):
            hold.check()
            return None if lock.hold_count() == 1 else f"held {lock.hold_count()} times"

        keep = {"keys": ["redsync:x"], "holds": 1, "most": most}
        interrupt([client], lambda point: lock, lambda lock: act(lock, hold), still_held, **keep)
    assert lock.hold_count() == 0


# Several at once.


def use_permit(semaphore):
    permit = semaphore.acquire(timeout=PATIENCE, n=2)
    try:
        with permit:
            permit.check()
    finally:
        with suppress(NotOwnedError):  # The `with` has released it, if it began.
            permit.release()


def use_permits(semaphore):
    with semaphore:
        assert semaphore.acquire(timeout=PATIENCE)
        assert semaphore.acquire(timeout=PATIENCE)
        semaphore.release(2)


def release_permits(semaphore):
    with suppress(OverReleaseError):  # The interruption came before an acquisition, or after the release.
        semaphore.release()
        semaphore.release()


@pytest.mark.parametrize(
    ("act", "after"),
    [(use_permit, lambda semaphore: None), (use_permits, release_permits)],
    ids=["permit", "semaphore"],
)
def test_interrupted_use_of_a_semaphore_leaves_no_permit(interrupt, client, act, after):
    def all_are_free(semaphore):
        after(semaphore)
        permit = semaphore.acquire(timeout=PATIENCE, n=3)
        if not permit:
            return "permits are gone"
        permit.release()
        return None

    interrupt([client], lambda point: client.get_semaphore(f"x {point}", 3), act, all_are_free)


@pytest.fixture
def clients(client, make_lasting):
    """Two clients for the multi-locks here."""
    return client, make_lasting(prefix="other:")


@pytest.fixture
def make_multi(clients):
    first, second = clients

    def make(point=""):
        locks = second.get_mutex(f"c{point}"), first.get_lock(f"b{point}"), first.get_fair_lock(f"a{point}")
        return first.get_multi_lock(*locks)

    return make


def all_are_free(multi):
    if any(lock.hold_count() for lock in multi._locks):
        return "it counts a hold"
    return is_free(multi)


@MANY
def test_interrupted_multi_lock_holds_none(interrupt, clients, make_multi):
    interrupt(clients, make_multi, enter_and_leave, all_are_free)


def test_interrupted_reentry_of_a_multi_lock_leaves_the_outer_holds(interrupt, clients):
    first, second = clients
    multi = first.get_multi_lock(first.get_lock("a"), second.get_lock("b"))
    with multi as outer:

        def still_held(_):
            outer.check()
            counts = [lock.hold_count() for lock in multi._locks]
            return None if counts == [1, 1] else f"held {counts} times"

        interrupt(clients, lambda point: multi, enter_and_leave, still_held, keys=["other:b", "redsync:a"], holds=2)
    assert [lock.hold_count() for lock in multi._locks] == [0, 0]


def test_multi_lock_interrupted_while_one_is_held_by_another_holds_none(interrupt, clients, make_multi, make_lasting):
    """Even where it is about to release the locks acquired so far."""
    held = make_lasting().get_lock("b")  # the last in their order
    assert held.acquire(timeout=PATIENCE)

    def try_in_vain(multi):
        with suppress(QuorumError):  # where connections are discarded, or the machine is busy
            assert multi.acquire(timeout=0.02) is False

    def none_is_held(multi):
        return [lock for lock in multi._locks if lock.hold_count()]

    interrupt(clients, lambda point: make_multi(), try_in_vain, none_is_held, keys=["redsync:b"])
    held.release()


def test_interrupted_release_of_a_multi_lock_has_released_all_or_none(interrupt, clients, make_multi):
    def acquired(point):
        multi = make_multi(point)
        assert multi.acquire(timeout=PATIENCE)
        return multi

    def released(multi):
        counts = {lock.hold_count() for lock in multi._locks}
        if len(counts) != 1:
            return f"released some and not others: {counts}"
        if counts == {1}:
            multi.release()
        return all_are_free(multi)

    interrupt(clients, acquired, lambda multi: multi.release(), released)


# The client.


def test_interrupted_close_leaves_nothing_on_the_nodes(nodes, raw, points):
    """A second close finds it closed; only an interruption before the first step leaves it open."""
    wrong = []
    for point in points(500):
        client = Client(nodes.urls, lease=60.0, restart_guard=0.0)
        assert client.get_lock("x").acquire(timeout=PATIENCE)
        mutex = client.get_mutex("y")
        assert mutex.acquire(timeout=PATIENCE)
        where = inject(point, client.close)
        client.close()
        if left := become(raw, []):
            wrong.append(f"{where}: left {left}")
        if len(client.runner.session.holds):
            wrong.append(f"{where}: holds {[state.name for state in client.runner.session.holds]}")
        for node in raw:
            node.flushall()
        if where is None:
            break
    assert wrong == []


@pytest.mark.filterwarnings("ignore:unclosed <socket.socket fd=.*family=1,:ResourceWarning")
def test_interrupted_connect_leaves_no_threads_and_no_connections(nodes, points):
    """The fixture for all tests looks for these.

    Python closes the pair of sockets that wakes a maintenance whose making was interrupted.
    """
    for point in points(1300):
        clients = []
        where = inject(point, lambda clients=clients: clients.append(Client(nodes.urls, restart_guard=0.0)))
        for client in clients:
            client.close()
        if where is None:
            break


@pytest.mark.parametrize(("module", "function"), [(threads, "at_exit"), (weakref, "finalize")])
def test_client_interrupted_as_it_begins_leaves_neither_thread_nor_connections(nodes, monkeypatch, module, function):
    """The fixture for all tests looks for these."""

    def interrupted(*_):
        raise Interruption

    monkeypatch.setattr(module, function, interrupted)
    with pytest.raises(Interruption):
        Client(nodes.urls, restart_guard=0.0)


def test_interrupted_with_leaves_a_client_in_use_open(client):
    next(point for point in itertools.count(1) if inject(point, client.__enter__) is None)
    use(client)


# Errors of signal handlers, which look like others.


KINDS = {
    "TimeoutError": lambda: TimeoutError("time limit"),  # of SIGALRM handlers; an OSError
    "BlockingIOError": lambda: BlockingIOError("busy"),  # of a socket that accepts nothing now
    "LeaseLostError": lambda: LeaseLostError("other", "it was lost"),  # of `check()` of another lock
}


@pytest.mark.parametrize("kind", KINDS)
def test_error_of_a_signal_handler_propagates_and_is_no_failure_of_a_node(nodes, raw, points, kind):
    downs, swallowed = [], []

    def listen(event):
        if isinstance(event, NodeChanged) and event.state == "down":
            downs.append(event)

    def strike():
        raise KINDS[kind]()  # noqa: RSE102  (a function that makes it)

    with Client(nodes.urls, lease=60.0, restart_guard=0.0, listeners=[listen]) as client:
        use(client)
        for point in points():
            lock = client.get_lock(f"x {point}")

            def act(lock=lock):
                with lock:
                    pass
                assert lock.acquire(timeout=PATIENCE)
                lock.release()

            try:
                where = inject(point, act, strike)
            except type(KINDS[kind]()):
                pass
            else:
                if where is None:
                    break
                swallowed.append(where)
            with suppress(NotOwnedError):
                lock.release()
            assert become(raw, []) is None
    assert swallowed == []
    assert downs == []


def test_error_that_looks_like_the_end_of_a_protocol_propagates(client):
    runner = client.runner

    def asleep():
        yield from wait(Wait(clock()))

    def perform(effect, call):
        raise StopIteration("not the result")

    with pytest.raises(RuntimeError, match="StopIteration"):
        runner.drive(asleep(), Call(runner.life), perform)


# Real signals, at any instant.


def strike():
    raise Interruption


@contextmanager
def alarms(seconds):
    """Interrupt the main thread by a signal after some time."""
    gc.disable()  # A signal during a finalizer of the libraries below is not ours.
    try:
        with alarm(strike, seconds):
            yield
    finally:
        gc.enable()


def struck_on_entering_exit(error):
    """Return whether no line of a lock's `__exit__` has run: then no code can release what its `with` acquired."""
    frames = traceback.walk_tb(error.__traceback__)
    return any(frame.f_code is Lock.__exit__.__code__ and line == frame.f_code.co_firstlineno for frame, line in frames)


@pytest.mark.parametrize("times", [30, *swept(300)])
def test_signals_at_any_instant_leave_nothing_and_other_threads_go_on(client, raw, seed, times):
    instants, done, stop = random.Random(seed), [], threading.Event()

    def work():
        lock = client.get_lock("other")
        while not stop.is_set():
            with lock:
                done.append(1)

    thread = threading.Thread(target=work)
    thread.start()
    struck = 0
    try:
        for number in range(times):
            lock = client.get_lock(f"x {number}")
            try:
                with alarms(instants.uniform(0.0001, 0.006)):
                    for _ in range(4):
                        with lock:
                            pass
            except Interruption as error:
                struck += 1
                if struck_on_entering_exit(error):
                    lock.release()
            assert lock.hold_count() == 0
        before = len(done)
        deadline = time.monotonic() + PATIENCE
        while len(done) == before:
            assert time.monotonic() < deadline, "the other thread has stopped"
            time.sleep(0.001)
    finally:
        stop.set()
        thread.join()
    assert struck
    assert become(raw, []) is None
    assert len(client.runner.life.pool) <= client.runner.max_connections


@pytest.mark.parametrize("error", [None, RedsyncError("in a test")], ids=["won", "failed"])
def test_calls_of_a_multi_lock_are_undone_wherever_a_signal_strikes(seed, error):
    """Where loops repeat, too: there Python looks for signals."""
    instants = random.Random(seed)

    def call():
        done.add("called")
        if error is not None:
            raise error

    def plan():
        try:
            while True:
                with suppress(RedsyncError):
                    yield call
        except Interruption:
            done.add("undone")
            raise

    for _ in range(200):
        done = set()
        with pytest.raises(Interruption), alarms(instants.uniform(0.0001, 0.0006)):
            Performing()._perform(plan())
        assert "undone" in done or not done, "the signal may come before the first call"
