"""The public contract of the multi-lock: several locks as one, on real nodes, for threads and for asyncio."""

import gc
import itertools
import threading
import time
from contextlib import suppress

import pytest

from redsync import (
    AcquireTimeout,
    AsyncClient,
    Client,
    ClientClosedError,
    KeyTypeError,
    LeaseLostError,
    NotOwnedError,
    QuorumError,
)
from redsync.testing import LocalNodes
from tests.support.locks import PATIENCE, SHORT, lose, timed

pytestmark = pytest.mark.usefixtures("both_flavours", "all_nodes_met")


@pytest.fixture
def locks(client):
    """Four locks of several kinds."""
    return [client.get_lock("b"), client.get_mutex("d"), client.get_fair_lock("a"), client.get_fair_lock("c")]


@pytest.fixture
def multi(client, locks):
    return client.get_multi_lock(*locks)


@pytest.fixture(scope="module")
def three_nodes(server_path):
    with LocalNodes(3, server=server_path) as nodes:
        yield nodes


@pytest.fixture
def far_nodes(three_nodes):
    """Three other nodes, running and empty."""
    three_nodes.reset()
    return three_nodes


@pytest.fixture
def far(make_client, far_nodes):
    """A client of other nodes."""
    client = make_client(far_nodes.urls)
    yield client
    client.close()


def keys(*names):
    return [{f"redsync:{name}".encode() for name in names}] * 5


# Its locks


def test_multi_lock_needs_at_least_one_lock_and_no_name_twice(client, make_client, far, lock):
    """Not even on other nodes: for these, programs share no order, as a node has many URLs."""
    with client.get_multi_lock(lock) as hold:
        assert (hold.name, hold.fencing_token) == (("x",), None)
        assert lock.owned()
    with pytest.raises(ValueError, match="at least one lock"):
        client.get_multi_lock()
    some = make_client(n=1)
    for twin in (lock, client.get_lock(b"x"), client.get_fair_lock("x"), some.get_mutex("x"), far.get_lock("x")):
        with pytest.raises(ValueError, match="'x' is given twice"):
            client.get_multi_lock(lock, client.get_lock("y"), twin)


@pytest.mark.asyncio_too
def test_multi_lock_is_refused_with_anything_but_locks(client, lock, multi, nodes, flavour):
    with lock as hold:
        pass
    if flavour == "threads":
        theirs = AsyncClient(nodes.urls).get_lock("x")
    else:
        with Client(nodes.urls, restart_guard=0.0) as plain:
            theirs = plain.get_lock("x")
    for thing in (None, "x", ["lock"], client, hold, theirs, multi):
        with pytest.raises(TypeError, match="MultiLock takes locks of its flavour, one by one, and no multi-locks"):
            client.get_multi_lock(lock, thing)


# The order


def test_order_does_not_depend_on_the_order_of_the_arguments(client, make_client, far):
    locks = [
        far.get_lock("x"),
        client.get_lock("y"),
        make_client(prefix="a:").get_lock("z"),
        client.get_lock(b"\xff"),
        client.get_fair_lock("ä"),
    ]
    orders = {client.get_multi_lock(*some)._locks for some in itertools.permutations(locks)}
    assert len(orders) == 1
    (order,) = orders
    assert [lock.name for lock in order] == ["z", "x", "y", "ä", b"\xff"]


def test_locks_are_acquired_in_sorted_order(client, other, make_worker, raw, eventually):
    a, b, c = (client.get_lock(name) for name in "abc")
    other.do(b.acquire)
    waiter = make_worker().start(client.get_multi_lock(c, a, b).acquire)
    eventually(lambda: client.inspect("b").waiters)
    assert (a.locked(), raw.count("redsync:c")) == (True, 0)
    other.do(b.release)
    assert waiter.result(20) is True
    eventually(lambda: raw.count("redsync:c") == 5)


# All or none


def test_acquire_leaves_nothing_when_others_hold_one_and_with_names_it(client, multi, locks, other, raw, *, eventually):
    impatient = client.get_multi_lock(*locks, timeout=0.1)
    for held in locks:
        other.do(held.acquire)
        assert multi.acquire(False) is False
        with pytest.raises(AcquireTimeout) as info, impatient:
            pytest.fail("ran without the locks")
        holder = client.inspect(held.name).holders[0].owner
        assert (info.value.name, info.value.timeout, info.value.holder) == (held.name, 0.1, holder)
        assert f"'{held.name}' was still held by {holder} after 0.1 s" in str(info.value)
        assert (multi.owned(), multi.hold_count(), multi.remaining()) == (False, 0, 0.0)
        eventually(lambda held=held: raw.keys() == keys(held.name))
        assert multi.locked()
        other.do(held.release)
        assert not multi.locked()
    assert multi.acquire(timeout=0)
    multi.release()


def test_acquire_releases_all_when_a_key_has_another_type(multi, raw, eventually):
    for node in raw:
        node.lpush("redsync:d", "foreign")
    with pytest.raises(KeyTypeError) as info:
        multi.acquire()
    assert info.value.name == "d"
    eventually(lambda: raw.keys() == keys("d"))


def test_timeout_bounds_the_wait_for_all_locks_together(client, other, make_worker, raw, eventually, *, promptly):
    a, b = client.get_lock("a"), client.get_lock("b")
    third = make_worker()
    third.do(b.acquire)

    def wait_for_both():
        other.do(a.acquire)
        releaser = other.start(lambda: time.sleep(0.4) or a.release())
        result, seconds = timed(client.get_multi_lock(b, a).acquire, timeout=0.5)
        releaser.result(20)
        assert result is False
        eventually(lambda: raw.keys() == keys("b"))
        return seconds

    # If each had the whole timeout it would be 0.9 s.
    assert promptly(wait_for_both, 0.8) >= 0.5
    third.do(b.release)


def test_acquire_releases_all_when_the_nodes_of_one_client_are_down(client, far, far_nodes, raw, eventually):
    multi = client.get_multi_lock(client.get_lock("a"), far.get_lock("b"), client.get_lock("c"))
    far_nodes.kill(0)
    far_nodes.kill(1)
    for options, least in (({"blocking": False}, 0.0), ({"timeout": 0.5}, 0.5)):
        error, seconds = timed(multi.acquire, **options)
        assert isinstance(error, QuorumError)
        assert error.name == "b"
        assert least <= seconds < PATIENCE
        assert not client.get_lock("a").owned()
        eventually(lambda: raw.keys() == [set()] * 5)
    far_nodes.restart(0)
    assert multi.acquire(timeout=20)
    multi.release()


def test_acquire_releases_all_when_the_client_is_closed_meanwhile(make_client, other, client, raw, eventually):
    theirs = client.get_lock("b")
    other.do(theirs.acquire)
    closing = make_client()
    multi = closing.get_multi_lock(client.get_lock("a"), closing.get_lock("b"))
    closer = other.start(lambda: eventually(lambda: client.inspect("b").waiters) and closing.close())
    with pytest.raises(ClientClosedError):
        multi.acquire()
    closer.result(20)
    with pytest.raises(ClientClosedError):
        multi.acquire(False)
    assert not client.get_lock("a").owned()
    eventually(lambda: raw.keys() == keys("b"))
    other.do(theirs.release)


@pytest.mark.parametrize("in_time", [True, False])
def test_acquire_raises_when_one_is_lost_during_the_wait_for_another(client, other, raw, eventually, in_time):
    a, b = client.get_lock("a"), client.get_lock("b")
    other.do(b.acquire)

    def lose_and_release():
        eventually(lambda: client.inspect("b").waiters)
        state = lose(client, "a")
        eventually(lambda: state.lost)
        if in_time:
            b.release()

    loser = other.start(lose_and_release)
    with pytest.raises(LeaseLostError, match="'a' was lost") as info:
        client.get_multi_lock(a, b).acquire(timeout=10 if in_time else 0.6)
    assert info.value.name == "a"
    loser.result(20)
    assert a.hold_count() == b.hold_count() == 0
    if not in_time:
        other.do(b.release)
    assert len(client.runner.session.holds) == 0
    eventually(lambda: raw.keys() == [set()] * 5)
    assert a.acquire(False)


# Re-entry


def test_failed_reentry_keeps_earlier_holds(client, other, raw, eventually):
    """Of a multi-lock with a mutex each one fails."""
    a, b, c = (client.get_lock(name) for name in "abc")
    multi = client.get_multi_lock(a, b, c)
    other.do(c.acquire)
    with b:
        assert multi.acquire(False) is False
        assert multi.acquire(timeout=0.1) is False
        assert (a.hold_count(), b.hold_count()) == (0, 1)
        assert multi.hold_count() == 0
        eventually(lambda: raw.keys() == keys("b", "c"))
    other.do(c.release)
    mutex = client.get_mutex("d")
    with client.get_multi_lock(a, mutex) as hold:
        assert client.get_multi_lock(a, mutex).acquire(False) is False
        assert (a.hold_count(), mutex.hold_count()) == (1, 1)
        hold.check()
    eventually(lambda: raw.keys() == [set()] * 5)


# Release


def test_release_raises_and_changes_nothing_when_one_is_not_held(multi, locks, other, raw, eventually):
    with pytest.raises(NotOwnedError):
        multi.release()
    multi.acquire()
    locks[3].release()
    for operation in (multi.release, multi.extend):
        with pytest.raises(NotOwnedError, match="'c'") as info:
            operation()
        assert not isinstance(info.value, LeaseLostError)
        assert info.value.name == "c"
    assert (multi.owned(), multi.hold_count(), multi.remaining()) == (False, 0, 0.0)
    eventually(lambda: raw.keys() == keys("a", "b", "d"))
    locks[3].acquire()
    multi.release()
    eventually(lambda: raw.keys() == [set()] * 5)


def test_one_loss_is_a_loss_of_all_and_release_releases_all(client, multi, locks, raw, eventually):
    multi.acquire()
    for name in "bd":
        state = lose(client, name)
    eventually(lambda: state.lost)
    assert (multi.owned(), multi.hold_count(), multi.remaining()) == (False, 0, 0.0)
    with pytest.raises(LeaseLostError, match="'b'"):
        multi.extend()
    with pytest.raises(LeaseLostError, match="'d' was lost") as info:
        multi.release()
    (note,) = info.value.__notes__
    assert "'b' was lost" in note
    assert not any(lock.hold_count() for lock in locks)
    with pytest.raises(NotOwnedError) as info:
        multi.release()
    assert not isinstance(info.value, LeaseLostError)
    eventually(lambda: raw.keys() == [set()] * 5)


@pytest.mark.threads_only
def test_errors_of_a_release_do_not_keep_each_other_alive(multi):
    gc.collect()
    before = sum(isinstance(each, NotOwnedError) for each in gc.get_objects())
    with suppress(NotOwnedError), multi:
        multi.release()
    assert sum(isinstance(each, NotOwnedError) for each in gc.get_objects()) == before


# With


def test_with_releases_the_others_and_raises_when_the_body_released_one(multi, locks, raw, eventually):
    with pytest.raises(NotOwnedError, match="'b'"), multi as hold:  # noqa: PT012  # the body of the lock
        locks[0].release()
        with pytest.raises(NotOwnedError):
            hold.release()
        assert locks[1].owned(), "the hold releases all or nothing"
    with pytest.raises(NotOwnedError) as info, multi:
        multi.release()
    assert len(info.value.__notes__) == 3
    eventually(lambda: raw.keys() == [set()] * 5)


def test_withs_of_one_lock_and_of_multi_locks_nest_in_any_order(client, raw, eventually):
    a, b, c = client.get_lock("a"), client.get_fair_lock("b"), client.get_fair_lock("c")
    multi, larger = client.get_multi_lock(b, a), client.get_multi_lock(c, b, a)
    with a as first, multi as second, b as third, larger as fourth:
        assert (a.hold_count(), b.hold_count(), c.hold_count()) == (3, 3, 1)
        assert (multi.hold_count(), larger.hold_count()) == (3, 1)
        for hold in (first, second, third, fourth):
            hold.check()
    assert (a.hold_count(), b.hold_count()) == (0, 0)
    for hold in (first, second, third, fourth):
        with pytest.raises(NotOwnedError):
            hold.check()
    eventually(lambda: raw.keys() == [set()] * 5)


# Loss


def test_wait_lost_ends_when_one_of_another_client_is_lost(client, far, make_worker, other, eventually):
    clients = [client, far, client]
    names = ["a", "b", "c"]
    multi = client.get_multi_lock(*[each.get_lock(name) for each, name in zip(clients, names, strict=True)])
    hold = make_worker().do(multi.__enter__)
    sleeper = other.start(timed, hold.wait_lost, 60)
    first = next(state for state in client.runner.session.holds if state.name == "a")
    eventually(lambda: first.end_waiters)
    lose(far, "b")
    result, seconds = sleeper.result(20)
    assert result is True
    assert seconds < PATIENCE
    assert first.end_waiters == 0
    with pytest.raises(LeaseLostError):
        hold.release()


@pytest.mark.threads_only
def test_wait_lost_waits_for_no_callback(client):
    is_noticed = threading.Event()
    short = client.get_lock("b", lease=SHORT, on_lost=lambda _: is_noticed.wait(PATIENCE))
    with suppress(LeaseLostError), client.get_multi_lock(client.get_lock("a"), short) as hold:
        result, seconds = timed(hold.wait_lost)
        is_noticed.set()
    assert result is True
    assert SHORT / 2 < seconds < PATIENCE / 2


@pytest.mark.asyncio_too
@pytest.mark.parametrize("ending", ["lost", "released"])
def test_wait_lost_sleeps_on_after_a_part_was_released_or_its_client_closed(
    make_client, make_worker, client, eventually, ending
):
    closing, other = make_client(), make_worker()
    locks = [client.get_lock("a"), closing.get_lock("b"), client.get_lock("c")]
    multi, owner = client.get_multi_lock(*locks), make_worker()
    hold = owner.do(multi.__enter__)
    states = {state.name: state for each in (client, closing) for state in each.runner.session.holds}
    sleeper = other.start(hold.wait_lost, 60)
    eventually(lambda: states["a"].end_waiters)
    closing.close()
    owner.do(locks[0].release)
    eventually(lambda: states["c"].end_waiters)
    if ending == "lost":
        lose(client, "c")
    else:
        owner.do(locks[2].release)
    assert sleeper.result(20) is (ending == "lost")


@pytest.mark.asyncio_too
def test_wait_lost_raises_when_its_client_is_closed_and_others_can_still_be_lost(
    make_client, make_worker, other, client, eventually
):
    closing = make_client()
    hold = make_worker().do(client.get_multi_lock(closing.get_lock("a"), client.get_lock("b")).__enter__)
    (first,), (second,) = closing.runner.session.holds, client.runner.session.holds
    sleeper = other.start(hold.wait_lost, 60)
    eventually(lambda: first.end_waiters and second.loss_callbacks)
    closing.close()
    with pytest.raises(ClientClosedError):
        sleeper.result(20)


# Leases, queries, operators


def test_lease_is_each_locks_own_or_the_calls(client, raw, eventually):
    short, long = client.get_lock("a", lease=5), client.get_lock("b")
    multi = client.get_multi_lock(short, long)
    with multi as hold:
        assert 4 < hold.remaining() <= 5
        assert long.remaining() > 25
    assert multi.acquire(lease=10)
    assert 9 < short.remaining() <= 10
    assert 9 < long.remaining() <= 10
    multi.release()


@pytest.mark.asyncio_too
def test_extend_raises_when_too_few_nodes_of_one_answer(client, far, far_nodes):
    multi = client.get_multi_lock(client.get_lock("a"), far.get_lock("b"))
    with multi as hold:
        far_nodes.kill(0)
        far_nodes.kill(1)
        with pytest.raises(QuorumError):
            hold.extend(60)
        hold.check()
        assert client.get_lock("a").remaining() > 50
        assert far.get_lock("b").remaining() <= 30
