"""Every public name and call, as a program uses them; `make check` runs mypy and pyright on it, both strict.

It never runs. Each function has the objects that it uses as parameters: `tests/test_consumer.py` reads their
annotations to check that no call is missing.
"""

import threading
from collections.abc import Iterable
from pathlib import Path
from typing import assert_type

from fastapi import Request

import redsync
from redsync import (
    AcquireTimeout,
    Choice,
    Client,
    ClientClosedError,
    ConfigurationError,
    Holder,
    HoldLost,
    HoldOrphaned,
    KeyTypeError,
    LeaseLostError,
    Lock,
    LockInfo,
    MultiLock,
    NodeChanged,
    NodeStatus,
    NotOwnedError,
    OverReleaseError,
    PermitHolder,
    QuorumError,
    RedsyncError,
    ReentrantCallError,
    UpgradeError,
    Vote,
)
from redsync.contrib.fastapi import Redsync
from redsync.testing import FaultProxy, LocalNodes, ServerNotFoundError, ServerStartError

URLS = ["redis://10.0.0.1", "redis://10.0.0.2", "redis://10.0.0.3"]

# Shared by both flavours.


def misspell() -> None:
    print(redsync.Clinet)  # type: ignore[attr-defined]


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
    assert_type((timeout.timeout, timeout.holder), tuple[float, str | None])
    assert_type((named.name, named.sentence, named.votes), tuple[str | bytes, str, tuple[Vote, ...]])


def fall_back(client: Client) -> RedsyncError | None:
    try:
        client.get_lock("report").acquire()
    except (ConfigurationError, ClientClosedError, ReentrantCallError, OverReleaseError) as error:
        return error
    except RedsyncError as error:
        return error
    return None


# Threads; `consumer_async.py` has all that threads and asyncio have alike.


def use_condition(lock: Lock, locks: MultiLock) -> None:
    # Python's types allow a Condition only Python's own locks, although it accepts any lock with their methods.
    condition = threading.Condition(lock)  # type: ignore[arg-type]
    with condition:
        condition.notify()
    threading.Condition(locks)  # type: ignore[arg-type]


class Account:
    client = Client(URLS, max_connections=16)

    @client.locked("account:{self.number}")
    def pay(self, amount: float) -> float:
        return amount

    @property
    def number(self) -> int:
        return 7


def use_method(account: Account) -> None:
    assert_type(account.pay(1.0), float)


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


def use_key(guards: Redsync) -> None:
    def user(request: Request) -> str:
        return str(request.method)

    guards.limit("user:{key}", 10, per=60, key=user)


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
    except (ServerNotFoundError, ServerStartError) as error:
        return error
    return None
