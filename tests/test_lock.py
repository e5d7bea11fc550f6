"""The reentrant lock as its users meet it: the public contract, on real nodes, in threads."""

import contextlib
import gc
import signal
import threading
import time

import pytest

from redsync import (
    QuorumError,
)
from tests.support.locks import PATIENCE, claims, timed

pytestmark = pytest.mark.usefixtures("both_flavours")

# Owners, hold counts, and what the nodes store


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


def test_names_with_and_without_braces_are_different_locks(client):
    locks = [client.get_lock(name) for name in ("x", "{x}", ":x", "{:x}", ":{x}")]
    with contextlib.ExitStack() as stack:
        for lock in locks:
            assert not lock.locked()
            stack.enter_context(lock)


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
    ((True, 0.3), {}),
    ((True,), {"timeout": 0.3}),
    ((), {"blocking": False}),
    ((), {"blocking": False, "timeout": -1}),
    ((), {"blocking": True, "timeout": 0.3}),
]


@pytest.mark.parametrize(("args", "kwargs"), WAYS_TO_ACQUIRE)
def test_acquire_returns_true_when_free_or_owned(rlock, args, kwargs):
    assert rlock.acquire(*args, **kwargs) is True
    assert rlock.acquire(*args, **kwargs) is True
    rlock.release()
    rlock.release()


BOUNDED = [way for way in WAYS_TO_ACQUIRE if way[0][:1] in {(False,), (0,)} or 0 in way[0] or 0.3 in way[0] or way[1]]


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


def test_acquire_waits_for_ever_by_default(rlock, other):
    rlock.acquire()
    waiter = other.start(rlock.acquire)
    with pytest.raises(TimeoutError):
        waiter.result(0.3)
    rlock.release()
    assert waiter.result(20) is True
    other.do(rlock.release)


# Waiting


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


# Without a quorum


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


# Leases


def test_lease_is_refused_when_used_up_by_the_drift_of_the_client(make_client):
    lock = make_client(drift_factor=0.5).get_lock("x")
    with pytest.raises(ValueError, match="drift"):
        lock.acquire(lease=0.004)


# Looking


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


# with


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


def test_with_releases_only_its_own_acquisition(lock):
    lock.acquire()
    with lock as hold:
        hold.release()
    assert lock.hold_count() == 1
    with lock:
        pass
    assert lock.hold_count() == 1


# Weak references


def test_forgotten_lock_stays_held(client, other):
    client.get_lock("x").acquire()
    gc.collect()
    assert not other.do(client.get_lock("x").acquire, False)
    client.get_lock("x").release()
    assert other.do(client.get_lock("x").acquire, False)
