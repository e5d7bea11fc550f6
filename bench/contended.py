"""One name that everybody wants: how many get it per second, how often it goes to another, and at what cost.

Workers that poll look good in the first figure, because they take their own lock back before anybody else looks. So
hand-overs *to another worker* are counted apart. The ideal is what a critical section of that length allows; the floor
is what one worker with bare sockets makes of that, alone, which sleeps a little longer than it asks for and takes and
gives back a lock that nobody else wants.
"""

from __future__ import annotations

import contextlib
import importlib.util
import itertools
import json
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Sequence
from typing import NamedTuple

import redis

from bench.measure import Figure, percentile, say
from redsync.testing import LocalNodes

HOLD = 0.002
"""Seconds of the critical section."""

OWN_LEASE = " anew, lease 10 s"
"""After a kind's name: with a lease of its own, and a lock object made anew for each acquisition."""

_OURS = (
    *(("lock", 8, 1), ("lock", 1, 16)),
    *((f"lock{OWN_LEASE}", 8, 1), (f"lock{OWN_LEASE}", 1, 16)),
    *(("fair", 8, 1), ("fair", 1, 16)),
)
_LIMITS = {
    "lock": {"acquired / ideal": (">=", 0.8), "requests per node and hand-over": ("<=", 8)},
    "fair": {
        "handed to another / ideal": (">=", 0.75),
        "requests per node and hand-over": ("<=", 8),
        "largest / smallest share": ("<=", 1.2),
    },
}
"""What is hoped for."""

_PEERS = {"redlock-py": "redlock", "pottery": "pottery"}


class Turn(NamedTuple):
    """One acquisition.

    Attributes:
        worker: Who had it.
        waited: For how many seconds.
        at: When it was had, seconds on the machine's monotonic clock.
    """

    worker: str
    waited: float
    at: float


class Outcome(NamedTuple):
    """What came of one run.

    Attributes:
        turns: All acquisitions in their order.
        seconds: For how long it ran.
        requests: How many commands one node executed.
    """

    turns: Sequence[Turn]
    seconds: float
    requests: float

    @property
    def acquired(self) -> float:
        """Acquisitions per second."""
        return len(self.turns) / self.seconds

    @property
    def handed_over(self) -> float:
        """Acquisitions per second by another worker than the one before."""
        return sum(a.worker != b.worker for a, b in itertools.pairwise(self.turns)) / self.seconds

    @property
    def shares(self) -> float:
        """The largest share of a worker by the smallest."""
        counts = Counter(turn.worker for turn in self.turns)
        return max(counts.values()) / min(counts.values())


def contend(nodes: LocalNodes, kind: str, *, processes: int, threads: int, seconds: float) -> Outcome:
    """Let so many workers fight over one lock of that kind for so long."""
    command = [sys.executable, "-m", "bench.contender", kind, str(threads), json.dumps(nodes.urls)]
    workers = [
        subprocess.Popen([*command, str(i)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        for i in range(processes)
    ]
    try:
        for worker in workers:
            assert worker.stdout is not None
            if worker.stdout.readline() != "ready\n":
                raise RuntimeError(f"a contender for {kind} did not start")
        before = _requests(nodes)
        start = time.monotonic() + 0.2
        outputs = []
        for worker in workers:
            assert worker.stdin is not None
            worker.stdin.write(f"{start} {start + seconds}\n")
            worker.stdin.flush()
        outputs = [worker.communicate(timeout=seconds + 30)[0] for worker in workers]
        if any(worker.returncode for worker in workers):
            raise RuntimeError(f"a contender for {kind} failed")
        turns = [Turn(*turn) for output in outputs for turn in json.loads(output)]
        return Outcome(sorted(turns, key=lambda turn: turn.at), seconds, _requests(nodes) - before)
    finally:
        for worker in workers:
            with contextlib.suppress(ProcessLookupError):
                worker.kill()
            worker.wait()


def _requests(nodes: LocalNodes) -> float:
    """Return how many commands a node has executed that clients sent, on average."""
    total = 0
    for url in nodes.urls:
        with redis.Redis.from_url(url) as node:
            stats = node.info("commandstats")
        total += sum(stats[name]["calls"] for name in stats if name in {"cmdstat_evalsha", "cmdstat_set"})
    return total / len(nodes.urls)


def run(*, quick: bool) -> list[Figure]:
    """Measure eight processes of one thread, and one process of sixteen threads."""
    seconds = 2.0 if quick else 6.0
    figures = []
    with LocalNodes(5) as nodes:
        floor = contend(nodes, "bare", processes=1, threads=1, seconds=seconds / 2).acquired * HOLD
        for kind, processes, threads in _OURS:
            say(f"    ... {kind}, {processes} x {threads}")
            outcome = contend(nodes, kind, processes=processes, threads=threads, seconds=seconds)
            figures += _figures(f"{kind}, {processes} x {threads}", kind, outcome, floor)
        for peer, module in _PEERS.items():
            if importlib.util.find_spec(module) is None:
                say(f"    ... {peer} is not installed")
                continue
            say(f"    ... {peer}, 8 x 1")
            outcome = contend(nodes, peer, processes=8, threads=1, seconds=seconds)
            figures += _figures(f"{peer}, 8 x 1", peer, outcome, floor)
    return figures


def _figures(what: str, kind: str, outcome: Outcome, floor: float) -> list[Figure]:
    waits = [turn.waited * 1000 for turn in outcome.turns]
    handed = max(outcome.handed_over, 0.001)
    limits = _LIMITS.get(kind.removesuffix(OWN_LEASE), {})

    def figure(name: str, unit: str, value: float, beside: float | None = None) -> Figure:
        limit = limits.get(name)
        target = "" if limit is None else f"{limit[0]} {limit[1]:g}"
        met = None if limit is None else value >= limit[1] if limit[0] == ">=" else value <= limit[1]
        quotient = None if beside is None else value / beside
        return Figure("contended", f"{what}: {name}", unit, value, beside, quotient, target, met)

    return [
        figure("acquired / ideal", "x", outcome.acquired * HOLD, floor),
        figure("handed to another / ideal", "x", outcome.handed_over * HOLD, floor),
        figure("requests per node and hand-over", "", outcome.requests / (handed * outcome.seconds)),
        figure("wait p50", "ms", percentile(waits, 50)),
        figure("wait p99", "ms", percentile(waits, 99)),
        figure("largest / smallest share", "x", outcome.shares),
    ]
