"""`min_hold`: no other owner gets the lock earlier, whatever happens; what no owner releases ends with the lease."""

import asyncio
import contextlib
import time
from decimal import Decimal

import pytest

from redsync import AsyncClient, Client, ClientClosedError, QuorumError
from tests.aio_support import in_loop
from tests.support.injection import Interruption, alarm
from tests.support.trouble import hanging

SHORTEST = 0.6
LEASE = 2.0
"""Survives a pause of a second, as it is renewed every third of it."""
FREE_LATE = SHORTEST + LEASE + 20


def wait_until_free(lock, since):
    """Wait until another owner gets the lock; return how long that took since then."""
    assert lock.acquire(timeout=FREE_LATE)
    lock.release()
    return time.monotonic() - since


def interrupt(*_, **__):
    raise Interruption


@pytest.mark.usefixtures("both_flavours")
@pytest.mark.parametrize("kind", ["lock", "fair_lock", "fenced_lock", "mutex"])
def test_release_waits_and_then_hands_over(client, make_client, other, promptly, kind):
    def pause():
        began = time.monotonic()
        with getattr(client, f"get_{kind}")("x", min_hold=SHORTEST):
            waiter = other.start(wait_until_free, rival, began)
        left = time.monotonic() - began
        assert left >= SHORTEST
        assert waiter.result(30) >= SHORTEST
        return left - SHORTEST

    rival = getattr(make_client(), f"get_{kind}")("x")
    promptly(pause, 0.3)


@pytest.mark.usefixtures("both_flavours")
def test_only_the_last_release_waits_and_only_as_long_as_needed(client, promptly):
    lock = client.get_lock("x", min_hold=SHORTEST)

    def nested():
        with lock:
            began = time.monotonic()
            with lock, client.get_lock("x"):
                assert lock.acquire(lease=SHORTEST / 2)  # shorter, but of the nested one
                lock.release()
            inner = time.monotonic() - began
            time.sleep(SHORTEST)
            ended = time.monotonic()
        return max(inner, time.monotonic() - ended)

    promptly(nested, 0.3)


@pytest.mark.usefixtures("both_flavours")
def test_hold_is_renewed_during_the_wait(make_client):
    client = make_client(lease=LEASE)
    began = time.monotonic()
    with client.get_lock("x", min_hold=2 * LEASE):
        pass
    assert time.monotonic() - began >= 2 * LEASE
    assert not client.get_lock("x").locked()


@pytest.mark.parametrize("lease", [LEASE, 5.0])
def test_interrupted_wait_leaves_the_lock_to_its_lease(make_client, lease):
    client, other = make_client(lease=lease), make_client()
    lock = client.get_lock("x", min_hold=2.5)
    began = time.monotonic()
    assert lock.acquire()
    with alarm(interrupt), pytest.raises(Interruption):
        lock.release()
    assert not lock.owned()
    assert other.get_lock("x").locked()
    assert 2.5 <= wait_until_free(other.get_lock("x"), began) < FREE_LATE


def test_body_that_is_interrupted_does_not_wait(make_client, caplog):
    client, other = make_client(lease=LEASE), make_client()
    began = time.monotonic()
    with pytest.raises(Interruption), client.get_lock("x", min_hold=30) as hold:
        raise Interruption
    assert time.monotonic() - began < 20
    assert not hold.lost
    assert other.get_lock("x").locked()
    with pytest.raises(ValueError, match="not this one"), client.get_lock("y", min_hold=SHORTEST):
        raise ValueError("but an error of the body is not this one")
    assert time.monotonic() - began >= SHORTEST


@pytest.mark.usefixtures("both_flavours")
def test_outer_body_that_catches_an_interruption_of_the_inner_one_waits(client, make_client):
    with client.get_lock("x", min_hold=SHORTEST) as hold, contextlib.suppress(Interruption), client.get_lock("x"):
        raise Interruption
    assert not hold.lost
    assert not make_client().get_lock("x").locked()
    lock = client.get_lock("y", min_hold=SHORTEST)
    with lock, contextlib.suppress(Interruption), lock as released:
        released.release()
        raise Interruption
    assert not make_client().get_lock("y").locked()


def test_closed_generator_does_not_wait(client):
    def generator():
        with client.get_lock("x", min_hold=30):
            yield

    began = time.monotonic()
    running = generator()
    next(running)
    running.close()
    assert time.monotonic() - began < 20
    assert client.get_lock("x").locked()


def test_close_leaves_the_lock_of_a_waiting_release_to_its_lease(make_client, other, raw, eventually):
    client, rival = make_client(lease=LEASE), make_client()
    lock = client.get_lock("x", min_hold=4.5)
    began = time.monotonic()
    assert other.do(lock.acquire)
    releasing = other.start(lock.release)
    eventually(lambda: all(node.pttl("redsync:x") > 1000 * LEASE for node in raw))  # lengthened: the release waits
    client.close()
    with pytest.raises(ClientClosedError):
        releasing.result(20)
    assert 4.5 <= wait_until_free(rival.get_lock("x"), began) < FREE_LATE


@pytest.mark.usefixtures("both_flavours")
def test_close_frees_the_lock_whose_shortest_time_is_over(make_client):
    client = make_client()
    assert client.get_lock("x", min_hold=0.1).acquire()
    time.sleep(0.1)
    client.close()
    assert not make_client().get_lock("x").locked()


def test_thread_that_ends_leaves_the_lock_to_its_lease(make_client, make_worker):
    client, rival, worker = make_client(lease=LEASE), make_client(), make_worker()
    began = time.monotonic()
    assert worker.do(client.get_lock("x", min_hold=SHORTEST).acquire)
    worker.end()
    assert SHORTEST <= wait_until_free(rival.get_lock("x"), began) < FREE_LATE


def test_release_in_a_handler_in_the_middle_of_a_step_does_not_delay_renewals(make_client, eventually):
    """The maintenance performs it, and would wait instead of renewing."""
    client, rival = make_client(lease=LEASE), make_client()
    kept, lock = client.get_lock("kept"), client.get_lock("x", min_hold=30)
    assert kept.acquire()
    assert lock.acquire()
    life = client.runner.life
    life.ours.stepping = True
    lock.release()
    life.ours.stepping = False
    before = kept.remaining() + time.monotonic()
    eventually(lambda: kept.remaining() + time.monotonic() > before + LEASE / 2)  # two renewals
    assert rival.get_lock("x").locked()


def test_acquire_that_is_interrupted_after_its_success_frees_the_lock_at_once(client, monkeypatch):
    lock = client.get_lock("x", min_hold=30)

    with monkeypatch.context() as patch:
        patch.setattr(lock, "_enter", interrupt)
        with pytest.raises(Interruption):
            lock.__enter__()
    assert client.get_lock("x").acquire(blocking=False)


@in_loop
async def test_cancelled_wait_leaves_the_lock_to_its_lease(nodes):
    async with AsyncClient(nodes.urls, lease=LEASE, restart_guard=0) as client:
        for cancelled_inside in (False, True):
            entered = asyncio.Event()

            async def hold(inside=cancelled_inside, entered=entered):
                async with client.get_lock("x", min_hold=2.5):
                    entered.set()
                    await asyncio.sleep(30 if inside else 0)

            began = time.monotonic()
            task = asyncio.create_task(hold())
            await entered.wait()
            await asyncio.sleep(0.1)
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task
            assert time.monotonic() - began < 20
            assert await client.get_lock("x").locked()
            assert await client.get_lock("x").acquire(timeout=FREE_LATE)
            assert time.monotonic() - began >= 2.5
            await client.get_lock("x").release()


@in_loop
async def test_nested_acquire_that_fails_neither_shortens_the_hold_nor_waits_for_its_end(nodes):
    """Not even if it has become the only acquisition meanwhile."""
    async with AsyncClient(nodes.urls, restart_guard=0) as client, AsyncClient(nodes.urls, restart_guard=0) as rival:
        lock = client.get_lock("x", min_hold=60)
        async with lock as hold:
            with hanging(nodes, 0, 1, 2):
                releasing = asyncio.create_task(release_soon(hold))
                began = time.monotonic()
                with pytest.raises(QuorumError):
                    await lock.acquire(lease=80)
                assert time.monotonic() - began < 20
                await releasing
            assert not await rival.get_lock("x").acquire(timeout=0.5)


async def release_soon(hold):
    await asyncio.sleep(0.05)
    await hold.release()


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"min_hold": 0}, "min_hold is a positive number of seconds, not 0"),
        ({"min_hold": "1"}, "min_hold is a positive number of seconds, not '1'"),
        (
            {"min_hold": 4.6, "lease": 5},
            "min_hold of 4.6 s is not shorter than nine tenths of lease, after which the hold may end",
        ),
        ({"min_hold": 5, "max_hold": 5}, "min_hold of 5 s is not shorter than max_hold, after which the hold"),
    ],
)
def test_shortest_hold_that_can_not_be_is_refused(options, said):
    with Client("redis://127.0.0.1:1") as client, pytest.raises(ValueError, match=said):
        client.get_read_write_lock("x", **options)


def test_shortest_hold_is_refused_where_it_would_not_hold(client):
    lock = client.get_lock("x", min_hold=5)
    with pytest.raises(ValueError, match="not shorter than nine tenths of lease"):
        lock.acquire(lease=Decimal(5))
    assert lock.acquire(lease=Decimal(6))
    with pytest.raises(ValueError, match="a multi-lock takes no lock with min_hold, such as 'x'"):
        client.get_multi_lock(lock, client.get_lock("y"))
    with pytest.raises(TypeError, match="min_hold"):
        client.get_semaphore("s", 1, min_hold=5)
