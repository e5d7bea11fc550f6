"""One soak from the first server to the last: sets up, runs clients and nemesis, collects the evidence."""

import contextlib
import time
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import redis

from redsync.testing import FaultProxy, LocalNodes
from tests.chaos import history
from tests.chaos.counters import read_counters
from tests.chaos.held_intervals import Hold, holds_of
from tests.chaos.history import History, Line
from tests.chaos.jobs import Job
from tests.chaos.judges import (
    Violation,
    judge_complaints,
    judge_exclusion,
    judge_hearing,
    judge_leaks,
    judge_liveness,
    judge_losses,
    judge_zombies,
    zombies,
)
from tests.chaos.nemesis import Fault, Nemesis
from tests.chaos.process_pool import Life, ProcessPool
from tests.soak.troubles import CLIENTS, LEASE, NODES, PROXIED

OWNERS, PERMITS = 3, 3
CLAIM_PATIENCE = LEASE + 1.0
PLACE_PATIENCE = 5.0 + 1.0
"""Seconds after the end within which claims and places must be gone. Nodes keep places for 5 s: that of a killed
waiter, even if the node hung and takes it late."""


class Evidence(NamedTuple):
    """The outcome of a run.

    Attributes:
        violations: The broken promises.
        holds: All holds of all clients.
        events: How often each event happened.
        late: The seconds by which the faults were postponed.
    """

    violations: Sequence[Violation]
    holds: Sequence[Hold]
    events: Counter[str]
    late: float


def _judge(life: Life, names: Sequence[str], holds: Sequence[Hold], lines: Sequence[Line]) -> list[Violation]:
    """Return the findings of the judges of a single process."""
    found = judge_losses(holds) + judge_hearing(lines, life.killed_at) + judge_complaints(lines)
    if life.killed_at is None:
        found += judge_liveness(lines, names, life.owners) + judge_leaks(lines)
    return found


def soak(seed: object, directory: Path, names: Sequence[str], faults: Sequence[Fault], seconds: float) -> Evidence:
    """Let the clients contend for these locks while the faults happen; return the evidence.

    Args:
        seed: The seed of all choices.
        directory: The directory of all records.
        names: The locks, each as "kind:name".
        faults: The faults in the order of their time.
        seconds: The time for which the clients contend.

    Raises:
        RunFailedError: A client ended by itself, or not at all.
    """
    with contextlib.ExitStack() as stack:
        nodes = stack.enter_context(LocalNodes(NODES))
        proxies = {
            (client, node): stack.enter_context(FaultProxy(nodes.ports[node]))
            for client in PROXIED
            for node in range(NODES)
        }

        def make_order(client: int, first: int, path: Path) -> Job:
            return Job(
                urls=[proxies[client, node].url for node in range(NODES)] if client in PROXIED else nodes.urls,
                names=names,
                directory=str(directory),
                history=str(path),
                first=first,
                owners=OWNERS,
                flavour=["threads", "asyncio"][client % 2],
                limit=PERMITS,
                seed=str(seed),
                lease=LEASE,
                last=True,
            )

        pool = stack.enter_context(ProcessPool(directory, make_order))
        nemesis = Nemesis(nodes, pool, proxies, History(directory / "nemesis.history"))
        for client in range(CLIENTS):
            pool.start(client)
        pool.go()
        pool.await_all("acquired")  # new nodes grant nothing at first
        nemesis.run(faults, seconds)
        pool.finish()
        violations = judge_zombies(_left_behind(nodes))
        every_hold, events = [], Counter()
        for life in pool.lives:
            lines = history.read(life.history)
            holds = holds_of(lines, life.killed_at, life.history.name)
            violations += _judge(life, names, holds, lines)
            every_hold += holds
            events.update(line["event"] for line in lines)
        violations += judge_exclusion(every_hold, read_counters(directory, names), PERMITS)
        return Evidence(violations, every_hold, events, nemesis.late)


def _left_behind(nodes: LocalNodes) -> dict[int, list[str]]:
    """Return the leftovers on the nodes now that all clients are closed, after time for them to go."""
    with contextlib.ExitStack() as stack:
        raw = [stack.enter_context(redis.Redis(port=port, socket_timeout=10.0)) for port in nodes.ports]

        def keys(without: tuple[bytes, ...]) -> dict[int, list[bytes]]:
            return {i: [key for key in node.scan_iter() if not key.startswith(without)] for i, node in enumerate(raw)}

        def wait(timeout: float, without: tuple[bytes, ...] = ()) -> dict[int, list[bytes]]:
            return zombies(lambda: keys(without), timeout, time.monotonic, lambda: time.sleep(0.02))

        left = wait(CLAIM_PATIENCE, without=(b"redsync_queue:", b"redsync_places:")) or wait(PLACE_PATIENCE)
        return {i: [_description(raw[i], key) for key in keys] for i, keys in left.items()}


def _description(node: redis.Redis, key: bytes) -> str:
    """Return a key with its owner and its remaining time."""
    kind = node.type(key)
    read = {b"hash": node.hgetall, b"string": node.get, b"zset": lambda key: node.zrange(key, 0, -1)}
    value = read.get(kind, lambda _: kind)(key)
    return f"{key!r} = {value!r}, {node.pttl(key)} ms left"
