"""The fair lock as its users meet it: whose turn it is, on real nodes, for threads and for asyncio."""

import time

import pytest

from tests.support.locks import PATIENCE

pytestmark = pytest.mark.usefixtures("both_flavours")


@pytest.fixture
def lock(client):
    return client.get_fair_lock("x")


@pytest.fixture
def line_up(client, make_worker, eventually):
    """Let so many workers queue one after the other, and note the order in which they are served."""

    def start(count, served, *, lock=None, hold=0.0):
        lock = lock or client.get_fair_lock("x")

        def take(number):
            with lock:
                served.append(number)
                time.sleep(hold)

        started = []
        for number in range(count):
            started.append(make_worker().start(take, number))
            eventually(lambda number=number: len(client.inspect("x").waiters) == number + 1)
        return started

    return start


def test_waiters_of_many_clients_are_served_in_their_order(make_client, make_worker, client, eventually):
    served = []
    client.get_fair_lock("x").acquire()

    def take(lock, number):
        with lock:
            served.append(number)

    started = []
    for number in range(6):
        started.append(make_worker().start(take, make_client().get_fair_lock("x"), number))
        eventually(lambda number=number: len(client.inspect("x").waiters) == number + 1)
    client.get_fair_lock("x").release()
    for each in started:
        each.result(20)
    assert served == list(range(6))


def test_holder_that_wants_it_again_queues_behind_who_waits(lock, line_up):
    served = []
    lock.acquire()
    started = line_up(3, served)
    lock.release()
    with lock:
        served.append("holder")
    for each in started:
        each.result(20)
    assert served == [0, 1, 2, "holder"]


def test_order_holds_while_a_minority_of_nodes_fails(lock, line_up, nodes):
    served = []
    lock.acquire()
    started = line_up(5, served)
    nodes.kill(0)
    nodes.pause(1)
    lock.release()
    for each in started:
        each.result(30)
    assert served == list(range(5))


def test_place_of_who_gives_up_is_left(client, make_worker, line_up, eventually, raw):
    served = []
    lock = client.get_fair_lock("x")
    lock.acquire()
    impatient = make_worker().start(client.get_fair_lock("x").acquire, timeout=1.0)
    eventually(lambda: client.inspect("x").waiters)
    assert impatient.result(20) is False
    assert client.inspect("x").waiters == ()
    started = line_up(2, served)
    lock.release()
    for each in started:
        each.result(20)
    assert served == [0, 1]
    eventually(lambda: raw.keys() == [set()] * 5)


def test_waiter_whose_client_is_closed_holds_up_nobody(lock, make_client, make_worker, client, eventually):
    other_client = make_client()
    lock.acquire()
    gone = make_worker().start(other_client.get_fair_lock("x").acquire)
    eventually(lambda: len(client.inspect("x").waiters) == 1)
    waiter = make_worker().start(lambda: lock.acquire() and lock.release() is None)
    eventually(lambda: len(client.inspect("x").waiters) == 2)
    other_client.close()
    with pytest.raises(RuntimeError):
        gone.result(20)
    # Its place would end by itself, but later.
    eventually(lambda: len(client.inspect("x").waiters) == 1, within=4.0)
    lock.release()
    assert waiter.result(20)


def test_free_lock_is_refused_to_who_would_overtake(lock, client, make_worker, raw, eventually):
    """A waiter that everybody takes for alive, but that never takes its turn: its place ends by itself."""
    with lock:
        for node in raw:
            keep = round(time.time() * 1000) + 1000
            node.zadd("redsync_queue:{redsync:x}", {"somebody": 1})
            node.hset("redsync_places:{redsync:x}", "somebody", f"{keep} 1 0 0 redsync:wake:{client.id}:0")
    assert make_worker().do(client.get_fair_lock("x").acquire, False) is False
    assert not lock.locked()
    started = time.monotonic()
    assert lock.acquire(timeout=20)
    assert time.monotonic() - started < 1 + PATIENCE
    lock.release()
