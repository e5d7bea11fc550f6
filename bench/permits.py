"""Permits per second, rounds and node time per permit; and the rate limiter.

A semaphore's *load* is the percentage of its permits that are acquired, on average. Some stay acquired throughout;
threads of two processes acquire and release the others all the time, so nodes hear of them in different orders. In
alternation, each of these threads uses an uncontended lock.
"""

from __future__ import annotations

import bisect
import contextlib
import json
import statistics
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from functools import partial

import redis

from bench.measure import Figure, Sample, compare, interleave, say, time_pairs
from bench.taker import PER, Answer
from redsync import Client, Semaphore
from redsync.testing import LocalNodes

_PERMITS = (10, 100, 1_000, 10_000)
_LOADS = {10: None, 50: 1.05, 95: 3.0}
"""Loads in percent, with the target of rounds per permit."""

_PROCESSES = 2
_MOST_THREADS = 10
"""Of both processes together; fewer if there are fewer permits for them."""

_NODE_US = 50.0
"""The target for an acquire or a release: at most these microseconds of a node's time, with the most permits."""

_SAMPLES = 100

_RATE = 1_000
_RATE_THREADS = 8

_LEASE = 600.0
"""Lease in seconds of the permits that stay acquired, long enough to need no renewal."""

_CHUNKS = 1_000
"""The largest number of acquisitions that are never released; each has several permits if necessary."""


class Takers:
    """The processes that acquire and release."""

    def __init__(self, processes: Sequence[subprocess.Popen[str]]) -> None:
        self._processes = processes
        for process in processes:
            assert process.stdout is not None
            if process.stdout.readline() != "ready\n":
                raise RuntimeError("a process that acquires permits did not start")

    def run(self, kind: str, name: str, permits: int, threads: int, seconds: float) -> list[Answer]:
        """Let `threads` threads, over all processes, acquire and release for `seconds`."""
        start = time.monotonic() + 0.03
        order = {"kind": kind, "name": name, "permits": permits, "start": start, "end": start + seconds}
        asked = []
        for i, process in enumerate(self._processes):
            if mine := (threads + i) // len(self._processes):
                assert process.stdin is not None
                process.stdin.write(json.dumps({**order, "threads": mine}) + "\n")
                process.stdin.flush()
                asked.append(process)
        answers = []
        for process in asked:
            assert process.stdout is not None
            if not (line := process.stdout.readline()):
                raise RuntimeError("a process that acquires permits failed")
            answers.append(json.loads(line))
        return answers


@contextmanager
def _takers(nodes: LocalNodes) -> Iterator[Takers]:
    with ExitStack() as stack:
        processes = []
        for number in range(_PROCESSES):
            command = [sys.executable, "-m", "bench.taker", str(number), json.dumps(nodes.urls)]
            process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
            processes.append(stack.enter_context(process))
            stack.callback(_kill, process)
        yield Takers(processes)


def _kill(process: subprocess.Popen[str]) -> None:
    with contextlib.suppress(ProcessLookupError):
        process.kill()


def run(*, quick: bool) -> list[Figure]:
    """Measure semaphores of many sizes at several loads, and the rate limiter."""
    figures = []
    with LocalNodes(5) as nodes, _takers(nodes) as takers, ExitStack() as stack:
        client = stack.enter_context(nodes.client())
        for permits in _PERMITS:
            say(f"    ... {permits:,} permits")
            figures += _measure_size(nodes, client, takers, permits, quick=quick)
        say(f"    ... {_RATE:,} per second")
        figures += _measure_rate(takers, seconds=2.3 if quick else 5.3)
    return figures


# Semaphores.


def _measure_size(nodes: LocalNodes, client: Client, takers: Takers, permits: int, *, quick: bool) -> Iterator[Figure]:
    name, out = f"permits:{permits}", 0
    semaphore, lock = client.get_semaphore(name, permits), client.get_lock("permits")
    window, rounds = (0.12, 1) if quick else (0.3, 2)
    for load, hoped_for in _LOADS.items():
        what = f"{permits:,} permits, {load} % out"
        wanted = permits * load // 100
        threads = min(_MOST_THREADS, wanted)
        out = take_out(semaphore, out, wanted - threads)
        crowds = [partial(takers.run, kind, name, permits, threads, window) for kind in ("permits", "locks")]
        ours, locks = interleave(crowds, rounds)
        rates = [[sum(answer["taken"] for answer in answers) / window for answers in side] for side in (ours, locks)]
        yield compare(
            "permits", f"{what}: {threads} thread{'s' * (threads > 1)} / uncontended locks", "pairs/s", *rates
        )
        per_permit = sum(answer["rounds"] for answers in ours for answer in answers) / (sum(rates[0]) * window)
        yield Figure(
            "permits",
            f"{what}: rounds per permit",
            "",
            per_permit,
            target="" if hoped_for is None else f"redsync <= {hoped_for:g}",
            met=None if hoped_for is None else per_permit <= hoped_for,
        )
        if load == 50:
            one = lambda: semaphore.acquire() is not None  # noqa: E731
            sides = [
                partial(time_pairs, one, semaphore.release, 50),
                partial(time_pairs, lock.acquire, lock.release, 50),
            ]
            samples = interleave(sides, 4 if quick else 12)
            yield compare("permits", f"{what}: 1 thread, p50 / uncontended lock", "us", *map(_p50, samples))
        if permits == max(_PERMITS):
            yield from _node_times(nodes, semaphore, what, 1 if quick else 5)


def take_out(semaphore: Semaphore, out: int, wanted: int) -> int:
    """Acquire permits that stay acquired, until there are `wanted`; return how many there are."""
    chunk = max(semaphore.permits() // _CHUNKS, 1)
    while out < wanted:
        many = min(chunk, wanted - out)
        if semaphore.acquire(n=many, lease=_LEASE) is None:
            raise RuntimeError("an uncontended permit was refused")
        out += many
    return out


def _p50(samples: Sequence[Sample]) -> list[float]:
    return [sample.p50 for sample in samples]


def _node_times(nodes: LocalNodes, semaphore: Semaphore, what: str, rounds: int) -> Iterator[Figure]:
    """Measure the time of scripts as nodes report it; take the node that was disturbed the least.

    All five share the cores of this machine, and also count the time in which others have the cores.
    """
    times: dict[str, list[float]] = {"acquire": [], "release": []}
    with ExitStack() as stack:
        connections = [stack.enter_context(redis.Redis.from_url(url)) for url in nodes.urls]
        for _ in range(rounds):
            for step, microseconds in times.items():
                for node in connections:
                    node.config_resetstat()
                taken = [semaphore.acquire() if step == "acquire" else semaphore.release() for _ in range(_SAMPLES)]
                if step == "acquire" and None in taken:
                    raise RuntimeError("an uncontended permit was refused")
                stats = [node.info("commandstats")["cmdstat_evalsha"] for node in connections]
                microseconds.append(min(each["usec_per_call"] for each in stats))
    for step, microseconds in times.items():
        value = statistics.median(microseconds)
        target = f"redsync <= {_NODE_US:g}"
        yield Figure("permits", f"{what}: a node's time to {step}", "us", value, target=target, met=value <= _NODE_US)


# The rate limiter.


def _measure_rate(takers: Takers, seconds: float) -> Iterator[Figure]:
    what = f"rate limiter, {_RATE:,} per {PER:g} s, {_PROCESSES} x {_RATE_THREADS}"
    answers = takers.run("rate", "rate", _RATE, _PROCESSES * _RATE_THREADS, seconds)
    at = sorted(instant for answer in answers for instant in answer["at"])
    # Count a whole number of windows' worth, from the first: a burst allowed at once is neither gain nor loss.
    whole = (len(at) - 1) // _RATE * _RATE
    reached = whole / (at[whole] - at[0]) if whole else 0.0
    ideal = _RATE / PER
    yield Figure("permits", f"{what}: successes / ideal", "per s", reached, ideal, reached / ideal)
    most = most_in(at, PER)
    yield Figure(
        "permits", f"{what}: most in any window", "", most, _RATE, None, f"redsync <= {_RATE:,}", most <= _RATE
    )


def most_in(instants: Sequence[float], window: float) -> int:
    """Return the largest number of these sorted instants within any window of `window` seconds."""
    return max((bisect.bisect_right(instants, at + window) - i for i, at in enumerate(instants)), default=0)
