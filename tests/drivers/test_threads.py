"""The driver for threads: atomic steps, owners, and protocols that are interrupted."""

import itertools
import threading
import time
from concurrent.futures import ThreadPoolExecutor

import pytest

from redsync import Client, ClientClosedError, LeaseLostError, QuorumError
from redsync._core.effects import Broadcast, Command, Tell, Wait, broadcast, signal, tell, wait
from redsync._drivers.threads import clock


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
            # No effect in between: nobody else may run, though the interpreter would switch threads here.
            before = counter[0]
            for _ in range(20):
                pass
            counter[0] = before + 1
            yield from signal(0, b"nobody")

    with ThreadPoolExecutor(8) as pool:
        list(pool.map(lambda _: runner.run(count(500)), range(8)))
    assert counter == [4000]


def test_effects_are_performed_without_the_monitor(runner):
    """A protocol that sleeps holds nobody else up."""

    def sleep():
        yield from wait(Wait(clock() + 0.5, 0))
        return clock()

    with ThreadPoolExecutor(1) as pool:
        sleeper = pool.submit(runner.run, sleep())
        started_at = clock()
        for _ in range(20):
            runner.run(nothing())
        assert clock() - started_at < 0.4
        assert sleeper.result() - started_at >= 0.4


def nothing():
    yield from signal(0, b"nobody")


def test_errors_and_results_of_a_protocol_come_out(runner):
    def fail():
        yield from signal(0, b"nobody")
        raise KeyError("mine")

    def succeed():
        yield from signal(0, b"nobody")
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


def test_signals_are_never_lost_between_look_and_sleep(runner):
    """A thread looks at a value and sleeps until another has changed it, many times, without any timeout to save it."""
    rounds = 1000
    turn = [0]

    def play(me):
        for number in range(me, rounds, 2):
            while turn[0] != number:
                yield from wait(Wait(clock() + 30, 0, b"turn", unless=lambda number=number: turn[0] == number))
            turn[0] += 1
            yield from signal(0, b"turn")

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
            yield from wait(Wait(clock() + 30, owner.lane, b"key", unless=unless))
        except boom as error:
            seen.append(error)
            yield from tell(Tell(Command(append, (b"list",), (b"told",)), owner.lane, owner))
            command = Command(append, (b"list",), (b"asked",))
            tally = yield from broadcast(Broadcast(command, owner.lane, owner, lambda reply: True, 2.0))
            seen.append(tally.won)
            raise

    with pytest.raises(boom):
        runner.run(work())
    assert seen[1:] == [True]
    assert sum(node.lrange("list", 0, -1) == ["told", "asked"] for node in raw) >= 2


STRIDE = 5
"""Of some 150 points a run tries each fifth; the seed says which."""


def nothing_left(raw, within):
    deadline = time.monotonic() + within
    while any(node.dbsize() for node in raw):
        if time.monotonic() > deadline:
            return False
        time.sleep(0.002)
    return True


@pytest.mark.parametrize("what", ["acquire", "release"])
def test_interruption_at_any_point_leaves_nothing_behind(what, client, raw, inject, seed):
    """The lease is a minute: whatever is left is left by mistake. The lock may be held, but then it can be released."""
    wrong = []
    for point in itertools.count(1 + seed % STRIDE, STRIDE):
        lock = client.get_lock(f"{what} {point}")
        if what == "release":
            assert lock.acquire(timeout=2.0)
            where = inject(point, lock.release)
        else:
            where = inject(point, lambda lock=lock: lock.acquire(timeout=2.0))
        if where is None:
            break
        try:
            if lock.hold_count():
                lock.release()
        except LeaseLostError:
            wrong.append(f"{where}: a hold was believed that had been undone")
        # A connection that was given up takes a moment to come back, and then its node gets what it is owed.
        if not nothing_left(raw, within=2.5):
            wrong.append(f"{where}: left {[node.keys() for node in raw]}")
            for node in raw:
                node.flushall()
        started_at = time.monotonic()
        try:
            with client.get_lock("next", timeout=1.0):
                pass
        except QuorumError as error:
            wrong.append(f"{where}: {error}")
            break
        if time.monotonic() - started_at > 0.5:
            wrong.append(f"{where}: the next lock took {time.monotonic() - started_at:.2f} s")
    print(f"{point} points")
    assert wrong == []
    assert point > 50


def test_closed_client_lets_waiters_go(client, nodes):
    holder, waiter = threading.Event(), []

    def wait_for_it():
        holder.wait(5)
        with pytest.raises(ClientClosedError):
            client.get_lock("x").acquire()
        waiter.append(time.monotonic())

    thread = threading.Thread(target=wait_for_it)
    thread.start()
    client.get_lock("x").acquire()
    holder.set()
    deadline = time.monotonic() + 5
    while not client.inspect("x").waiters:
        assert time.monotonic() < deadline
        time.sleep(0.005)
    started_at = time.monotonic()
    client.close()
    thread.join(5)
    assert waiter[0] - started_at < 1.0
    with pytest.raises(ClientClosedError):
        client.get_lock("x").acquire()
