"""The public contract of the fair lock: the order of turns, on real nodes, for threads and for asyncio."""

import pytest

pytestmark = pytest.mark.usefixtures("both_flavours")


@pytest.fixture
def lock(client):
    return client.get_fair_lock("x")


@pytest.fixture
def line_up(client, make_client, make_worker, eventually):
    """Make n workers, each with its own client, queue one after the other; record the order of their turns."""

    def start(count, served):
        def take(number):
            with make_client().get_fair_lock("x"):
                served.append(number)

        started = []
        for number in range(count):
            started.append(make_worker().start(take, number))
            eventually(lambda number=number: len(client.inspect("x").waiters) == number + 1)
        return started

    return start


@pytest.mark.asyncio_too
def test_holder_that_acquires_again_queues_behind_waiters(lock, line_up):
    served = []
    lock.acquire()
    started = line_up(3, served)
    lock.release()
    with lock:
        served.append("holder")
    for each in started:
        each.result(20)
    assert served == [0, 1, 2, "holder"]
