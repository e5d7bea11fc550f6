"""The mutex as its users meet it: the public contract, on real nodes, in threads.

Beside `threading.Lock`, whose contract it has, with its owner: the object. `tests/test_mutex_trouble.py` goes on with
what can happen to it.
"""

import contextlib
import os
import threading
import time

import pytest

from redsync import (
    AcquireTimeout,
    Hold,
    HoldOrphaned,
    LeaseLostError,
    NotOwnedError,
)
from tests.support.locks import PATIENCE, SHORT, values

pytestmark = pytest.mark.usefixtures("both_flavours", "all_nodes_met")

# What the nodes store


def test_acquire_stores_string_with_expiry_that_release_removes(client, mutex, raw, eventually):
    assert mutex.acquire() is True
    eventually(lambda: raw.count("redsync:x") == 5)
    assert [node.type("redsync:x") for node in raw] == [b"string"] * 5
    assert all(25_000 < node.pttl("redsync:x") <= 30_000 for node in raw)
    assert raw.keys() == [{b"redsync:x"}] * 5
    mutex.release()
    eventually(lambda: raw.keys() == [set()] * 5)


def test_value_is_the_same_on_all_nodes_and_unique_to_the_request(client, make_client, raw, eventually):
    mutex, elsewhere = client.get_mutex("x"), make_client().get_mutex("x")
    seen = []
    for each in (mutex, mutex, client.get_mutex("x"), elsewhere, mutex):
        with each as hold:
            eventually(lambda: raw.count("redsync:x") == 5)
            assert values(raw) == [hold.owner.encode()] * 5
            seen.append(hold.owner)
        eventually(lambda: raw.count("redsync:x") == 0)
    assert len(set(seen)) == 5
    assert all(20 <= len(value) <= 64 for value in seen)


def test_name_may_be_any_bytes(client, raw, eventually):
    for name in ("ä€", b"\x00\xff\r\n", "a{b}c", "x" * 512):
        mutex = client.get_mutex(name)
        assert mutex.name == name
        with mutex as hold:
            assert hold.name == name
            key = b"redsync:" + (name.encode() if isinstance(name, str) else name)
            eventually(lambda: raw.keys() == [{key}] * 5)  # noqa: B023  # called now
        eventually(lambda: raw.keys() == [set()] * 5)


@pytest.mark.parametrize("name", ["", b"", "x" * 513, "é" * 257], ids=range(4))
def test_name_is_refused_when_empty_or_longer_than_512_bytes(client, name):
    with pytest.raises(ValueError, match="1 to 512 bytes"):
        client.get_mutex(name)


# Side by side with threading.Lock


@pytest.fixture(params=["threading.Lock", "redsync"])
def plain(request, make_client):
    return threading.Lock() if request.param == "threading.Lock" else make_client().get_mutex("like Lock")


WAYS_TO_ACQUIRE = [
    ((False,), {}),
    ((True, 0), {}),
    ((False, -1), {}),
    ((True, 0.1), {}),
    ((), {"blocking": False}),
    ((), {"timeout": 0.1}),
]


@pytest.mark.parametrize(("args", "kwargs"), WAYS_TO_ACQUIRE)
def test_acquire_is_true_when_free_and_false_when_held_by_anyone(plain, other, args, kwargs):
    assert plain.acquire(*args, **kwargs) is True
    assert plain.acquire(*args, **kwargs) is False
    assert other.do(plain.acquire, *args, **kwargs) is False
    assert plain.locked()
    plain.release()
    assert not plain.locked()


@pytest.mark.parametrize("args", [(False, 0), (False, 1), (False, -2), (True, -2), (True, -0.5), (True, float("nan"))])
def test_acquire_raises_value_error_when_arguments_contradict(plain, args):
    with pytest.raises(ValueError):  # noqa: PT011  # the words of Lock differ between versions
        plain.acquire(*args)
    assert plain.acquire(False)
    plain.release()


def test_second_acquire_waits_until_another_thread_releases(plain, other, eventually):
    plain.acquire()
    second = other.start(plain.acquire)
    with pytest.raises(TimeoutError):
        second.result(0.1)
    plain.release()
    assert second.result(20) is True
    assert plain.locked()
    plain.release()


def test_release_works_in_any_thread_and_once(plain, other):
    plain.acquire()
    other.do(plain.release)
    for release in (plain.release, lambda: other.do(plain.release)):
        with pytest.raises(RuntimeError):
            release()
    assert other.do(plain.acquire, False)
    plain.release()


def test_with_is_not_reentrant_and_releases_when_the_body_raises(plain, other):
    with pytest.raises(KeyError), plain:  # noqa: PT012  # its body
        assert not plain.acquire(False)
        assert not other.do(plain.acquire, False)
        raise KeyError
    assert plain.acquire(False)
    plain.release()


def test_with_raises_when_the_body_released_it(plain):
    with pytest.raises(RuntimeError), plain:
        plain.release()
    assert plain.acquire(False)
    plain.release()


def test_with_releases_what_the_body_released_and_acquired_again(plain):
    with plain:
        plain.release()
        plain.acquire()
    assert plain.acquire(False)
    plain.release()


def test_exit_releases_what_acquire_took(plain):
    with contextlib.ExitStack() as stack:
        assert plain.acquire(timeout=1)
        stack.push(plain)
    assert plain.acquire(False)
    plain.release()


def test_exit_works_in_another_thread_than_enter(plain, other):
    plain.__enter__()
    other.do(plain.__exit__, None, None, None)
    assert plain.acquire(False)
    plain.__exit__(None, None, None)
    assert plain.acquire(False)
    plain.release()


def test_condition_releases_while_it_waits_and_is_notified(plain, other, eventually):
    condition = threading.Condition(plain)
    woken = []

    def wait():
        with condition:
            woken.append(condition.wait(10))

    def waits():
        with condition:
            return bool(condition._waiters)

    waiter = other.start(wait)
    eventually(waits)
    with condition:
        condition.notify()
    waiter.result(20)
    assert woken == [True]
    assert plain.acquire(False)
    plain.release()


def test_condition_holds_again_after_its_timeout(plain, other):
    condition = threading.Condition(plain)
    with condition:
        assert condition.wait(0.05) is False
        assert not other.do(plain.acquire, False)
    assert plain.acquire(False)
    plain.release()


def test_condition_refuses_who_does_not_hold(plain):
    condition = threading.Condition(plain)
    for call in (condition.wait, condition.notify):
        with pytest.raises(RuntimeError):
            call()
    assert plain.acquire(False)
    plain.release()


# Owned by the object


def test_objects_of_one_name_exclude_each_other_in_one_thread(client, mutex, raw, eventually):
    twin = client.get_mutex("x")
    with mutex:
        eventually(lambda: raw.count("redsync:x") == 5)
        before = values(raw)
        assert not twin.acquire(False)
        assert twin.locked()
        assert (twin.owned(), twin.hold_count(), twin.remaining()) == (False, 0, 0.0)
        for operation in (twin.release, twin.extend):
            with pytest.raises(NotOwnedError, match="'x'") as info:
                operation()
            assert not isinstance(info.value, LeaseLostError)
        assert values(raw) == before
    assert twin.acquire(False)
    assert not mutex.acquire(False)


def test_all_threads_see_the_same_owner(mutex, other):
    assert (mutex.owned(), mutex.hold_count(), mutex.remaining()) == (False, 0, 0.0)
    assert mutex.acquire()
    assert mutex.owned()
    assert other.do(mutex.owned)
    assert other.do(mutex.hold_count) == mutex.hold_count() == 1
    assert 25 < other.do(mutex.remaining) <= 30 * 0.99 - 0.002
    other.do(mutex.extend, 60)
    assert mutex.remaining() > 50
    other.do(mutex.release)
    assert (mutex.owned(), mutex.hold_count(), mutex.remaining()) == (False, 0, 0.0)


@pytest.mark.asyncio_in_sweeps
def test_thread_that_ends_leaves_it_held(make_client, eventually):
    events = []
    client = make_client(lease=SHORT, listeners=[events.append])
    lock, mutex = client.get_lock("of the thread"), client.get_mutex("x")
    thread = threading.Thread(target=lambda: (lock.acquire(), mutex.acquire()))
    thread.start()
    thread.join()
    # The thread's reentrant lock is given back, for nobody else can; so its end was noticed.
    eventually(lambda: [event.name for event in events if isinstance(event, HoldOrphaned)] == ["of the thread"])
    until = time.monotonic() + 1.2 * SHORT
    while time.monotonic() < until:
        assert mutex.owned()
        assert not client.get_mutex("x").acquire(timeout=0.1)
    mutex.release()
    assert not mutex.locked()


def test_threads_that_share_an_object_lose_no_update(mutex, client, make_client, make_worker):
    counter = 0

    def count(mutex):
        nonlocal counter
        for _ in range(8):
            with mutex:
                value = counter
                time.sleep(0.001)
                counter = value + 1

    shared = [mutex, mutex, mutex, client.get_mutex("x"), make_client().get_mutex("x")]
    for task in [make_worker().start(count, each) for each in shared]:
        task.result(30)
    assert counter == 40


# Waiting


@pytest.mark.parametrize("timeout", [0.0, 0.2])
def test_acquire_waits_for_the_whole_timeout_and_leaves_no_queue(mutex, other, raw, timeout, eventually):
    mutex.acquire()
    started = time.monotonic()
    assert other.do(mutex.acquire, timeout=timeout) is False
    assert timeout <= time.monotonic() - started < timeout + PATIENCE
    eventually(lambda: raw.keys() == [{b"redsync:x"}] * 5, within=4.0)  # a place by itself is kept for 5 s


@pytest.mark.parametrize("timeout", [float("inf"), float("-inf"), -2, float("nan")])
def test_timeout_is_refused_when_it_is_none(client, mutex, timeout):
    with pytest.raises(ValueError, match="timeout"):
        mutex.acquire(timeout=timeout)
    with pytest.raises(ValueError, match="timeout"):
        client.get_mutex("x", timeout=timeout)


def test_with_raises_acquire_timeout_and_never_runs_the_body(client, mutex):
    mutex.acquire()
    with pytest.raises(AcquireTimeout, match="'x'") as info, client.get_mutex("x", timeout=0.1):
        pytest.fail("ran without the mutex")
    assert info.value.timeout == 0.1


@pytest.mark.asyncio_in_sweeps
@pytest.mark.parametrize("wake", ["release", "force_release"])
def test_waiter_in_another_thread_is_woken(wake, client, make_client, other, raw, *, eventually, promptly):
    mutex, theirs = client.get_mutex("x"), make_client().get_mutex("x")

    def hand_over():
        mutex.acquire()
        waiter = other.start(lambda: theirs.acquire() and time.monotonic())
        eventually(lambda: client.inspect("x").waiters)
        released_at = time.monotonic()
        getattr(mutex, wake)()
        took = waiter.result(20) - released_at
        # Not on all nodes: it may have asked some of them before they heard of the release.
        eventually(lambda: set().union(*raw.keys()) <= {b"redsync:x"})
        other.do(theirs.release)
        return took

    # Without a wake-up the waiter would look again after 0.5 s at the earliest.
    promptly(hand_over, 0.4)
    eventually(lambda: raw.keys() == [set()] * 5)


def test_waiters_all_get_their_turn(client, mutex, make_worker):
    order = []

    def take(number, each):
        with each:
            order.append(number)

    with mutex:
        objects = [mutex, mutex, client.get_mutex("x"), client.get_mutex("x")]
        waiters = [make_worker().start(take, number, each) for number, each in enumerate(objects)]
    for waiter in waiters:
        waiter.result(20)
    assert sorted(order) == [0, 1, 2, 3]


# Leases, the watchdog, holds


def test_given_lease_is_not_renewed(mutex, client):
    started = time.monotonic()
    assert mutex.acquire(lease=0.3)
    assert 0 < mutex.remaining() <= 0.3 * 0.99 - 0.002
    theirs = client.get_mutex("x")
    assert theirs.acquire(timeout=20)
    assert time.monotonic() - started >= 0.3 * 0.9
    assert (mutex.owned(), mutex.hold_count(), mutex.remaining()) == (False, 0, 0.0)


@pytest.mark.asyncio_in_sweeps
def test_watchdog_renews_for_as_long_as_it_is_held_and_no_longer(make_client, raw, eventually):
    client = make_client(lease=SHORT)
    with client.get_mutex("x") as hold:
        until = time.monotonic() + 1.3 * SHORT
        while time.monotonic() < until:
            assert 0 < hold.remaining() <= SHORT
            assert not client.get_mutex("x").acquire(timeout=0.1)
    until = time.monotonic() + SHORT / 2
    eventually(lambda: raw.keys() == [set()] * 5)
    while time.monotonic() < until:
        assert raw.keys() == [set()] * 5


@pytest.mark.parametrize("lease", [0, -1, float("inf"), float("nan"), 0.002])
def test_lease_is_refused_when_no_claim_can_live_on_it(client, mutex, lease, raw):
    for refuse in (
        lambda: mutex.acquire(lease=lease),
        lambda: client.get_mutex("x", lease=lease),
        lambda: client.get_mutex("x", max_hold=lease),
    ):
        with pytest.raises(ValueError, match=r"lease|max_hold"):
            refuse()
    assert raw.keys() == [set()] * 5


def test_extend_lengthens_on_the_nodes_and_never_shortens(mutex, raw, eventually):
    mutex.acquire(lease=2)
    mutex.extend(20)
    assert 15 < mutex.remaining() <= 20
    eventually(lambda: all(15_000 < node.pttl("redsync:x") <= 20_000 for node in raw))
    mutex.extend(1)
    assert mutex.remaining() > 15
    assert all(node.pttl("redsync:x") > 15_000 for node in raw)


def test_max_hold_ends_a_hold_that_is_renewed(make_client, eventually):
    lost = []
    mutex = make_client(lease=SHORT).get_mutex("x", max_hold=SHORT / 2, on_lost=lost.append)
    mutex.acquire()
    assert 0 < mutex.remaining() <= SHORT / 2
    mutex.extend(20)
    assert mutex.remaining() <= SHORT / 2
    eventually(lambda: lost)
    assert mutex.remaining() == 0.0
    with pytest.raises(LeaseLostError, match="max_hold"):
        mutex.release()
    assert mutex.acquire(timeout=20)
    assert len(lost) == 1


def test_hold_tells_of_itself_and_is_released_from_another_thread(client, mutex, other):
    with mutex as hold:
        assert isinstance(hold, Hold)
        assert hold.owner.startswith(client.id + ":")
        assert (hold.lost, hold.fencing_token, hold.check()) == (False, None, None)
        other.do(hold.release)
        assert (mutex.owned(), hold.lost, hold.remaining()) == (False, False, 0.0)
        assert mutex.acquire(False)
    # The body gave its own hold back by name; what it acquired since is not the block's.
    assert mutex.owned()
    with pytest.raises(NotOwnedError):
        hold.release()
    assert mutex.owned()


def test_inspect_tells_kind_and_holder_and_waiters(client, make_client, mutex, other, eventually):
    assert client.inspect("x").kind == "none"
    with mutex as hold:
        eventually(lambda: client.inspect("x").holders)
        waiter = other.start(make_client().get_mutex("x").acquire, timeout=20)
        eventually(lambda: len(client.inspect("x").waiters) == 1)
        info = client.inspect("x")
        assert info.kind == "mutex"
        (holder,) = info.holders
        assert (holder.owner, holder.pid, holder.hold_count) == (hold.owner, os.getpid(), 1)
        assert 25 < holder.remaining <= 30
    assert waiter.result(20)
