"""Every public name and call, as a program uses them; `make check` runs mypy and pyright on it, both strict.

It never runs. Each function has the objects that it uses as parameters: `tests/test_consumer.py` reads their
annotations to check that no call is missing.
"""

import asyncio
import threading
from collections.abc import Iterable
from pathlib import Path
from typing import assert_type

import redis
import redis.asyncio

from redsync import (
    AcquireTimeout,
    AsyncClient,
    AsyncCountDownLatch,
    AsyncFairLock,
    AsyncFencedLock,
    AsyncHold,
    AsyncLock,
    AsyncMultiHold,
    AsyncMultiLock,
    AsyncMutex,
    AsyncPermit,
    AsyncRateLimiter,
    AsyncReadLock,
    AsyncReadWriteLock,
    AsyncSemaphore,
    AsyncSpinLock,
    AsyncWriteLock,
    Choice,
    Client,
    ClientClosedError,
    ConfigurationError,
    CountDownLatch,
    FairLock,
    FencedLock,
    Hold,
    Holder,
    HoldLost,
    HoldOrphaned,
    KeyTypeError,
    LeaseLostError,
    Lock,
    LockInfo,
    MultiHold,
    MultiLock,
    Mutex,
    NodeChanged,
    NodeStatus,
    NotOwnedError,
    OverReleaseError,
    Permit,
    PermitHolder,
    QuorumError,
    RateLimiter,
    ReadLock,
    ReadWriteLock,
    RedsyncError,
    ReentrantCallError,
    Semaphore,
    SpinLock,
    UpgradeError,
    Vote,
    WriteLock,
)
from redsync.testing import (
    FaultProxy,
    LocalCluster,
    LocalNodes,
    LocalSentinel,
    ServerNotFoundError,
    ServerStartError,
)

URLS = ["redis://10.0.0.1", "redis://10.0.0.2", "redis://10.0.0.3"]

# Shared by both flavours.


def hear(event: HoldLost | HoldOrphaned | NodeChanged) -> None:
    if isinstance(event, NodeChanged):
        print(event.node.upper(), event.state.upper(), event.reason.upper())
    else:
        print(assert_type(event.name, str | bytes), event.owner.upper())


def hear_of_loss(event: HoldLost) -> None:
    print(event.reason.upper(), event.state)


def hear_of_orphan(event: HoldOrphaned) -> None:
    print(event.name, event.owner.upper())


def read_info(info: LockInfo) -> None:
    assert_type(info.name, str | bytes)
    assert_type(info.kind, str)
    assert_type(info.holders, tuple[Holder, ...])
    assert_type(info.waiters, tuple[str, ...])
    assert_type(info.votes, tuple[Vote, ...])


def read_holders(holder: Holder, permit: PermitHolder) -> None:
    assert_type((holder.owner, holder.host, holder.pid, holder.program), tuple[str, str | None, int | None, str | None])
    assert_type((holder.since, holder.mode), tuple[float | None, str | None])
    assert_type((holder.hold_count, holder.remaining), tuple[int, float | None])
    assert_type((permit.owner, permit.host, permit.pid, permit.program), tuple[str, str | None, int | None, str | None])
    assert_type((permit.id, permit.slots), tuple[str, tuple[int, ...]])
    assert_type((permit.since, permit.remaining), tuple[float | None, float])


def read_vote(vote: Vote) -> str:
    assert_type((vote.node, vote.choice, vote.detail), tuple[str, Choice, str])
    return str(vote) if vote.choice in {Choice.GRANTED, Choice.REFUSED} else Choice.FAILED.name


def read_status(status: NodeStatus) -> None:
    assert_type((status.address, status.state), tuple[str, str])
    assert_type((status.version, status.uptime, status.last_error), tuple[str | None, float | None, str | None])
    assert_type((status.server, status.epoch), tuple[str | None, int | None])
    assert_type((status.quarantine_left, status.pending), tuple[float, int])


def handle(
    timeout: AcquireTimeout,
    named: AcquireTimeout | NotOwnedError | LeaseLostError | UpgradeError | QuorumError | KeyTypeError,
) -> None:
    assert_type(timeout.timeout, float)
    assert_type((named.name, named.sentence, named.votes), tuple[str | bytes, str, tuple[Vote, ...]])


def fall_back(client: Client) -> RedsyncError | None:
    try:
        client.get_lock("report").acquire()
    except (ConfigurationError, ClientClosedError, ReentrantCallError, OverReleaseError) as error:
        return error
    except RedsyncError as error:
        return error
    return None


# Threads.


def note_hold(hold: Hold) -> None:
    print(hold.name)


def note_permit(permit: Permit) -> None:
    print(permit.id)


def make_client() -> Client:
    Client("redis://10.0.0.1")
    Client([redis.Redis(), "unix:///run/redis.sock"])
    return Client(
        URLS,
        prefix="redsync:",
        lease=30,
        node_timeout=0.25,
        drift_factor=0.01,
        restart_guard=None,
        listeners=[hear],
    )


def use_client(client: Client) -> None:
    assert_type(Client.from_env(), Client)
    assert_type(client.from_env(URLS, lease=10.0), Client)
    with client as same:
        assert_type(same, Client)
    assert_type((client.id, client.quorum, client.prefix), tuple[str, int, bytes])
    assert_type(client.nodes(), list[NodeStatus])
    assert_type(client.inspect("report"), LockInfo)
    client.close()


def make_locks(client: Client) -> None:
    lock = client.get_lock("report", timeout=1, lease=5, max_hold=60, on_lost=note_hold)
    fair = client.get_fair_lock(b"report", timeout=1, lease=5, max_hold=60, on_lost=note_hold)
    fenced = client.get_fenced_lock("report", timeout=1, lease=5, max_hold=60, on_lost=note_hold)
    mutex = client.get_mutex("report", timeout=1, lease=5, max_hold=60, on_lost=note_hold)
    spin = client.get_spin_lock("r", backoff=lambda n: 0.1 * n, timeout=1, lease=5, max_hold=60, on_lost=note_hold)
    pair = client.get_read_write_lock("report", timeout=1, lease=5, max_hold=60, on_lost=note_hold)
    assert_type((lock, fair, fenced), tuple[Lock, FairLock, FencedLock])
    assert_type((mutex, spin, pair), tuple[Mutex, SpinLock, ReadWriteLock])
    assert_type(client.get_multi_lock(lock, fair, fenced, mutex, spin, pair.read_lock, timeout=1), MultiLock)


def make_others(client: Client) -> None:
    semaphore = client.get_semaphore("jobs", 3, timeout=1, lease=5, max_hold=60, on_lost=note_permit)
    limiter = client.get_rate_limiter("calls", 3, 60, timeout=1, restart_guard=0)
    latch = client.get_count_down_latch("start", timeout=1, keep=60)
    assert_type((semaphore, limiter, latch), tuple[Semaphore, RateLimiter, CountDownLatch])


def use_pair(pair: ReadWriteLock) -> None:
    assert_type((pair.name, pair.read_lock, pair.write_lock), tuple[str | bytes, ReadLock, WriteLock])


def use_lock(lock: Lock | FairLock | FencedLock | SpinLock | Mutex | ReadLock | WriteLock) -> None:
    assert_type(lock.name, str | bytes)
    assert_type(lock.acquire(False), bool)
    assert_type(lock.acquire(timeout=None, lease=3), bool)
    assert_type((lock.locked(), lock.owned(), lock.hold_count()), tuple[bool, bool, int])
    assert_type((lock.remaining(), lock.force_release()), tuple[float, bool])
    lock.extend()
    lock.extend(5)
    lock.release()
    with lock as hold:
        assert_type(hold, Hold)


def use_multi_lock(lock: MultiLock) -> None:
    assert_type(lock.name, tuple[str | bytes, ...])
    assert_type(lock.acquire(False), bool)
    assert_type(lock.acquire(timeout=None, lease=3), bool)
    assert_type((lock.locked(), lock.owned(), lock.hold_count()), tuple[bool, bool, int])
    assert_type((lock.remaining(), lock.force_release()), tuple[float, bool])
    lock.extend(5)
    lock.release()
    with lock as hold:
        assert_type(hold, MultiHold)


def use_hold(hold: Hold | Permit) -> None:
    assert_type((hold.name, hold.owner, hold.fencing_token), tuple[str | bytes, str, int | None])
    assert_type((hold.lost, hold.wait_lost(1), hold.remaining()), tuple[bool, bool, float])
    hold.check()
    hold.extend(5)
    hold.release()


def use_multi_hold(hold: MultiHold) -> None:
    assert_type((hold.name, hold.owner), tuple[tuple[str | bytes, ...], tuple[str, ...]])
    assert_type(hold.fencing_token, None)
    assert_type((hold.lost, hold.wait_lost(1), hold.remaining()), tuple[bool, bool, float])
    hold.check()
    hold.extend(5)
    hold.release()


def use_semaphore(semaphore: Semaphore) -> None:
    assert_type(semaphore.name, str | bytes)
    assert_type(semaphore.acquire(False), Permit | None)
    if permit := semaphore.acquire(timeout=1, n=2, lease=5):
        assert_type(permit, Permit)
    semaphore.release(2)
    semaphore.resize(5)
    assert_type((semaphore.available(), semaphore.permits()), tuple[int, int])
    assert_type(semaphore.holders(), tuple[PermitHolder, ...])
    with semaphore as entered:
        assert_type(entered, Permit)


def use_permit(permit: Permit) -> None:
    assert_type(permit.id, str)
    with permit as same:
        assert_type(same, Permit)


def use_limiter(limiter: RateLimiter) -> None:
    assert_type((limiter.name, limiter.rate, limiter.per), tuple[str | bytes, int, float])
    assert_type(limiter.acquire(False), bool)
    assert_type(limiter.acquire(timeout=1, n=2), bool)
    assert_type((limiter.available(), limiter.retry_after(2)), tuple[int, float])
    with limiter as same:
        assert_type(same, RateLimiter)


def use_latch(latch: CountDownLatch) -> None:
    assert_type(latch.name, str | bytes)
    assert_type((latch.try_set_count(3), latch.count(), latch.wait(1)), tuple[bool, int, bool])
    latch.count_down(2)
    latch.delete()


def use_condition(lock: Lock, locks: MultiLock) -> None:
    # Python's types allow a Condition only Python's own locks, although it accepts any lock with their methods.
    condition = threading.Condition(lock)  # type: ignore[arg-type]
    with condition:
        condition.notify()
    threading.Condition(locks)  # type: ignore[arg-type]


def decorate(client: Client, limiter: RateLimiter) -> None:
    @client.locked("report:{number}")
    def report(number: int, *, kind: str = "short") -> str:
        return f"{number} {kind}"

    @client.locked("report:{number}", timeout=0, on_busy="raise", lease=5, on_lost=note_hold)
    def insist(number: int) -> str:
        return str(number)

    @client.locked("report:{number}", timeout=0, on_busy="skip")
    def skip(number: int) -> str:
        return str(number)

    def instead(number: int) -> bool:
        return number > 0

    @client.locked("report:{number}", timeout=0, on_busy=instead)
    def turn_away(number: int) -> str:
        return str(number)

    assert_type((report(7, kind="long"), insist(7)), tuple[str, str])
    assert_type(skip(7), str | None)
    assert_type(turn_away(7), str | bool)

    @limiter
    def call(number: int) -> str:
        return str(number)

    assert_type((call(7), limiter(report)(7), limiter(timeout=1)(insist)(7)), tuple[str, str, str])
    assert_type(limiter(timeout=0, on_busy="skip")(insist)(7), str | None)
    assert_type(limiter(on_busy=instead)(insist)(7), str | bool)


class Account:
    client = Client(URLS)

    @client.locked("account:{self.number}")
    def pay(self, amount: float) -> float:
        return amount

    @property
    def number(self) -> int:
        return 7


def use_method(account: Account) -> None:
    assert_type(account.pay(1.0), float)


# asyncio.


def note_async_hold(hold: AsyncHold) -> None:
    print(hold.name)


def note_async_permit(permit: AsyncPermit) -> None:
    print(permit.id)


def make_async_client() -> AsyncClient:
    AsyncClient("redis://10.0.0.1")
    AsyncClient([redis.asyncio.Redis(), "unix:///run/redis.sock"])
    return AsyncClient(
        URLS,
        prefix="redsync:",
        lease=30,
        node_timeout=0.25,
        drift_factor=0.01,
        restart_guard=None,
        listeners=[hear],
    )


async def use_async_client(client: AsyncClient) -> None:
    assert_type(AsyncClient.from_env(), AsyncClient)
    assert_type(client.from_env(URLS, lease=10.0), AsyncClient)
    async with client as same:
        assert_type(same, AsyncClient)
    assert_type((client.id, client.quorum, client.prefix), tuple[str, int, bytes])
    assert_type(client.nodes(), list[NodeStatus])
    assert_type(await client.inspect("report"), LockInfo)
    await client.close()


def make_async_locks(client: AsyncClient) -> None:
    lock = client.get_lock("report", timeout=1, lease=5, max_hold=60, on_lost=note_async_hold)
    fair = client.get_fair_lock(b"report", timeout=1, lease=5, max_hold=60, on_lost=note_async_hold)
    fenced = client.get_fenced_lock("report", timeout=1, lease=5, max_hold=60, on_lost=note_async_hold)
    mutex = client.get_mutex("report", timeout=1, lease=5, max_hold=60, on_lost=note_async_hold)
    spin = client.get_spin_lock("r", backoff=lambda n: n / 9, timeout=1, lease=5, max_hold=60, on_lost=note_async_hold)
    pair = client.get_read_write_lock("report", timeout=1, lease=5, max_hold=60, on_lost=note_async_hold)
    assert_type((lock, fair, fenced), tuple[AsyncLock, AsyncFairLock, AsyncFencedLock])
    assert_type((mutex, spin, pair), tuple[AsyncMutex, AsyncSpinLock, AsyncReadWriteLock])
    assert_type(client.get_multi_lock(lock, fair, fenced, mutex, spin, pair.read_lock, timeout=1), AsyncMultiLock)


def make_async_others(client: AsyncClient) -> None:
    semaphore = client.get_semaphore("jobs", 3, timeout=1, lease=5, max_hold=60, on_lost=note_async_permit)
    limiter = client.get_rate_limiter("calls", 3, 60, timeout=1, restart_guard=0)
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
        assert_type(hold, AsyncHold)


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


async def use_async_hold(hold: AsyncHold | AsyncPermit) -> None:
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
    assert_type(permit.id, str)
    async with permit as same:
        assert_type(same, AsyncPermit)


async def use_async_limiter(limiter: AsyncRateLimiter) -> None:
    assert_type((limiter.name, limiter.rate, limiter.per), tuple[str | bytes, int, float])
    assert_type(await limiter.acquire(False), bool)
    assert_type(await limiter.acquire(timeout=1, n=2), bool)
    assert_type((await limiter.available(), await limiter.retry_after(2)), tuple[int, float])
    async with limiter as same:
        assert_type(same, AsyncRateLimiter)


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


# For tests.


def use_nodes(nodes: LocalNodes) -> None:
    assert_type((nodes.urls, nodes.ports, nodes.pids), tuple[list[str], list[int], list[int | None]])
    assert_type((nodes.server, nodes.version), tuple[Path, str])
    assert_type((nodes.alive(0), nodes.client(lease=5)), tuple[bool, Client])
    nodes.kill(0)
    nodes.restart(0, data=b"")
    nodes.pause(1)
    nodes.resume(1)
    nodes.reset()
    nodes.close()
    with nodes as same:
        assert_type(same, LocalNodes)


def use_group(group: LocalSentinel) -> None:
    assert_type((group.url, group.version, group.server, group.name), tuple[str, str, Path, str])
    assert_type((group.master, group.epoch), tuple[tuple[str, int], int])
    assert_type((group.servers, group.sentinels), tuple[list[tuple[str, int]], list[tuple[str, int]]])
    assert_type((group.failover(), group.kill_master()), tuple[tuple[str, int], tuple[str, int]])
    assert_type((group.isolate_master(), group.kill_replica(1)), tuple[tuple[str, int], tuple[str, int]])
    group.heal()
    group.restart(0)
    group.pause(0)
    group.resume(0)
    group.close()
    with group as same:
        assert_type(same, LocalSentinel)


def use_cluster(cluster: LocalCluster) -> None:
    assert_type((cluster.url, cluster.version, cluster.server), tuple[str, str, Path])
    assert_type((cluster.servers, cluster.masters), tuple[list[tuple[str, int]], list[tuple[str, int]]])
    assert_type((cluster.slot_owner(5), cluster.failover(0, "FORCE")), tuple[tuple[str, int], tuple[str, int]])
    assert_type(cluster.kill_master(0), tuple[str, int])
    cluster.restart(0)
    cluster.begin_move_slot(5, 1)
    cluster.end_move_slot(5, 1)
    cluster.move_slot(5, 0)
    cluster.close()
    with cluster as same:
        assert_type(same, LocalCluster)


def use_proxy(proxy: FaultProxy) -> None:
    assert_type((proxy.url, proxy.delay, proxy.blackhole), tuple[str, float, bool])
    assert_type((proxy.port, proxy.drop_requests, proxy.drop_replies), tuple[int, bool, bool])
    assert_type((proxy.refuse, proxy.half_replies, proxy.garbage), tuple[bool, bool, bool])
    proxy.delay = 0.1
    proxy.blackhole = True
    proxy.cut()
    proxy.heal()
    proxy.close()
    with proxy as same:
        assert_type(same, FaultProxy)


def start_nodes(counts: Iterable[int]) -> Exception | None:
    try:
        for count in counts:
            LocalNodes(count, server="/opt/redis-server", config={"appendonly": "yes"})
            LocalSentinel(count, sentinels=3, name="m", down_after_ms=500, config={})
            LocalCluster(3, count, node_timeout_ms=1000, config={})
    except (ServerNotFoundError, ServerStartError) as error:
        return error
    return None
