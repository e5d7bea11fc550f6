"""Every call of asyncio; `tools/twins.py --consumer` makes the calls of threads from it. See `consumer.py`."""

import asyncio
from typing import assert_type

import redis.asyncio
import valkey.asyncio

from redsync import (
    AsyncClient,
    AsyncCountDownLatch,
    AsyncFairLock,
    AsyncFencedHold,
    AsyncFencedLock,
    AsyncHold,
    AsyncLock,
    AsyncMultiHold,
    AsyncMultiLock,
    AsyncMutex,
    AsyncPermit,
    AsyncRateLimiter,
    AsyncRatePermit,
    AsyncReadLock,
    AsyncReadWriteLock,
    AsyncSemaphore,
    AsyncSpinLock,
    AsyncWriteLock,
    HoldLost,
    HoldOrphaned,
    LockInfo,
    NodeChanged,
    NodeStatus,
    PermitHolder,
)

URLS = ["redis://10.0.0.1", "redis://10.0.0.2", "redis://10.0.0.3"]


def hear(event: HoldLost | HoldOrphaned | NodeChanged) -> None:
    print(event)


def note_async_hold(hold: AsyncHold) -> None:
    print(hold.name)


def note_async_permit(permit: AsyncPermit) -> None:
    print(permit.id)


def make_async_client() -> AsyncClient:
    AsyncClient("redis://10.0.0.1")
    AsyncClient([redis.asyncio.Redis(), valkey.asyncio.Valkey(), "unix:///run/redis.sock"])
    AsyncClient(7)  # type: ignore[arg-type]
    return AsyncClient(
        URLS,
        prefix="redsync:",
        lease=30,
        node_timeout=0.25,
        drift_factor=0.01,
        restart_guard=None,
        outage_timeout=None,
        listeners=[hear],
    )


async def use_async_client(client: AsyncClient) -> None:
    assert_type(AsyncClient.from_env(), AsyncClient)
    assert_type(client.from_env(URLS, lease=10.0), AsyncClient)
    client.from_env(URLS, leas=10.0)  # type: ignore[call-arg]
    async with client as same:
        assert_type(same, AsyncClient)
    assert_type((client.id, client.quorum, client.prefix), tuple[str, int, bytes])
    assert_type(client.nodes(), list[NodeStatus])
    assert_type(await client.inspect("report"), LockInfo)
    assert_type(await client.inspect_all(b"report:*", limit=10), list[LockInfo])
    assert_type(await client.force_release("report", "46cc29da-568c-4518-a59f-776bfeaf620e:1"), bool)
    await client.close()


def make_async_locks(client: AsyncClient) -> None:
    lock = client.get_lock("report", timeout=1, lease=5, max_hold=60, min_hold=2, on_lost=note_async_hold)
    fair = client.get_fair_lock(b"report", timeout=1, lease=5, max_hold=60, on_lost=note_async_hold)
    fenced = client.get_fenced_lock("report", timeout=1, lease=5, max_hold=60, on_lost=note_async_hold)
    mutex = client.get_mutex("m", backoff=float, timeout=1, lease=5, max_hold=60, on_lost=note_async_hold)
    spin = client.get_spin_lock("r", backoff=lambda n: n / 9, timeout=1, lease=5, max_hold=60, on_lost=note_async_hold)
    pair = client.get_read_write_lock("report", timeout=1, lease=5, max_hold=60, on_lost=note_async_hold)
    assert_type((lock, fair, fenced), tuple[AsyncLock, AsyncFairLock, AsyncFencedLock])
    assert_type((mutex, spin, pair), tuple[AsyncMutex, AsyncSpinLock, AsyncReadWriteLock])
    assert_type(client.get_multi_lock(lock, fair, fenced, mutex, spin, pair.read_lock, timeout=1), AsyncMultiLock)


def make_async_others(client: AsyncClient) -> None:
    semaphore = client.get_semaphore("jobs", 3, timeout=1, lease=5, max_hold=60, on_lost=note_async_permit)
    limiter = client.get_rate_limiter("calls", 3, 60, timeout=1, restart_guard=0)
    limiter = client.get_rate_limiter("calls", [(3, 60), (1000, 86400.0)], timeout=1)
    latch = client.get_count_down_latch("start", timeout=1, keep=60)
    assert_type((semaphore, limiter, latch), tuple[AsyncSemaphore, AsyncRateLimiter, AsyncCountDownLatch])


def use_async_pair(pair: AsyncReadWriteLock) -> None:
    assert_type((pair.name, pair.read_lock, pair.write_lock), tuple[str | bytes, AsyncReadLock, AsyncWriteLock])


async def use_async_lock(
    lock: AsyncLock | AsyncFairLock | AsyncFencedLock | AsyncSpinLock | AsyncMutex | AsyncReadLock | AsyncWriteLock,
) -> None:
    assert_type(lock.name, str | bytes)
    assert_type(await lock.acquire(False), bool)
    assert_type(await lock.acquire(timeout=None, lease=3), bool)
    assert_type((await lock.locked(), lock.owned(), lock.hold_count()), tuple[bool, bool, int])
    assert_type((lock.remaining(), await lock.force_release()), tuple[float, bool])
    await lock.extend()
    await lock.extend(5)
    await lock.release()
    async with lock as hold:
        assert_type(hold, AsyncHold | AsyncFencedHold)


async def use_async_fenced_lock(lock: AsyncFencedLock) -> None:
    async with lock as hold:
        use_async_fenced_hold(hold)


def use_async_fenced_hold(hold: AsyncFencedHold) -> None:
    assert_type(hold.fencing_token, int)


async def use_async_multi_lock(lock: AsyncMultiLock) -> None:
    assert_type(lock.name, tuple[str | bytes, ...])
    assert_type(await lock.acquire(False), bool)
    assert_type(await lock.acquire(timeout=None, lease=3), bool)
    assert_type((await lock.locked(), lock.owned(), lock.hold_count()), tuple[bool, bool, int])
    assert_type((lock.remaining(), await lock.force_release()), tuple[float, bool])
    await lock.extend(5)
    await lock.release()
    async with lock as hold:
        assert_type(hold, AsyncMultiHold)


async def use_async_hold(hold: AsyncHold | AsyncFencedHold | AsyncPermit) -> None:
    assert_type((hold.name, hold.owner, hold.fencing_token), tuple[str | bytes, str, int | None])
    assert_type((hold.lost, await hold.wait_lost(1), hold.remaining()), tuple[bool, bool, float])
    hold.check()
    await hold.extend(5)
    await hold.release()


async def use_async_multi_hold(hold: AsyncMultiHold) -> None:
    assert_type((hold.name, hold.owner), tuple[tuple[str | bytes, ...], tuple[str, ...]])
    assert_type(hold.fencing_token, None)
    assert_type((hold.lost, await hold.wait_lost(1), hold.remaining()), tuple[bool, bool, float])
    hold.check()
    await hold.extend(5)
    await hold.release()


async def use_async_semaphore(semaphore: AsyncSemaphore) -> None:
    assert_type(semaphore.name, str | bytes)
    assert_type(await semaphore.acquire(False), AsyncPermit | None)
    if permit := await semaphore.acquire(timeout=1, n=2, lease=5):
        assert_type(permit, AsyncPermit)
    await semaphore.release(2)
    await semaphore.resize(5)
    assert_type((await semaphore.available(), await semaphore.permits()), tuple[int, int])
    assert_type(await semaphore.holders(), tuple[PermitHolder, ...])
    async with semaphore as entered:
        assert_type(entered, AsyncPermit)


async def use_async_permit(permit: AsyncPermit) -> None:
    assert_type((permit.id, permit.slots), tuple[str, tuple[int, ...]])
    async with permit as same:
        assert_type(same, AsyncPermit)


async def use_async_limiter(limiter: AsyncRateLimiter) -> None:
    assert_type((limiter.name, limiter.rate, limiter.per), tuple[str | bytes, int, float])
    assert_type(limiter.rates, tuple[tuple[int, float], ...])
    assert_type(await limiter.acquire(False), bool)
    assert_type(await limiter.acquire(timeout=1, n=2), bool)
    assert_type(await limiter.acquire_permit(False), AsyncRatePermit | None)
    assert_type(await limiter.acquire_permit(timeout=1, n=2), AsyncRatePermit | None)
    assert_type((await limiter.available(), await limiter.retry_after(2)), tuple[int, float])
    await limiter.set_rate(5)
    await limiter.set_rate(5, per=60)
    async with limiter as permit:
        assert_type(permit, AsyncRatePermit)


def cancel_async(permit: AsyncRatePermit) -> None:
    assert_type(permit.id, str)
    permit.cancel()


async def use_async_latch(latch: AsyncCountDownLatch) -> None:
    assert_type(latch.name, str | bytes)
    assert_type((await latch.try_set_count(3), await latch.count(), await latch.wait(1)), tuple[bool, int, bool])
    await latch.count_down(2)
    await latch.delete()


async def decorate_async(client: AsyncClient, limiter: AsyncRateLimiter) -> None:
    @client.locked("report:{number}")
    async def report(number: int, *, kind: str = "short") -> str:
        return f"{number} {kind}"

    @client.locked("report:{number}", timeout=0, on_busy="raise", lease=5, on_lost=note_async_hold)
    async def insist(number: int) -> str:
        return str(number)

    @client.locked("report:{number}", timeout=0, on_busy="skip")
    async def skip(number: int) -> str:
        return str(number)

    def instead(number: int) -> bool:
        return number > 0

    async def instead_later(number: int) -> bool:
        return number > 0

    @client.locked("report:{number}", timeout=0, on_busy=instead)
    async def turn_away(number: int) -> str:
        return str(number)

    @client.locked("report:{number}", timeout=0, on_busy=instead_later)
    async def turn_away_later(number: int) -> str:
        return str(number)

    assert_type((await report(7, kind="long"), await insist(7)), tuple[str, str])
    assert_type(await asyncio.create_task(skip(7)), str | None)
    assert_type((await turn_away(7), await turn_away_later(7)), tuple[str | bool, str | bool])

    @limiter
    async def call(number: int) -> str:
        return str(number)

    assert_type((await call(7), await asyncio.create_task(limiter(timeout=1)(insist)(7))), tuple[str, str])
    assert_type(await limiter(timeout=0, on_busy="skip")(insist)(7), str | None)
    assert_type(await limiter(on_busy=instead)(insist)(7), str | bool)
    assert_type(await limiter(on_busy=instead_later)(insist)(7), str | bool)
