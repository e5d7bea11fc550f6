"""The reentrant lock as its users meet it: the public contract, on real nodes, in threads."""

import contextlib
import gc
import itertools
import signal
import threading
import time
import weakref

import pytest

from redsync import (
    AcquireTimeout,
    ClientClosedError,
    ConfigurationError,
    KeyTypeError,
    LeaseLostError,
    NotOwnedError,
    OverReleaseError,
    QuorumError,
    RedsyncError,
)
from tests.support.locks import PATIENCE, SHORT, claims, flush, lose, timed

pytestmark = pytest.mark.usefixtures("both_flavours")

# Owners, hold counts, and what the nodes store


def test_acquire_stores_one_claim_that_release_removes(lock, raw, eventually):
    assert lock.acquire() is True
    eventually(lambda: raw.count("redsync:x") == 5)
    lock.release()
    eventually(lambda: raw.keys() == [set()] * 5)


def test_nodes_store_owner_and_hold_count_as_acquisitions_nest(client, lock, raw, eventually):
    with lock as hold:
        owner = hold.owner.encode()
        assert owner.startswith(client.id.encode() + b":")
        assert owner.rpartition(b":")[2].isdigit()
        eventually(lambda: claims(raw) == [{owner: b"1"}] * 5)
        assert lock.acquire()
        eventually(lambda: claims(raw) == [{owner: b"2"}] * 5)
        with lock:
            eventually(lambda: claims(raw) == [{owner: b"3"}] * 5)
        lock.release()
        eventually(lambda: claims(raw) == [{owner: b"1"}] * 5)
        assert all(0 < node.pttl("redsync:x") <= 30_000 for node in raw)
    eventually(lambda: claims(raw) == [{}] * 5)


def test_hold_count_follows_nested_acquisitions(lock, other):
    counts = []
    for _ in range(3):
        assert lock.acquire(False)
        counts.append(lock.hold_count())
    assert other.do(lock.hold_count) == 0
    for _ in range(3):
        assert lock.owned()
        assert not other.do(lock.acquire, False)
        lock.release()
        counts.append(lock.hold_count())
    assert counts == [1, 2, 3, 2, 1, 0]
    assert not lock.owned()
    assert other.do(lock.acquire, False)
    other.do(lock.release)


def test_objects_of_one_name_are_one_lock(client, raw, eventually):
    first, second = client.get_lock("ä"), client.get_lock("ä".encode())
    assert first.acquire()
    assert second.owned()
    assert second.acquire()
    assert first.hold_count() == second.hold_count() == 2
    first.release()
    second.release()
    assert not first.owned()
    eventually(lambda: raw.keys() == [set()] * 5)


def test_threads_are_different_owners(lock, make_worker):
    owners = set()
    for worker in [make_worker() for _ in range(3)]:
        owners.add(worker.do(lambda: lock.__enter__().owner))
        assert not lock.acquire(False)
        assert not lock.owned()
        with pytest.raises(NotOwnedError):
            lock.release()
        worker.do(lock.release)
    assert len(owners) == 3


def test_clients_are_different_owners_in_one_thread(make_client):
    first, second = make_client().get_lock("x"), make_client().get_lock("x")
    with first as hold:
        assert not second.acquire(False)
        assert not second.owned()
        assert second.locked()
        assert hold.remaining() > 0
    with second:
        assert not first.acquire(False)


def test_serials_of_threads_are_never_used_again(lock):
    owners = []

    def take():
        with lock as hold:
            owners.append(hold.owner)

    for _ in range(10):
        thread = threading.Thread(target=take)
        thread.start()
        thread.join()
    serials = [int(owner.rpartition(":")[2]) for owner in owners]
    assert len({owner.rpartition(":")[0] for owner in owners}) == 1
    assert sorted(set(serials)) == serials


def test_prefix_separates_locks(make_client, raw, eventually):
    with make_client(prefix="a:").get_lock("x"), make_client(prefix="b:").get_lock("x"):
        eventually(lambda: raw.keys() == [{b"a:x", b"b:x"}] * 5)


NAMES = {
    "plain": "x",
    "unicode": "ä€😀",
    "binary": b"\x00\xff\r\n",
    "braces": "{}",
    "tagged": "a{b}c",
    "open brace": "{{x",
    "longest bytes": b"*" * 512,
    "longest text": "é" * 256,
    "space": " ",
    "format": "%s",
    "protocol": "*1\r\n$4\r\nPING\r\n",
}


@pytest.mark.parametrize("name", NAMES.values(), ids=NAMES)
def test_name_may_be_any_1_to_512_bytes(name, client, other, raw, eventually):
    lock = client.get_lock(name)
    assert lock.name == name
    with lock as hold:
        assert hold.name == name
        key = b"redsync:" + (name.encode() if isinstance(name, str) else name)
        eventually(lambda: raw.keys() == [{key}] * 5)
        waiter = other.start(lock.acquire)
        eventually(lambda: client.inspect(name).waiters)
    assert waiter.result(20)
    other.do(lock.release)
    eventually(lambda: raw.keys() == [set()] * 5)


def test_names_with_and_without_braces_are_different_locks(client):
    locks = [client.get_lock(name) for name in ("x", "{x}", ":x", "{:x}", ":{x}")]
    with contextlib.ExitStack() as stack:
        for lock in locks:
            assert not lock.locked()
            stack.enter_context(lock)


@pytest.mark.parametrize("name", ["", b"", "x" * 513, "é" * 257, b"x" * 513], ids=range(5))
def test_name_is_refused_when_empty_or_longer_than_512_bytes(client, name):
    with pytest.raises(ValueError, match="1 to 512 bytes"):
        client.get_lock(name)


@pytest.mark.parametrize("name", [None, 5, ["x"]])
def test_name_is_refused_when_neither_str_nor_bytes(client, name):
    with pytest.raises((TypeError, ValueError), match="str or bytes"):
        client.get_lock(name)


# Side by side with threading.RLock


@pytest.fixture(params=["threading.RLock", "redsync"])
def rlock(request, make_client):
    return threading.RLock() if request.param == "threading.RLock" else make_client().get_lock("like RLock")


WAYS_TO_ACQUIRE = [
    ((), {}),
    ((True,), {}),
    ((False,), {}),
    ((0,), {}),
    ((True, -1), {}),
    ((True, -1.0), {}),
    ((False, -1), {}),
    ((True, 0), {}),
    ((True, 0.05), {}),
    ((True,), {"timeout": 0.05}),
    ((), {"blocking": False}),
    ((), {"blocking": False, "timeout": -1}),
    ((), {"blocking": True, "timeout": 0.05}),
]


@pytest.mark.parametrize(("args", "kwargs"), WAYS_TO_ACQUIRE)
def test_acquire_returns_true_when_free_or_owned(rlock, args, kwargs):
    assert rlock.acquire(*args, **kwargs) is True
    assert rlock.acquire(*args, **kwargs) is True
    rlock.release()
    rlock.release()


BOUNDED = [way for way in WAYS_TO_ACQUIRE if way[0][:1] in {(False,), (0,)} or 0 in way[0] or 0.05 in way[0] or way[1]]


@pytest.mark.parametrize(("args", "kwargs"), BOUNDED)
def test_acquire_returns_false_when_another_thread_holds_it(rlock, other, args, kwargs):
    other.do(rlock.acquire)
    assert rlock.acquire(*args, **kwargs) is False
    other.do(rlock.release)


@pytest.mark.parametrize(
    ("args", "kwargs"),
    [
        ((False, 0), {}),
        ((False, 1), {}),
        ((False, -2), {}),
        ((), {"blocking": False, "timeout": 0.5}),
        ((True, -2), {}),
        ((True, -0.5), {}),
        ((), {"timeout": -1.5}),
        ((), {"timeout": float("nan")}),
    ],
)
def test_acquire_raises_value_error_when_arguments_contradict(rlock, args, kwargs):
    with pytest.raises(ValueError):  # noqa: PT011  # the words of RLock differ between versions
        rlock.acquire(*args, **kwargs)
    assert rlock.acquire(False)
    rlock.release()


@pytest.mark.parametrize("timeout", [0.0, 0.2])
def test_acquire_waits_for_the_whole_timeout(rlock, other, timeout):
    other.do(rlock.acquire)
    result, seconds = timed(rlock.acquire, True, timeout)
    assert result is False
    assert timeout <= seconds < timeout + 1
    other.do(rlock.release)


def test_acquire_waits_for_ever_by_default(rlock, other):
    rlock.acquire()
    waiter = other.start(rlock.acquire)
    with pytest.raises(TimeoutError):
        waiter.result(0.3)
    rlock.release()
    assert waiter.result(20) is True
    other.do(rlock.release)


def test_release_raises_runtime_error_when_not_held(rlock):
    with pytest.raises(RuntimeError):
        rlock.release()
    rlock.acquire()
    rlock.release()
    with pytest.raises(RuntimeError):
        rlock.release()


def test_release_raises_runtime_error_in_another_thread(rlock, other):
    with rlock:
        with pytest.raises(RuntimeError):
            other.do(rlock.release)
        assert not other.do(rlock.acquire, False)


def test_with_releases_when_the_body_raises(rlock, other):
    with pytest.raises(KeyError), rlock, rlock:
        raise KeyError
    assert other.do(rlock.acquire, False)
    other.do(rlock.release)


def test_with_is_reentrant(rlock, other):
    with rlock:
        with rlock:
            assert not other.do(rlock.acquire, False)
        assert not other.do(rlock.acquire, False)
    assert other.do(rlock.acquire, False)
    other.do(rlock.release)


def test_with_raises_when_the_body_released_once_too_often(rlock, other):
    with pytest.raises(RuntimeError), rlock:
        rlock.release()
    assert other.do(rlock.acquire, False)
    other.do(rlock.release)


def test_with_releases_what_the_body_released_and_acquired_again(rlock, other):
    with rlock:
        rlock.release()
        rlock.acquire()
    assert other.do(rlock.acquire, False)
    other.do(rlock.release)


def test_exit_releases_what_acquire_took(rlock, other):
    with contextlib.ExitStack() as stack:
        assert rlock.acquire(timeout=1)
        stack.push(rlock)
        assert not other.do(rlock.acquire, False)
    assert other.do(rlock.acquire, False)
    other.do(rlock.release)


# Waiting


@pytest.mark.parametrize("timeout", [None, -1])
def test_acquire_waits_for_ever_when_told_so(lock, other, timeout):
    lock.acquire()
    waiter = other.start(lock.acquire, timeout=timeout)
    with pytest.raises(TimeoutError):
        waiter.result(0.3)
    lock.release()
    assert waiter.result(20)
    other.do(lock.release)


@pytest.mark.parametrize("timeout", [float("inf"), float("-inf")])
def test_acquire_refuses_infinite_timeout(lock, timeout):
    with pytest.raises(ValueError, match="timeout"):
        lock.acquire(timeout=timeout)


def test_acquire_with_none_does_not_contradict_non_blocking(lock, other):
    assert lock.acquire(False, None)
    assert other.do(lock.acquire, False, None) is False


@pytest.mark.parametrize("same_client", [True, False])
def test_release_wakes_waiter_quickly(client, make_client, other, eventually, same_client, *, promptly):
    lock = client.get_lock("x")
    theirs = (client if same_client else make_client()).get_lock("x")

    def hand_over():
        lock.acquire()
        waiter = other.start(lambda: theirs.acquire() and time.monotonic())
        eventually(lambda: client.inspect("x").waiters)
        released = time.monotonic()
        lock.release()
        took = waiter.result(20) - released
        other.do(theirs.release)
        return took

    # Without a wake-up the waiter would look again after 0.5 s at the earliest.
    promptly(hand_over, 0.25)


def test_waiter_gets_the_lock_when_the_lease_of_a_silent_holder_ends(client, other):
    lock = client.get_lock("x")
    other.do(lock.acquire, lease=SHORT)
    result, seconds = timed(lock.acquire, timeout=20)
    assert result is True
    assert seconds < PATIENCE


def test_waiters_all_get_their_turn(client, make_worker):
    lock, order = client.get_lock("x"), []

    def take(number):
        with lock:
            order.append(number)

    with lock:
        waiters = [make_worker().start(take, number) for number in range(6)]
    for waiter in waiters:
        waiter.result(20)
    assert sorted(order) == list(range(6))


def test_timeout_leaves_nothing_in_any_queue(lock, other, raw, eventually):
    other.do(lock.acquire)
    waiting = lock.acquire(timeout=0.2)
    assert waiting is False
    eventually(lambda: raw.keys() == [{b"redsync:x"}] * 5)
    other.do(lock.release)
    eventually(lambda: raw.keys() == [set()] * 5)


@pytest.mark.asyncio_in_sweeps
def test_queue_is_empty_when_the_waiter_got_the_lock(client, lock, other, raw, eventually):
    other.do(lock.acquire)
    releaser = other.start(lambda: eventually(lambda: client.inspect("x").waiters) and lock.release())
    with lock:
        releaser.result(20)
        eventually(lambda: raw.keys() == [{b"redsync:x"}] * 5)


@pytest.mark.threads_only
def test_interrupted_waiter_leaves_nothing_behind(client, lock, other, raw, eventually):
    class Interrupted(BaseException):
        pass

    def interrupt(number, frame):
        raise Interrupted

    def send():
        eventually(lambda: client.inspect("x").waiters)
        signal.pthread_kill(threading.main_thread().ident, signal.SIGUSR1)

    other.do(lock.acquire)
    before = signal.signal(signal.SIGUSR1, interrupt)
    try:
        sender = other.start(send)
        with pytest.raises(Interrupted):
            lock.acquire()
        sender.result(20)
    finally:
        signal.signal(signal.SIGUSR1, before)
    assert not lock.owned()
    eventually(lambda: raw.keys() == [{b"redsync:x"}] * 5)
    other.do(lock.release)
    assert lock.acquire(False)


def test_refused_try_leaves_the_holder_alone(lock, other, raw, eventually):
    owner = other.do(lambda: lock.__enter__().owner).encode()
    for _ in range(20):
        assert not lock.acquire(False)
    eventually(lambda: claims(raw) == [{owner: b"1"}] * 5)
    assert raw.keys() == [{b"redsync:x"}] * 5


def test_read_and_write_loses_no_update_among_threads_of_two_clients(client, make_client, make_worker):
    locks = [client.get_lock("counter"), make_client().get_lock("counter")]
    counter = 0

    def count(lock):
        nonlocal counter
        for _ in range(10):
            with lock:
                value = counter
                time.sleep(0.001)
                counter = value + 1

    tasks = [make_worker().start(count, lock) for lock in locks for _ in range(4)]
    for task in tasks:
        task.result(30)
    assert counter == 80


# Without a quorum


def test_minority_of_dead_nodes_changes_nothing(lock, other, nodes, eventually):
    nodes.kill(0)
    nodes.kill(1)
    for _ in range(3):
        with lock as hold:
            assert lock.acquire(False)
            assert not other.do(lock.acquire, False)
            lock.extend()
            lock.release()
            assert lock.locked()
            hold.check()
        assert not lock.locked()


def test_acquire_raises_quorum_error_at_once_when_not_blocking(lock, nodes):
    for i in range(3):
        nodes.kill(i)
    error, seconds = timed(lock.acquire, False)
    assert isinstance(error, QuorumError)
    assert seconds < PATIENCE
    assert [vote.choice.value for vote in error.votes].count("failed") >= 3
    assert [vote.node for vote in error.votes] == [f"127.0.0.1:{port}" for port in nodes.ports]
    assert all(vote.node in str(error) and vote.detail for vote in error.votes)
    assert "'x'" in str(error)


def test_acquire_raises_quorum_error_when_the_timeout_is_over(lock, nodes):
    for i in range(3):
        nodes.kill(i)
    error, seconds = timed(lock.acquire, timeout=0.5)
    assert isinstance(error, QuorumError)
    assert 0.5 <= seconds < PATIENCE


def test_with_raises_quorum_error_and_never_runs_the_body(client, nodes):
    for i in range(3):
        nodes.kill(i)
    with pytest.raises(QuorumError), client.get_lock("x", timeout=0.2):
        pytest.fail("ran without the lock")


def test_acquire_waits_until_the_nodes_are_back(lock, nodes, other, raw, eventually):
    for i in range(3):
        nodes.kill(i)
    waiter = other.start(lock.acquire)
    with pytest.raises(TimeoutError):
        waiter.result(0.2)
    for i in range(3):
        nodes.restart(i)
    assert waiter.result(20) is True
    other.do(lock.release)
    eventually(lambda: raw.keys() == [set()] * 5)


def test_failed_round_leaves_no_claim_on_the_nodes_that_granted(lock, nodes, raw, eventually):
    for i in range(3):
        nodes.pause(i)
    with pytest.raises(QuorumError):
        lock.acquire(False)
    eventually(lambda: claims(raw[3:]) == [{}] * 2)
    for i in range(3):
        nodes.resume(i)
    eventually(lambda: claims(raw) == [{}] * 5)
    assert eventually(lambda: lock.acquire(timeout=5))


def test_release_is_owed_to_nodes_that_do_not_answer(lock, nodes, raw, eventually):
    lock.acquire()
    eventually(lambda: raw.count("redsync:x") == 5)
    for i in range(3):
        nodes.pause(i)
    lock.release()
    assert not lock.owned()
    for i in range(3):
        nodes.resume(i)
    eventually(lambda: raw.keys() == [set()] * 5)


# Leases


def test_given_lease_is_not_renewed(client, other, raw, eventually):
    lock = client.get_lock("x")
    started = time.monotonic()
    assert lock.acquire(lease=SHORT)
    assert 0 < lock.remaining() <= SHORT * 0.99 - 0.002
    assert all(0 < node.pttl("redsync:x") <= SHORT * 1000 for node in raw if node.exists("redsync:x"))
    assert other.do(lock.acquire, timeout=20)
    assert time.monotonic() - started >= SHORT * 0.99
    assert not lock.owned()
    assert lock.remaining() == 0.0
    assert lock.hold_count() == 0
    with pytest.raises(LeaseLostError):
        lock.release()
    with pytest.raises(NotOwnedError) as info:
        lock.release()
    assert not isinstance(info.value, LeaseLostError)


def test_lease_option_of_the_lock_is_not_renewed(client, eventually):
    lock = client.get_lock("x", lease=SHORT)
    with pytest.raises(LeaseLostError), lock as hold:  # noqa: PT012  # the body of the lock
        assert hold.remaining() <= SHORT
        assert hold.wait_lost(5)
        assert not lock.owned()


def test_lease_argument_precedes_the_option(client):
    lock = client.get_lock("x", lease=5)
    lock.acquire(lease=20)
    assert 10 < lock.remaining() <= 20


@pytest.mark.asyncio_in_sweeps
def test_watchdog_renews_for_as_long_as_the_lock_is_held(make_client, other, raw):
    client = make_client(lease=SHORT)
    lock = client.get_lock("x")
    with lock as hold:
        until = time.monotonic() + 3 * SHORT
        while time.monotonic() < until:
            assert 0 < hold.remaining() <= SHORT
            assert lock.owned()
            assert not hold.lost
            assert not other.do(lock.acquire, timeout=0.1)
    assert other.do(lock.acquire, False)
    other.do(lock.release)


def test_watchdog_stops_when_the_lock_is_released(make_client, raw, eventually):
    client = make_client(lease=SHORT)
    with client.get_lock("x"):
        pass
    until = time.monotonic() + SHORT
    eventually(lambda: raw.keys() == [set()] * 5)
    while time.monotonic() < until:
        assert raw.keys() == [set()] * 5


LEASES_REFUSED = [0, -1, -0.5, float("inf"), float("nan"), 0.001, 0.002, 1e12]


@pytest.mark.parametrize("lease", LEASES_REFUSED)
def test_lease_is_refused_when_no_claim_can_live_on_it(client, lock, raw, lease):
    with pytest.raises(ValueError, match="lease"):
        lock.acquire(lease=lease)
    with pytest.raises(ValueError, match="lease"):
        client.get_lock("x", lease=lease)
    with pytest.raises(ValueError, match=r"lease|max_hold"):
        client.get_lock("x", max_hold=lease)
    assert raw.keys() == [set()] * 5
    with lock as hold:
        with pytest.raises(ValueError, match="lease"):
            lock.extend(lease)
        with pytest.raises(ValueError, match="lease"):
            hold.extend(lease)
        assert 25 < hold.remaining() <= 30


def test_lease_is_refused_when_used_up_by_the_drift_of_the_client(make_client):
    lock = make_client(drift_factor=0.5).get_lock("x")
    with pytest.raises(ValueError, match="drift"):
        lock.acquire(lease=0.004)


@pytest.mark.parametrize("timeout", [-2, float("nan"), float("inf")])
def test_timeout_option_is_refused_when_it_is_none(client, timeout):
    with pytest.raises(ValueError, match="timeout"):
        client.get_lock("x", timeout=timeout)


def test_nested_lease_never_shortens(lock, raw):
    lock.acquire()
    lock.acquire(lease=1)
    assert lock.remaining() > 25
    lock.release()
    assert lock.remaining() > 25
    assert sum(node.pttl("redsync:x") > 25_000 for node in raw) >= 3


def test_nested_lease_may_lengthen(lock):
    lock.acquire(lease=2)
    lock.acquire(lease=10)
    assert 5 < lock.remaining() <= 10


@pytest.mark.asyncio_in_sweeps
def test_nested_acquisition_inherits_renewal(make_client):
    lock = make_client(lease=SHORT).get_lock("x")
    lock.acquire()
    lock.acquire(lease=SHORT)
    until = time.monotonic() + 2 * SHORT
    while time.monotonic() < until:
        assert lock.hold_count() == 2
        time.sleep(0.01)


def test_nested_acquisition_inherits_the_lack_of_renewal(make_client, eventually):
    lock = make_client(lease=SHORT).get_lock("x")
    lock.acquire(lease=SHORT)
    lock.acquire()
    eventually(lambda: not lock.owned())
    with pytest.raises(LeaseLostError):
        lock.release()


def test_extend_lengthens_on_the_nodes(lock, raw, eventually):
    lock.acquire(lease=1)
    lock.extend(20)
    assert 15 < lock.remaining() <= 20
    eventually(lambda: all(15_000 < node.pttl("redsync:x") <= 20_000 for node in raw))


def test_extend_takes_the_lease_of_the_acquisition(lock):
    lock.acquire(lease=2)
    before = lock.remaining()
    time.sleep(0.1)
    assert lock.remaining() < before - 0.09
    lock.extend()
    assert before - 0.1 < lock.remaining() <= 2


def test_extend_never_shortens(lock, raw):
    lock.acquire(lease=20)
    lock.extend(1)
    assert lock.remaining() > 15
    assert sum(node.pttl("redsync:x") > 15_000 for node in raw) >= 3


def test_extend_is_refused_when_not_held(lock, other):
    with pytest.raises(NotOwnedError):
        lock.extend()
    other.do(lock.acquire)
    with pytest.raises(NotOwnedError) as info:
        lock.extend(5)
    assert not isinstance(info.value, LeaseLostError)


def test_extend_raises_when_the_hold_was_lost(lock, raw, eventually):
    lock.acquire()
    flush(raw, 3)
    with pytest.raises(LeaseLostError):
        lock.extend()
    assert not lock.owned()
    with pytest.raises(LeaseLostError):
        lock.extend()
    eventually(lambda: raw.keys() == [set()] * 5)


def test_extend_without_quorum_leaves_the_hold_as_it_was(lock, nodes):
    with lock as hold:
        for i in range(3):
            nodes.kill(i)
        with pytest.raises(QuorumError) as info:
            lock.extend(60)
        assert len(info.value.votes) == 5
        assert lock.owned()
        assert 20 < hold.remaining() <= 30


# Looking


def test_locked_tells_of_anyone(client, make_client, other):
    lock, elsewhere = client.get_lock("x"), make_client().get_lock("x")
    assert not lock.locked()
    with lock:
        assert lock.locked()
        assert other.do(lock.locked)
        assert elsewhere.locked()
    assert not elsewhere.locked()
    assert not lock.locked()


def test_locked_asks_for_a_quorum_of_nodes(lock, raw):
    for node in raw[:2]:
        node.hset("redsync:x", "somebody:1", 1)
    assert not lock.locked()
    raw[2].hset("redsync:x", "somebody:1", 1)
    assert lock.locked()


def test_locked_is_false_when_different_owners_have_minorities(lock, raw):
    for i, node in enumerate(raw):
        node.hset("redsync:x", f"somebody:{i % 3}", 1)
    assert not lock.locked()


def test_locked_is_true_when_a_silent_node_may_complete_the_quorum(client, lock, nodes, raw, eventually):
    for node in raw[3:]:
        node.hset("redsync:x", "somebody:1", 1)
    nodes.kill(0)
    eventually(lambda: client.nodes()[0].state == "down")
    for node in raw[3:]:
        node.execute_command("CLIENT", "PAUSE", 100)  # these two answer after the two that know of nobody
    assert lock.locked()


def test_locked_raises_quorum_error_when_a_majority_is_silent(lock, nodes):
    for i in (2, 3, 4):
        nodes.pause(i)
    nodes.kill(2)
    with pytest.raises(QuorumError):
        lock.locked()


def test_locked_raises_quorum_error_when_too_few_nodes_answer(lock, nodes):
    for i in range(3):
        nodes.kill(i)
    with pytest.raises(QuorumError) as info:
        lock.locked()
    assert len(info.value.votes) == 5


def test_owned_is_about_this_thread(lock, other):
    assert not lock.owned()
    with lock:
        assert lock.owned()
        assert lock.remaining() > 25
        assert not other.do(lock.owned)
        assert other.do(lock.hold_count) == 0
        assert other.do(lock.remaining) == 0.0
    assert not lock.owned()
    assert lock.remaining() == 0.0


def test_lock_says_its_name_when_printed(lock):
    assert "'x'" in repr(lock)


# Releasing


def test_release_changes_nothing_when_another_thread_holds_it(lock, other, raw, eventually):
    owner = other.do(lambda: lock.__enter__().owner).encode()
    eventually(lambda: claims(raw) == [{owner: b"1"}] * 5)
    with pytest.raises(NotOwnedError, match="'x'") as info:
        lock.release()
    assert not isinstance(info.value, LeaseLostError)
    assert claims(raw) == [{owner: b"1"}] * 5
    assert other.do(lock.owned)


def test_release_says_of_each_acquisition_that_it_was_lost(lock, raw):
    lock.acquire()
    lock.acquire()
    lose(raw, lock)
    for _ in range(2):
        with pytest.raises(LeaseLostError, match="'x'"):
            lock.release()
    with pytest.raises(NotOwnedError) as info:
        lock.release()
    assert not isinstance(info.value, LeaseLostError)


def test_release_raises_when_a_majority_forgot_the_claim(lock, raw, eventually):
    lock.acquire()
    flush(raw, 3)
    with pytest.raises(LeaseLostError):
        lock.release()
    eventually(lambda: raw.keys() == [set()] * 5)
    assert lock.acquire(False)


def test_release_is_quiet_when_a_minority_forgot_the_claim(lock, raw, eventually):
    lock.acquire()
    flush(raw, 2)
    lock.release()
    eventually(lambda: raw.keys() == [set()] * 5)


def test_release_does_not_touch_who_has_the_lock_now(client, lock, raw, other, eventually):
    lock.acquire()
    flush(raw)
    owner = other.do(lambda: lock.__enter__().owner).encode()
    with pytest.raises(LeaseLostError):
        lock.release()
    eventually(lambda: claims(raw) == [{owner: b"1"}] * 5)
    assert other.do(lock.owned)


def test_force_release_takes_the_lock_from_its_holder(make_client, other, raw, eventually):
    client, operator = make_client(lease=SHORT), make_client()
    lost = []
    lock = client.get_lock("x", on_lost=lost.append)
    hold = lock.__enter__()
    assert other.do(operator.get_lock("x").force_release) is True
    eventually(lambda: raw.keys() == [set()] * 5)
    # Told by the next renewal, before the lease would have ended unrenewed.
    eventually(lambda: lost)
    assert hold.lost
    assert not lock.owned()
    with pytest.raises(LeaseLostError):
        lock.release()
    assert lost == [lost[0]]
    eventually(lambda: raw.keys() == [set()] * 5)


def test_force_release_returns_false_when_free(lock):
    assert lock.force_release() is False


def test_force_release_ends_all_nested_holds(lock):
    lock.acquire()
    lock.acquire()
    assert lock.force_release() is True
    assert not lock.locked()
    assert lock.force_release() is False
    for _ in range(2):
        with pytest.raises(LeaseLostError):
            lock.release()


def test_force_release_wakes_a_waiter(client, make_worker, eventually, promptly):
    lock = client.get_lock("x")

    def force():
        make_worker().do(lock.acquire)
        worker = make_worker()
        waiter = worker.start(lambda: lock.acquire() and time.monotonic())
        eventually(lambda: client.inspect("x").waiters)
        forced = time.monotonic()
        assert lock.force_release() is True
        took = waiter.result(20) - forced
        worker.do(lock.release)
        return took

    # Without a wake-up the waiter would look again after 0.5 s at the earliest.
    promptly(force, 0.25)


def test_force_release_raises_quorum_error_when_too_few_nodes_answer(lock, nodes):
    for i in range(3):
        nodes.kill(i)
    with pytest.raises(QuorumError):
        lock.force_release()


# with


def test_with_waits_for_ever_by_default(lock, other):
    def enter():
        with lock:
            return True

    lock.acquire()
    waiter = other.start(enter)
    with pytest.raises(TimeoutError):
        waiter.result(0.3)
    lock.release()
    assert waiter.result(20)


def test_with_raises_acquire_timeout_and_never_runs_the_body(client, other):
    lock = client.get_lock("x", timeout=0.2)
    other.do(lock.acquire)
    started = time.monotonic()
    with pytest.raises(AcquireTimeout, match="'x'") as info, lock:
        pytest.fail("ran without the lock")
    assert 0.2 <= time.monotonic() - started < PATIENCE
    assert info.value.timeout == 0.2
    assert info.value.name == "x"


def test_with_tries_once_when_its_timeout_is_0(client, other):
    lock = client.get_lock("x", timeout=0)
    other.do(lock.acquire)
    with pytest.raises(AcquireTimeout), lock:
        pytest.fail("ran without the lock")
    other.do(lock.release)
    with lock:
        assert lock.owned()


def test_timeout_option_does_not_change_acquire(client, other):
    lock = client.get_lock("x", timeout=0)
    other.do(lock.acquire)
    waiter = threading.Thread(target=lock.acquire)
    waiter.start()
    waiter.join(0.3)
    assert waiter.is_alive()
    other.do(lock.release)
    waiter.join(20)
    assert not waiter.is_alive()


def test_with_raises_on_exit_when_the_hold_was_lost(lock, raw):
    ran = False
    with pytest.raises(LeaseLostError, match="'x'"), lock:  # noqa: PT012  # the body of the lock
        flush(raw)
        ran = True
    assert ran
    assert lock.acquire(False)


def test_with_adds_a_note_to_the_error_of_the_body_when_the_hold_was_lost(lock, raw):
    error = KeyError("mine")
    with pytest.raises(KeyError) as info, lock:  # noqa: PT012  # the body of the lock
        flush(raw)
        raise error
    assert info.value is error
    assert any("'x'" in note and "lost" in note for note in error.__notes__)
    assert lock.acquire(False)


def test_with_adds_no_note_when_the_hold_was_kept(lock):
    with pytest.raises(KeyError) as info, lock:
        raise KeyError
    assert not hasattr(info.value, "__notes__")


def test_with_is_quiet_when_the_hold_was_released_inside(lock, other):
    with lock as hold:
        hold.release()
        assert other.do(lock.acquire, False)
    assert other.do(lock.owned)
    assert not lock.owned()


def test_with_releases_only_its_own_acquisition(lock):
    lock.acquire()
    with lock as hold:
        hold.release()
    assert lock.hold_count() == 1
    with lock:
        pass
    assert lock.hold_count() == 1


def test_with_of_one_object_works_in_many_threads(lock, make_worker):
    def enter():
        for _ in range(5):
            with lock, lock:
                assert lock.hold_count() == 2

    for task in [make_worker().start(enter) for _ in range(4)]:
        task.result(20)
    assert not lock.locked()


# Values of other types


def put_string(node):
    node.set("redsync:x", "theirs")


def put_list(node):
    node.rpush("redsync:x", "theirs")


@pytest.mark.parametrize("put", [put_string, put_list])
def test_foreign_value_is_refused_and_left_as_it_is(client, raw, put):
    for node in raw:
        put(node)
    before = [node.dump("redsync:x") for node in raw]
    lock = client.get_lock("x")
    for arguments in ((False,), (True, 60), ()):
        error, seconds = timed(lock.acquire, *arguments)
        assert isinstance(error, KeyTypeError)
        assert "'x'" in str(error)
        assert len(error.votes) == 5
        assert seconds < PATIENCE
    with pytest.raises(KeyTypeError), lock:
        pytest.fail("ran without the lock")
    with pytest.raises(KeyTypeError):
        lock.force_release()
    assert not lock.owned()
    assert [node.dump("redsync:x") for node in raw] == before
    assert [node.pttl("redsync:x") for node in raw] == [-1] * 5
    assert raw.keys() == [{b"redsync:x"}] * 5


@pytest.mark.parametrize("put", [put_string, put_list])
def test_foreign_values_on_a_minority_do_no_harm(lock, raw, put, eventually):
    for node in raw[:2]:
        put(node)
    with lock:
        lock.extend()
        assert lock.acquire(False)
        lock.release()
    eventually(lambda: raw.keys() == [{b"redsync:x"}] * 2 + [set()] * 3)
    assert [node.type("redsync:x") for node in raw[:2]] != [b"hash"] * 2


def test_foreign_value_that_replaced_the_claim_is_a_loss(lock, raw):
    lock.acquire()
    for node in raw:
        node.set("redsync:x", "theirs")
    with pytest.raises(LeaseLostError):
        lock.release()
    assert [node.get("redsync:x") for node in raw] == [b"theirs"] * 5


# Errors


@pytest.mark.parametrize(
    ("error", "bases"),
    [
        (AcquireTimeout, [TimeoutError]),
        (NotOwnedError, [RuntimeError]),
        (LeaseLostError, [NotOwnedError, RuntimeError]),
        (QuorumError, [ConnectionError]),
        (OverReleaseError, [ValueError]),
        (KeyTypeError, [TypeError]),
        (ConfigurationError, [ValueError]),
        (ClientClosedError, [RuntimeError]),
    ],
)
def test_error_is_a_redsync_error_and_a_builtin_one(error, bases):
    for base in [RedsyncError, *bases]:
        assert issubclass(error, base)


def test_errors_of_different_meaning_are_no_kin():
    kinds = [AcquireTimeout, NotOwnedError, QuorumError, OverReleaseError, KeyTypeError, ConfigurationError]
    for one, another in itertools.permutations([*kinds, ClientClosedError], 2):
        assert not issubclass(one, another)


# Weak references


def test_lock_is_freed_when_its_last_reference_goes(client):
    lock = client.get_lock("x")
    with lock:
        pass
    reference = weakref.ref(lock)
    assert reference() is lock
    del lock
    gc.collect()
    assert reference() is None


def test_forgotten_lock_stays_held(client, other):
    client.get_lock("x").acquire()
    gc.collect()
    assert not other.do(client.get_lock("x").acquire, False)
    client.get_lock("x").release()
    assert other.do(client.get_lock("x").acquire, False)
