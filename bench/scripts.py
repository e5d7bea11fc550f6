"""The node time of each kind's steps, as the node reports it, next to the smallest scripts for the same steps.

One node serves redsync, another one the floor, each alone. A step's time is the time of all scripts that it sends to
the node: a step with two scripts counts both.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import ExitStack
from functools import partial
from typing import TypeAlias

import redis

from bench.floor import ACQUIRE, CLAIM_MANY, RELEASE, RENEW_MANY
from bench.measure import Figure, compare, interleave
from bench.permits import take_out
from redsync import Client
from redsync.testing import LocalNodes

_COUNT = 200
"""Runs of each step in a round, each with its own name; also the number of claims in a renewal of the floor."""

_HELD, _LEASE, _PERIODS = 1_000, 3.0, 2
"""The locks that the watchdog renews, three times per lease; their lease in seconds; and the periods in a round."""

_PERMITS, _OUT = 10_000, 9_500
_RATE = 10_000

_Steps: TypeAlias = dict[str, Callable[[int], object]]
"""The steps of a kind in order, each a function of the number of a name."""


def run(*, quick: bool) -> list[Figure]:
    """Measure all kinds, then the watchdog's renewals."""
    with LocalNodes(2) as nodes, ExitStack() as stack:
        ours, bare = (stack.enter_context(redis.Redis.from_url(url)) for url in nodes.urls)
        client = stack.enter_context(Client(nodes.urls[:1]))
        kinds = _kinds(client)
        sides = [partial(_times, bare, _floor(bare)), *(partial(_times, ours, steps) for steps in kinds.values())]
        for side in sides:
            side()
        floor, *results = interleave(sides, 3 if quick else 15)
        figures = [
            compare("scripts", f"{kind}: {step}", "us", [each[i] for each in times], [each[i] for each in floor])
            for (kind, steps), times in zip(kinds.items(), results, strict=True)
            for i, step in enumerate(steps)
        ]
        holding = stack.enter_context(Client(nodes.urls[:1], lease=_LEASE))
        for i in range(_HELD):
            holding.get_lock(f"held:{i}").acquire()
        renewals = [partial(_watchdog_time, ours), partial(_floor_renewal_time, bare)]
        return [*figures, compare("scripts", "lock: renew, per claim", "us", *interleave(renewals, 1 if quick else 5))]


def _kinds(client: Client) -> dict[str, _Steps]:
    names = range(_COUNT)
    read_write = [client.get_read_write_lock(f"read-write:{i}") for i in names]
    locks = {
        "lock": [client.get_lock(f"lock:{i}") for i in names],
        "fair lock": [client.get_fair_lock(f"fair:{i}") for i in names],
        "fenced lock": [client.get_fenced_lock(f"fenced:{i}") for i in names],
        "mutex": [client.get_mutex(f"mutex:{i}") for i in names],
        "read lock": [lock.read_lock for lock in read_write],
        "write lock": [lock.write_lock for lock in read_write],
    }
    semaphore = client.get_semaphore("semaphore", _PERMITS)
    take_out(semaphore, 0, _OUT - _COUNT)
    limiter = client.get_rate_limiter("limiter", _RATE, 1.0)
    latches = [client.get_count_down_latch(f"latch:{i}") for i in names]
    return {
        **{
            kind: {
                "acquire": lambda i, each=each: _granted(each[i].acquire()),
                "release": lambda i, each=each: each[i].release(),
            }
            for kind, each in locks.items()
        },
        f"semaphore, {_PERMITS:,} permits, {100 * _OUT // _PERMITS} % out": {
            "acquire": lambda i: _granted(semaphore.acquire()),
            "release": lambda i: semaphore.release(),
        },
        f"rate limiter, {_RATE:,} per s": {"acquire": lambda i: _granted(limiter.acquire())},
        "latch": {
            "try_set_count": lambda i: _granted(latches[i].try_set_count(1)),
            "count_down": lambda i: latches[i].count_down(),
        },
    }


def _floor(node: redis.Redis) -> _Steps:
    acquire, release = node.register_script(ACQUIRE), node.register_script(RELEASE)
    return {
        "acquire": lambda i: _granted(acquire([f"floor:{{lock:{i}}}"], ["owner-of-the-floor", 1, 30_000])),
        "release": lambda i: _granted(release([f"floor:{{lock:{i}}}"], ["owner-of-the-floor"])),
    }


def _granted(reply: object) -> None:
    if not reply:
        raise RuntimeError("an uncontended step was refused")


def _times(node: redis.Redis, steps: _Steps) -> list[float]:
    """Return the node's time for each step, in microseconds."""
    times = []
    for step in steps.values():
        node.config_resetstat()
        for i in range(_COUNT):
            step(i)
        times.append(_microseconds(node) / _COUNT)
    return times


def _watchdog_time(node: redis.Redis) -> float:
    """Return the node's time per renewal of a claim, in microseconds, over a window of whole periods."""
    node.config_resetstat()
    time.sleep(_PERIODS * _LEASE / 3)
    return _microseconds(node) / (_HELD * _PERIODS)


def _floor_renewal_time(node: redis.Redis) -> float:
    keys = [f"floor:{{held:{i}}}" for i in range(_COUNT)]
    arguments = ["owner-of-the-floor", 30_000]
    node.register_script(CLAIM_MANY)(keys, arguments)
    renew = node.register_script(RENEW_MANY)
    node.config_resetstat()
    batches = _HELD // _COUNT * _PERIODS
    for _ in range(batches):
        renew(keys, arguments)
    return _microseconds(node) / (batches * _COUNT)


def _microseconds(node: redis.Redis) -> int:
    total: int = node.info("commandstats")["cmdstat_evalsha"]["usec"]
    return total
