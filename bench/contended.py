"""Many workers that compete for one lock: acquisitions per second, hand-overs to another worker, and requests.

Workers that poll look good in the first figure, because they acquire again before any other worker looks. So hand-overs
*to another worker* are counted separately. The ideal is one critical section after the other without a gap. The floor
is the share of it that a single worker with bare sockets reaches: it acquires and releases a lock that no other worker
wants, and each sleep takes a little longer than requested.
"""

from __future__ import annotations

import contextlib
import itertools
import json
import subprocess
import time
from collections import Counter
from collections.abc import Sequence
from typing import NamedTuple

import redis

from bench.contender import HOLD, OWN_LEASE
from bench.measure import Figure, percentile, say
from bench.peer_locks import PEERS, command, environment, is_installed
from redsync.testing import LocalNodes

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
"""The targets."""


_COUNTED = ("cmdstat_evalsha", "cmdstat_eval", "cmdstat_set", "cmdstat_blpop")


class Turn(NamedTuple):
    """One acquisition.

    Attributes:
        worker: The worker that got it.
        waited: Seconds from the request to the grant.
        at: The instant of the grant, in seconds on the machine's monotonic clock.
    """

    worker: str
    waited: float
    at: float


class Outcome(NamedTuple):
    """The outcome of one run.

    Attributes:
        turns: All acquisitions in order.
        seconds: The duration of the run.
        requests: The number of commands that one node executed.
        unfinished: The waits that were not over at the end, in seconds.
    """

    turns: Sequence[Turn]
    seconds: float
    requests: float
    unfinished: Sequence[float] = ()

    @property
    def acquired(self) -> float:
        """Acquisitions per second."""
        return len(self.turns) / self.seconds

    @property
    def handed_over(self) -> float:
        """Acquisitions per second whose worker is not the previous one."""
        return sum(a.worker != b.worker for a, b in itertools.pairwise(self.turns)) / self.seconds

    @property
    def shares(self) -> float:
        """The largest number of acquisitions of a worker, divided by the smallest."""
        counts = Counter(turn.worker for turn in self.turns)
        return max(counts.values()) / min(counts.values())


def contend(nodes: LocalNodes, kind: str, *, processes: int, threads: int, seconds: float) -> Outcome:
    """Let that many workers compete for one lock of that kind, for that many seconds."""
    urls = nodes.urls[: PEERS[kind].servers] if kind in PEERS else nodes.urls
    words = command(kind, "contender", str(threads), json.dumps(urls))
    workers = [
        subprocess.Popen(
            [*words, str(i)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            # Other libraries may print errors when they end; these are of no interest.
            stderr=subprocess.DEVNULL if kind in PEERS else None,
            text=True,
            env=environment(kind),
        )
        for i in range(processes)
    ]
    try:
        for worker in workers:
            assert worker.stdout is not None
            if worker.stdout.readline() != "ready\n":
                raise RuntimeError(f"a contender for {kind} did not start")
        before = _requests(urls)
        start = time.monotonic() + 0.2
        outputs = []
        for worker in workers:
            assert worker.stdin is not None
            worker.stdin.write(f"{start} {start + seconds}\n")
            worker.stdin.flush()
        outputs = [worker.communicate(timeout=seconds + 30)[0] for worker in workers]
        if any(worker.returncode for worker in workers):
            raise RuntimeError(f"a contender for {kind} failed")
        answers = [json.loads(output) for output in outputs]
        turns = [Turn(*turn) for answer in answers for turn in answer["turns"]]
        unfinished = [wait for answer in answers for wait in answer["unfinished"]]
        return Outcome(sorted(turns, key=lambda turn: turn.at), seconds, _requests(urls) - before, unfinished)
    finally:
        for worker in workers:
            with contextlib.suppress(ProcessLookupError):
                worker.kill()
            worker.wait()


def _requests(urls: Sequence[str]) -> float:
    """Return the mean number of commands from clients that a node has executed."""
    total = 0
    for url in urls:
        with redis.Redis.from_url(url) as node:
            stats = node.info("commandstats")
        total += sum(stats[name]["calls"] for name in _COUNTED if name in stats)
    return total / len(urls)


def run(*, quick: bool) -> list[Figure]:
    """Measure eight processes with one thread each, and one process with sixteen threads."""
    seconds = 2.0 if quick else 6.0
    figures = []
    with LocalNodes(5) as nodes:
        floor = contend(nodes, "bare", processes=1, threads=1, seconds=seconds / 2).acquired * HOLD
        for kind, processes, threads in _OURS:
            say(f"    ... {kind}, {processes} x {threads}")
            outcome = contend(nodes, kind, processes=processes, threads=threads, seconds=seconds)
            figures += _figures(f"{kind}, {processes} x {threads}", kind, outcome, floor)
        for peer in PEERS:
            if not is_installed(peer):
                say(f"    ... {peer} left out: not installed (`make peers` installs it)")
                continue
            say(f"    ... {peer}, 8 x 1")
            try:
                outcome = contend(nodes, peer, processes=8, threads=1, seconds=seconds)
            except (RuntimeError, subprocess.TimeoutExpired) as error:
                say(f"    ... {peer} left out: {error}")
                continue
            figures += _figures(f"{peer}, 8 x 1", peer, outcome, floor)
    return figures


def _figures(what: str, kind: str, outcome: Outcome, floor: float) -> list[Figure]:
    # Unfinished waits count too: without them the least fair lock would have the best figure.
    waits = [1000 * wait for wait in (*(turn.waited for turn in outcome.turns), *outcome.unfinished)]
    handed = max(outcome.handed_over, 0.001)
    limits = _LIMITS.get(kind.removesuffix(OWN_LEASE), {})

    def figure(name: str, unit: str, value: float, beside: float | None = None) -> Figure:
        limit = limits.get(name)
        target = "" if limit is None else f"{limit[0]} {limit[1]:g}"
        met = None if limit is None else value >= limit[1] if limit[0] == ">=" else value <= limit[1]
        quotient = None if beside is None else value / beside
        return Figure("contended", f"{what}: {name}", unit, value, beside, quotient, target, met)

    rates = [
        figure("acquired / ideal", "x", outcome.acquired * HOLD, floor),
        figure("handed to another / ideal", "x", outcome.handed_over * HOLD, floor),
    ]
    if not outcome.turns:
        return rates
    return [
        *rates,
        figure("requests per node and hand-over", "", outcome.requests / (handed * outcome.seconds)),
        figure("wait p50", "ms", percentile(waits, 50)),
        figure("wait p99", "ms", percentile(waits, 99)),
        figure("largest / smallest share", "x", outcome.shares),
    ]
