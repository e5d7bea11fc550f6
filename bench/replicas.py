"""A Sentinel group as the only node: the cost of votes that wait for replicas, and the time of a failover."""

from __future__ import annotations

import statistics
import threading
import time
from typing import Self

from bench.floor import ACQUIRE, RELEASE, BareNode, pack
from bench.measure import Figure, await_that, compare, interleave, say, time_pairs
from redsync import Client, RedsyncError
from tests.support.local_sentinel import LocalSentinel

_WARM_UP = 300
_LEASE = 2.0
_NEEDED = b"1"


class BareVote:
    """A minimal lock on one master: it writes the command and `WAIT` at once, and the release without `WAIT`."""

    def __init__(self, port: int, name: str) -> None:
        self._node = BareNode(port)
        key, claim = name.encode(), b"285475da-9152-4c83-822a-67ee2f116a79:1:1"
        acquire, release = (self._node.call(b"SCRIPT", b"LOAD", script) for script in (ACQUIRE, RELEASE))
        wait = pack((b"WAIT", _NEEDED, b"125"))
        self._acquire = pack((b"EVALSHA", acquire, b"1", key, claim, b"1", b"30000")) + wait
        self._release = pack((b"EVALSHA", release, b"1", key, claim))

    def acquire(self) -> bool:
        """Acquire the lock; return whether one replica has it."""
        granted, acknowledged = self._ask(self._acquire, 2)
        return granted == 1 and acknowledged >= 1

    def release(self) -> None:
        """Release the lock."""
        self._ask(self._release, 1)

    def _ask(self, data: bytes, count: int) -> list[int]:
        node, replies = self._node, []
        node.send(data)
        while len(replies) < count:
            if (reply := node.gets()) is False:
                node.feed(node.recv(65536))
            else:
                replies.append(reply)
        return replies

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._node.sock.close()


def run(*, quick: bool) -> list[Figure]:
    """Measure pairs with and without acknowledgements, and the time from the death of a master to the next grant."""
    with LocalSentinel(replicas=2) as group:
        return _pairs(group, 16 if quick else 60) + _failovers(group, 1 if quick else 3)


def _pairs(group: LocalSentinel, rounds: int) -> list[Figure]:
    lax = group.url.replace("replicas=2", "replicas=0")
    with (
        Client(group.url, restart_guard=0.0) as waiting,
        Client(lax, restart_guard=0.0) as not_waiting,
        BareVote(group.master[1], "bare") as floor,
    ):
        locks = [waiting.get_lock("waiting"), not_waiting.get_lock("not waiting"), floor]
        for lock in locks:
            time_pairs(lock.acquire, lock.release, _WARM_UP)
        sides = [lambda lock=lock: time_pairs(lock.acquire, lock.release, 300) for lock in locks]
        ours, without, bare = interleave(sides, rounds)
    p50 = [[sample.p50 for sample in side] for side in (ours, without, bare)]
    cpu = [[sample.cpu for sample in side] for side in (ours, without, bare)]
    beside = "pair, replicas=2 (floor: replicas=0)"
    return [
        compare("replicas", "pair, replicas=2: p50", "us", p50[0], p50[2], at_most=1.3),
        compare("replicas", "pair, replicas=2: client CPU", "us", cpu[0], cpu[2]),
        compare("replicas", f"{beside}: p50", "us", p50[0], p50[1]),
    ]


def _failovers(group: LocalSentinel, times: int) -> list[Figure]:
    announced, granted = [], []
    for number in range(times):
        say(f"    ... failover {number + 1}")
        with Client(group.url, lease=_LEASE) as client:
            await_that(lambda: client.nodes()[0].state == "up", "the master takes part")
            first, grant = _kill_and_acquire(group, client)
        announced.append(first)
        granted.append(grant)
    ours, floor = statistics.median(granted), statistics.median(announced)
    what = f"master killed: to the next grant, guard {_LEASE:g} s (floor: to the Sentinels' word)"
    limit = _LEASE + 1.0
    target = f"redsync <= floor + {limit:g} s"
    return [Figure("replicas", what, "s", ours, floor, ours / floor, target, ours <= floor + limit)]


def _kill_and_acquire(group: LocalSentinel, client: Client) -> tuple[float, float]:
    """Kill the master; return the seconds until the Sentinels named another one, and until a lock was granted."""
    old = group.master
    killer = threading.Thread(target=group.kill_master)
    begin = time.monotonic()
    killer.start()
    await_that(lambda: group.master != old, "the Sentinels name another master", 30.0)
    announced = time.monotonic() - begin
    lock, got = client.get_lock("after"), False
    while not got:
        try:
            got = lock.acquire(timeout=1.0)
        except RedsyncError:
            continue
    granted = time.monotonic() - begin
    lock.release()
    killer.join()
    group.restart(group.servers.index(old))
    return announced, granted
