"""What can happen to a mutex: lost holds, dropped objects, other processes, values of other types, missing nodes."""

import copy
import gc
import pickle
import subprocess
import sys
import textwrap
import time
import weakref

import pytest

from redsync import (
    AcquireTimeout,
    ClientClosedError,
    Hold,
    HoldLost,
    KeyTypeError,
    LeaseLostError,
    NotOwnedError,
    QuorumError,
)
from redsync.testing import FaultProxy
from tests.support.locks import SHORT, flush, values

pytestmark = pytest.mark.usefixtures("both_flavours", "all_nodes_met")


def start_python(program, mutex):
    """Start a program in a fresh process, where `mutex` is what was pickled here."""
    preamble = "import os, pickle, sys, time\nmutex = pickle.loads(bytes.fromhex(sys.argv[1]))\n"
    return subprocess.Popen(
        [sys.executable, "-c", preamble + textwrap.dedent(program), pickle.dumps(mutex).hex()],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def output(process):
    """Return what a process printed, as words, when it has ended well."""
    text, errors = process.communicate(timeout=30)
    assert process.returncode == 0, text + errors
    return text.split()


# Lost holds


@pytest.mark.parametrize("noticed", [True, False])
def test_second_acquire_raises_after_a_loss_until_it_is_released(noticed, client, mutex, other, raw, *, eventually):
    mutex.acquire(lease=0.3)
    if noticed:
        flush(raw)
        with pytest.raises(LeaseLostError):
            mutex.extend()
    eventually(lambda: not mutex.owned())
    for acquire in (lambda: mutex.acquire(False), lambda: other.do(mutex.acquire, timeout=5), mutex.__enter__):
        with pytest.raises(LeaseLostError, match="'x'"):
            acquire()
    with client.get_mutex("x"):
        with pytest.raises(LeaseLostError):
            mutex.acquire(False)
        with pytest.raises(LeaseLostError):
            mutex.release()
        with pytest.raises(NotOwnedError) as info:
            mutex.release()
        assert not isinstance(info.value, LeaseLostError)
        assert mutex.acquire(False) is False


def test_waiter_is_told_when_its_object_loses_meanwhile(client, mutex, other, raw, eventually):
    """Else the release by the thread that lost would give back what the waiter has got."""
    mutex.acquire(lease=0.3)
    waiter = other.start(mutex.acquire)
    with pytest.raises(LeaseLostError, match="'x'"):
        waiter.result(20)
    with pytest.raises(LeaseLostError):
        mutex.release()
    eventually(lambda: raw.keys() == [set()] * 5)
    assert other.do(mutex.acquire, False)
    mutex.release()


def test_release_after_a_loss_leaves_who_has_it_now_alone(client, mutex, raw, eventually):
    mutex.acquire()
    flush(raw)
    with client.get_mutex("x") as hold:
        with pytest.raises(LeaseLostError, match="'x'"):
            mutex.release()
        eventually(lambda: values(raw) == [hold.owner.encode()] * 5)
        assert not mutex.acquire(False)
        hold.extend()


def test_with_after_a_loss_releases_only_its_own_hold(mutex, other, raw, eventually):
    with pytest.raises(NotOwnedError, match="'x'"), mutex as hold:  # noqa: PT012  # the body of the mutex
        flush(raw)
        with pytest.raises(LeaseLostError):
            other.do(mutex.release)
        assert hold.lost
        with pytest.raises(LeaseLostError):
            hold.check()
        assert other.do(mutex.acquire, False)
        eventually(lambda: raw.count("redsync:x") == 5)
        before = values(raw)
        assert hold.owner.encode() not in before
    assert hold.lost
    assert mutex.owned()
    assert values(raw) == before
    mutex.release()


def test_with_raises_on_exit_after_a_loss_and_body_error_gets_a_note(mutex, raw):
    with pytest.raises(LeaseLostError, match="'x'"), mutex:
        flush(raw)
    error = KeyError("mine")
    with pytest.raises(KeyError) as info, mutex:  # noqa: PT012  # the body of the mutex
        flush(raw)
        raise error
    assert info.value is error
    assert any("'x'" in note and "lost" in note for note in error.__notes__)
    assert mutex.acquire(False)


def test_loss_is_told_once_and_the_nodes_are_free(make_client, raw, caplog, eventually):
    told, events = [], []
    client = make_client(lease=SHORT, listeners=[events.append])
    mutex = client.get_mutex("x", on_lost=told.append)
    with pytest.raises(LeaseLostError), mutex as hold:  # noqa: PT012  # the body of the mutex
        eventually(lambda: raw.count("redsync:x") == 5)
        assert client.get_mutex("x").force_release() is True
        assert hold.wait_lost(5)
        eventually(lambda: told)
    assert [(each.__class__, each.owner, each.lost) for each in told] == [(Hold, hold.owner, True)]
    assert [(each.name, each.owner) for each in events if isinstance(each, HoldLost)] == [("x", hold.owner)]
    assert [record.name for record in caplog.records if record.levelname == "ERROR"] == ["redsync.watchdog"]
    eventually(lambda: raw.keys() == [set()] * 5)
    assert mutex.force_release() is False


def test_minority_that_forgets_is_healed_with_an_expiry(make_client, raw, eventually):
    with make_client(lease=SHORT).get_mutex("x") as hold:
        eventually(lambda: raw.count("redsync:x") == 5)
        flush(raw, 2)
        eventually(lambda: values(raw) == [hold.owner.encode()] * 5)
        assert all(0 < node.pttl("redsync:x") <= SHORT * 1000 for node in raw)
        hold.check()


# Dropped objects

WARNED = ("redsync.watchdog", "WARNING")


@pytest.mark.asyncio_in_sweeps
def test_object_dropped_while_held_is_released_with_a_warning(client, raw, other, caplog, eventually):
    mutex, theirs = client.get_mutex("x"), client.get_mutex("x")
    mutex.acquire()
    waiter = other.start(theirs.acquire)
    eventually(lambda: client.inspect("x").waiters)
    gone = weakref.ref(mutex)
    del mutex
    gc.collect()
    assert gone() is None
    assert waiter.result(20)
    eventually(lambda: WARNED in [(record.name, record.levelname) for record in caplog.records])
    assert "'x'" in caplog.text
    theirs.release()
    eventually(lambda: raw.keys() == [set()] * 5)


def test_object_dropped_while_held_is_released_whoever_wants_to_be_told_of_a_loss(client, caplog, eventually):
    mutex = client.get_mutex("x", on_lost=print)
    mutex.acquire()
    del mutex
    gc.collect()
    eventually(lambda: not client.get_mutex("x").locked(), within=20)
    eventually(lambda: WARNED in [(record.name, record.levelname) for record in caplog.records])


def told(caplog):
    """Return what was logged of holds; on a busy machine nodes may be suspect for a moment, and that is logged too."""
    return [record for record in caplog.records if record.name != "redsync.node"]


def test_object_dropped_when_released_says_nothing(client, caplog, eventually):
    for _ in range(3):
        with client.get_mutex("released"):
            pass
    client.get_mutex("held").acquire()
    gc.collect()
    eventually(lambda: told(caplog))
    assert [record.args[0] for record in told(caplog)] == ["held"]


def test_hold_of_a_with_block_keeps_the_object_alive(client):
    with client.get_mutex("x") as hold:
        gc.collect()
        assert not client.get_mutex("x").acquire(timeout=0.1)
        hold.extend()


# Other processes


@pytest.mark.threads_only
def test_waiter_in_another_process_is_woken(client, mutex, raw, eventually, promptly):
    def hand_over():
        mutex.acquire()
        waiter = start_python("mutex.acquire(); print(time.monotonic()); mutex.release()", mutex)
        eventually(lambda: client.inspect("x").waiters)
        released_at = time.monotonic()
        mutex.release()
        return float(output(waiter)[0]) - released_at

    # Without a wake-up it would look again after 0.5 s at the earliest.
    promptly(hand_over, 0.4)
    eventually(lambda: raw.keys() == [set()] * 5)


IN_CHILD = """
    def in_child(function):
        pid = os.fork()
        if not pid:
            print(function(), flush=True)
            os._exit(0)
        os.waitpid(pid, 0)

    def error(function):
        try:
            return function()
        except Exception as problem:
            return type(problem).__name__
"""


@pytest.mark.threads_only
def test_child_of_a_fork_holds_nothing_and_gives_nothing_back(client, mutex):
    program = """
        hold = mutex.__enter__()
        in_child(lambda: [mutex.owned(), mutex.hold_count(), mutex.remaining(), hold.remaining()])
        in_child(lambda: issubclass(eval(error(mutex.release)), NotOwnedError))
        in_child(lambda: type(mutex).acquire(copy.copy(mutex), False))
        print(mutex.owned(), mutex.locked())
        mutex.extend()
        mutex.__exit__(None, None, None)
        print(mutex.locked())
    """
    lines = "import copy\nfrom redsync import *\n" + textwrap.dedent(IN_CHILD) + textwrap.dedent(program)
    text = " ".join(output(start_python(lines, mutex)))
    assert text == "[False, 0, 0.0, 0.0] True False True True False"


@pytest.mark.threads_only
def test_child_of_a_fork_waits_for_its_parents_hold(client, mutex):
    program = """
        mutex.acquire()
        in_child(lambda: [error(lambda: mutex.acquire(False)), error(lambda: mutex.acquire(timeout=0.1))])
        mutex.release()
        in_child(lambda: mutex.acquire(False))
    """
    text = " ".join(output(start_python(textwrap.dedent(IN_CHILD) + textwrap.dedent(program), mutex)))
    assert text == "[False, False] True"


@pytest.mark.threads_only
@pytest.mark.parametrize("protocol", range(pickle.HIGHEST_PROTOCOL + 1))
def test_pickled_mutex_carries_name_and_options_and_no_hold(client, mutex, protocol):
    options = client.get_mutex("x", timeout=0.1, lease=5, max_hold=3)
    with mutex as hold:
        pickled = pickle.dumps([mutex, options], protocol)
        assert hold.owner.encode() not in pickled
        twin, twin_options = pickle.loads(pickled)
        assert (type(twin), twin.name, twin.owned()) == (type(mutex), "x", False)
        assert not twin.acquire(False)
        with pytest.raises(NotOwnedError):
            twin.release()
        with pytest.raises(AcquireTimeout), twin_options:
            pytest.fail("ran without the mutex")
    with twin_options as bounded:
        assert 2 < bounded.remaining() <= 3
        assert not mutex.acquire(False)


@pytest.mark.threads_only
def test_copied_mutex_is_another_owner(mutex):
    twin = copy.copy(mutex)
    with mutex:
        assert not twin.acquire(False)
    assert twin.acquire(False)
    assert not mutex.owned()
    twin.release()


# Values of other types


def put_lock(node):
    node.hset("redsync:x", "somebody:1", 1)


def put_list(node):
    node.rpush("redsync:x", "theirs")


@pytest.mark.parametrize("put", [put_lock, put_list])
def test_foreign_value_is_refused_and_left_as_it_is(mutex, raw, put):
    for node in raw:
        put(node)
    before = [node.dump("redsync:x") for node in raw]
    for refused in (lambda: mutex.acquire(False), mutex.acquire, mutex.__enter__, mutex.force_release):
        with pytest.raises(KeyTypeError, match="'x'"):
            refused()
    assert not mutex.owned()
    assert [node.dump("redsync:x") for node in raw] == before
    assert [node.pttl("redsync:x") for node in raw] == [-1] * 5
    assert raw.keys() == [{b"redsync:x"}] * 5


def test_foreign_values_on_a_minority_do_no_harm(mutex, raw, eventually):
    for node in raw[:2]:
        put_lock(node)
    with mutex:
        mutex.extend()
    eventually(lambda: raw.keys() == [{b"redsync:x"}] * 2 + [set()] * 3)
    assert [node.type("redsync:x") for node in raw[:2]] == [b"hash"] * 2


def test_lock_and_mutex_of_one_name_exclude_each_other(client, mutex, raw, eventually):
    lock = client.get_lock("x")
    for first, second in ((lock, mutex), (mutex, lock)):
        with first:
            eventually(lambda: raw.count("redsync:x") == 5)
            before = [node.dump("redsync:x") for node in raw]
            for refused in (lambda: second.acquire(False), second.acquire, second.force_release):  # noqa: B023  # called now
                with pytest.raises(KeyTypeError, match="'x'"):
                    refused()
            assert second.locked()
            first.extend()
            assert [node.dump("redsync:x") for node in raw] == before
    eventually(lambda: raw.keys() == [set()] * 5)


def test_string_of_anybody_counts_as_held(client, mutex, raw):
    for node in raw[:3]:
        node.set("redsync:x", "theirs", px=20_000)
    assert not mutex.acquire(False)
    assert mutex.locked()
    (holder,) = client.inspect("x").holders
    assert (holder.owner, holder.pid) == ("theirs", None)
    assert mutex.force_release() is True
    assert mutex.acquire(False)


# Missing nodes, and the end of the client


def test_minority_of_dead_nodes_changes_nothing(client, mutex, nodes):
    nodes.kill(0)
    nodes.kill(1)
    for _ in range(3):
        with mutex as hold:
            assert not client.get_mutex("x").acquire(False)
            mutex.extend()
            hold.check()
        assert not mutex.locked()


def test_majority_of_dead_nodes_is_no_quorum(mutex, nodes):
    for i in range(3):
        nodes.kill(i)
    for refused in (lambda: mutex.acquire(False), lambda: mutex.acquire(timeout=0.2), mutex.locked):
        with pytest.raises(QuorumError, match="'x'") as info:
            refused()
        assert len(info.value.votes) == 5
    assert not mutex.owned()


def test_release_is_owed_to_a_node_that_is_out_of_reach(nodes, make_client, raw, eventually):
    with FaultProxy(nodes.ports[4]) as proxy:
        mutex = make_client([*nodes.urls[:4], proxy.url]).get_mutex("x")
        mutex.acquire()
        eventually(lambda: raw.count("redsync:x") == 5)
        proxy.refuse = True
        proxy.cut()
        mutex.release()
        eventually(lambda: raw.count("redsync:x") == 1)
        proxy.heal()
        eventually(lambda: raw.count("redsync:x") == 0)


def test_close_gives_back_what_objects_hold_without_a_word(make_client, raw, caplog):
    client = make_client()
    mutex, dropped = client.get_mutex("x"), client.get_mutex("y")
    mutex.acquire()
    dropped.acquire()
    client.close()
    del dropped
    gc.collect()
    assert raw.keys() == [set()] * 5
    assert told(caplog) == []
    for refused in (mutex.acquire, mutex.locked, lambda: client.get_mutex("z").acquire(False)):
        with pytest.raises(ClientClosedError):
            refused()
    assert not mutex.owned()
