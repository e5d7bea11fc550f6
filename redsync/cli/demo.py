"""`redsync demo`: processes compete for a few locks while nodes fail; every acquisition is checked.

The demo starts five real servers and four worker processes, kills one node and hangs another while they work, and
judges what the workers wrote down. Exit status: 0 if all promises were kept, 1 if one was broken or the run proved
nothing, 69 if there is no server.

`python -m redsync.cli.demo` is one worker process with four threads, the workers. Each takes a lock, reads its
counter, and writes the next number there a moment later: the classic case for a lock. To standard output, the journal,
the process writes a line for each attempt. `Report` judges all attempts: by the clock, no two workers may hold a lock
at once; by the counters, which know no clock, no update may be lost.

Journal and counters are files without a name, a worker process ends when its standard input does, and the servers have
a reaper: so the demo needs no handlers for signals, and leaves nothing behind whatever ends it.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import logging
import os
import random
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass
from itertools import pairwise
from statistics import quantiles
from typing import Final

import redis
from rich.box import SIMPLE
from rich.console import Group
from rich.live import Live
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from redsync import Client
from redsync.cli.dev import local_nodes
from redsync.cli.exits import BROKEN, FINE, SetupError
from redsync.cli.output import put
from redsync.cli.tables import console, write_table
from redsync.exceptions import AcquireTimeout, LeaseLostError, QuorumError, RedsyncError
from redsync.testing import LocalNodes

PROCESSES: Final = 4
THREADS: Final = 4
LOCKS: Final = 3
NODES: Final = 5

# -P: a file in the current directory must not shadow one of our imports.
_WORKER: Final = (sys.executable, "-P", "-m", "redsync.cli.demo")
_LEASE: Final = 2.0
_TICK: Final = 0.1
_POLL: Final = 0.02
_TIMEOUT: Final = 2.0  # longer than the failure of a minority of nodes delays anything
_MARGIN: Final = 0.1 * _LEASE
_SHOWN: Final = 5
_FAULTS: Final = {
    "kill": (0.25, "is killed (SIGKILL)"),
    "pause": (0.40, "hangs (SIGSTOP)"),
    "restart": (0.50, "is restarted, empty"),
    "resume": (0.65, "continues (SIGCONT)"),
}
"""Each is a method of `LocalNodes`: after which share of the run, and what it does, for people."""
_OUT: Final = {"kill": "killed", "pause": "hung"}
_STORIES: Final = {"killed": "was killed and came back empty", "hung": "hung for a while"}

_ZEROS: Final = ("overlaps", "lost updates", "zombie keys")

_GOOD: Final = "color(28)"
_COLOURS: Final = {"up": _GOOD, "quarantined": "color(130)", "suspect": "red", "down": "red"}
"""Green and orange that contrast with black and with white by nearly 4.5 : 1."""

_now_ns = time.monotonic_ns  # one clock for all processes of a machine


@dataclass
class Attempt:
    """One attempt to take a lock, and the hold that it led to; instants are in ns.

    Attributes:
        worker: The worker's number, counted over all processes.
        lock: The number of the lock, from 0.
        asked: The instant at which it began.
        outcome: "held", "lost" if the lock said so, "timeout" or "no quorum".
        granted: The instant at which the worker had the lock; 0 if it never had.
        ended: The instant until which it certainly held: it began to release, or had last seen a hold valid that it
            lost or could not re-enter. The end of an attempt that failed.
        kept: True if the hold was valid after that.
        written: The number that it wrote to the counter; 0 for none.
        reentries: How often it took the lock again.
    """

    worker: int
    lock: int
    asked: int
    outcome: str = "held"
    granted: int = 0
    ended: int = 0
    kept: bool = False
    written: int = 0
    reentries: int = 0


@dataclass
class Outage:
    """A time during which a node was "killed" or "hung": from just before until it was back, in ns, or None."""

    what: str
    begin: int
    end: int | None = None


@dataclass
class Report:
    """The verdict on a run, by its attempts, the locks' counters, and the keys left on nodes.

    Attributes:
        attempts: The attempts.
        counters: The counter of each lock.
        zombies: The keys left on nodes, for people.
        outages: The outages, by node.
        seconds: The length of the run.
        begin: The start of the run, in ns on the workers' clock.
        holds: The attempts that acquired, for each lock, in the order of their grants.
        overlaps: The pairs of holds of one lock at one instant.
        figures: The rows of the table; the last three figures must be 0.
        evidence: The sentences about broken promises, at most a screen of lines; empty if none was broken.
    """

    attempts: Sequence[Attempt]
    counters: Sequence[int]
    zombies: Sequence[str]
    outages: Mapping[int, Outage]
    seconds: float
    begin: int = 0

    def __post_init__(self) -> None:
        ordered = sorted((each for each in self.attempts if each.granted), key=lambda each: each.granted)
        outcomes = Counter(each.outcome for each in self.attempts)
        self.holds = [[each for each in ordered if each.lock == lock] for lock in range(len(self.counters))]
        self.overlaps = [pair for holds in self.holds for pair in overlaps(holds)]
        lost = list(map(lost_updates, self.holds, self.counters))
        turns = [pair for holds in self.holds for pair in pairwise(holds)]
        waits = [hold.granted - hold.asked for hold in ordered]
        percentiles = quantiles(waits, n=100) if len(waits) > 1 else [0.0] * 99
        changes = sum(one.worker != other.worker for one, other in turns)
        longest = max((other.granted - one.ended for one, other in turns), default=0)
        self.figures = {
            "acquisitions": f"{len(ordered):,}",
            "re-entries": f"{sum(each.reentries for each in self.attempts):,}",
            "hand-overs per second": f"{changes / self.seconds:,.0f}",
            "wait p50, ms": f"{percentiles[49] / 1e6:,.1f}",
            "wait p99, ms": f"{percentiles[98] / 1e6:,.1f}",
            "longest pause of a lock, ms": f"{longest / 1e6:,.1f}",
            "QuorumErrors seen": f"{outcomes['no quorum']:,}",
            "timeouts, lost holds": f"{outcomes['timeout']:,}, {outcomes['lost']:,}",
            "faults injected": f"{len(self.outages)}",
            "overlaps": f"{len(self.overlaps):,}",
            "lost updates": f"{sum(lost):,}",
            "zombie keys": f"{len(self.zombies):,}",
        }
        untold = [each for each in ordered if each.outcome == "held" and not each.kept]
        self.evidence = [f"overlap on lock {one.lock + 1}: {one} and {other}" for one, other in self.overlaps[:_SHOWN]]
        self.evidence += [f"lost updates on lock {number}: {count}" for number, count in enumerate(lost, 1) if count]
        self.evidence += [f"loss of lock {each.lock + 1} not told: {each}" for each in untold[:_SHOWN]]
        self.evidence += [f"zombie key on {each}" for each in self.zombies[:_SHOWN]]

    def conclusion(self) -> str:
        """Return the run in one sentence."""
        acquisitions = self.figures["acquisitions"]
        who = f"{PROCESSES * THREADS} workers in {PROCESSES} processes"
        if self.evidence:
            return f"{who} found a broken promise of redsync: please report this, with the output above."
        if acquisitions == "0":
            return f"{who} never got a lock, which proves nothing: the machine may be too busy."
        stories = " and ".join(f"node {node + 1} {_STORIES[outage.what]}" for node, outage in self.outages.items())
        return (
            f"{who} took {LOCKS} locks on {NODES} nodes {acquisitions} times{stories and f', while {stories}'}: "
            f"never did two hold the same lock at once, no update was lost, and nothing was left behind."
        )


def overlaps(holds: Sequence[Attempt]) -> list[tuple[Attempt, Attempt]]:
    """Return the pairs of holds at one instant; one may begin at the very instant at which another ends."""
    pairs: list[tuple[Attempt, Attempt]] = []
    current: list[Attempt] = []
    for hold in holds:
        current = [other for other in current if other.ended > hold.granted]
        pairs += [(other, hold) for other in current if hold.ended > hold.granted]
        current.append(hold)
    return pairs


def lost_updates(holds: Sequence[Attempt], counter: int) -> int:
    """Return how many increments of one lock's counter were lost, or appeared from nowhere.

    Each worker must have read what the one before it wrote, and the counter must show what the last one wrote. Only the
    write of a lost hold may come late, as the operating system may suspend a worker between its check and its write;
    such a write explains exactly its own value.
    """
    late = {hold.written for hold in holds if hold.written and not hold.kept}
    wrote = [0, *(hold.written for hold in holds if hold.written and hold.kept)]
    found = [*(value - 1 for value in wrote[1:]), counter]
    return sum(abs(value - there) for value, there in zip(wrote, found, strict=True) if there not in late)


# The command.


def run(options: argparse.Namespace) -> int:
    """Run the demo; return its exit status."""
    report = play(options)
    return BROKEN if report.evidence or not any(report.holds) else FINE


def play(options: argparse.Namespace) -> Report:
    """Let processes compete while nodes fail, and print the verdict; return it."""
    logging.getLogger("redsync.node").setLevel(logging.ERROR)  # the view shows the state of nodes
    seed = random.randrange(10**6) if options.seed is None else options.seed
    with (
        local_nodes(NODES) as nodes,
        # In a terminal it is drawn below our lines, which it redirects; in a pipe it shows nothing.
        Live(console=console(), transient=True, refresh_per_second=8) as live,
        contextlib.ExitStack() as stack,
    ):
        report = Demo(options.seconds, seed, nodes, live, stack).run()
    show(report)
    return report


class Demo:
    """Starts the worker processes of one run, which the stack ends, and causes its faults."""

    def __init__(self, seconds: float, seed: int, nodes: LocalNodes, live: Live, stack: contextlib.ExitStack) -> None:
        self._seconds, self._seed, self._nodes, self._live, self._stack = seconds, seed, nodes, live, stack
        killed, paused = random.Random(seed).sample(range(NODES), 2)  # a minority
        victims = {"kill": killed, "restart": killed, "pause": paused, "resume": paused}
        self._plan = [(share * seconds, action, victims[action]) for action, (share, _) in _FAULTS.items()]
        self._journal = stack.enter_context(tempfile.TemporaryFile("a+b")).fileno()  # noqa: SIM115
        self._counters = stack.enter_context(tempfile.TemporaryFile()).fileno()  # noqa: SIM115
        self._read_to = 0
        self._workers: list[subprocess.Popen[bytes]] = []
        self._attempts: list[Attempt] = []
        self._begin = 0
        self._outages: dict[int, Outage] = {}

    def run(self) -> Report:
        """Start the workers, let them compete, judge the run."""
        put(
            f"started {NODES} servers ({self._nodes.version})",
            f"{PROCESSES} processes with {THREADS} threads each will compete for {LOCKS} locks for {self._seconds:g} s "
            f"(seed {self._seed})",
        )
        for process in range(PROCESSES):
            arguments = map(str, (self._seed, process, self._counters))
            worker = subprocess.Popen(  # noqa: S603  (runs our own module)
                [*_WORKER, *arguments, *self._nodes.urls],
                stdin=subprocess.PIPE,
                stdout=self._journal,
                bufsize=0,
                pass_fds=[self._counters],
                start_new_session=True,  # Ctrl-C in the terminal reaches the demo, which then ends the workers
            )
            # The stack ends it, or before that the end of its standard input.
            self._workers.append(self._stack.enter_context(worker))
            self._stack.callback(worker.kill)  # does nothing to a process that has ended
        began = time.monotonic()
        put(
            f"waiting for the first lock: a server that has just started may have forgotten locks that are still held, "
            f"so it grants none for one lease, {_LEASE:g} s"
        )
        while not self._attempts and self._working():
            time.sleep(_POLL)
            self._read()
        put(f"first lock after {time.monotonic() - began:.1f} s")
        self._fight()
        # A command under way may need a moment; but a claim that was not released must not expire meanwhile.
        deadline = time.monotonic() + _LEASE / 2
        while (left := self._scan()) and time.monotonic() < deadline:
            time.sleep(_POLL)
        counters = [_counter(self._counters, lock) for lock in range(LOCKS)]
        return Report(self._attempts, counters, left, self._outages, self._seconds, self._begin)

    def _read(self) -> None:
        """Read the new whole lines of the journal."""
        # The workers' writes move the position in the file, which they share with us.
        new = os.pread(self._journal, os.fstat(self._journal).st_size - self._read_to, self._read_to)
        whole = new[: new.rfind(b"\n") + 1]
        self._read_to += len(whole)
        self._attempts += [Attempt(**json.loads(line)) for line in whole.splitlines()]

    def _working(self) -> bool:
        """Return whether any worker process still runs."""
        for process, worker in enumerate(self._workers):
            if status := worker.poll():
                raise SetupError(f"worker process {process} ended by itself with status {status}", BROKEN)
        return any(worker.returncode is None for worker in self._workers)

    def _fight(self) -> None:
        """Let the workers work and the nodes fail; show the progress; end the workers."""
        self._begin = _now_ns()
        with Client(self._nodes.urls, lease=_LEASE) as observer:
            while self._working() and (elapsed := (_now_ns() - self._begin) / 1e9) < self._seconds:
                self._inject(elapsed)
                self._read()
                self._show(elapsed, observer)
                time.sleep(max(min([_TICK, *(at - elapsed for at, *_ in self._plan)]), 0.0))
        self._inject(self._seconds)  # a node may have been restarted at the end
        for worker in self._workers:
            assert worker.stdin is not None
            with contextlib.suppress(BrokenPipeError):  # it has ended, as `_working` notices
                worker.stdin.write(b"stop")
        while self._working():
            time.sleep(_POLL)
        self._read()

    def _show(self, elapsed: float, observer: Client) -> None:
        """Show the nodes with their states, and the progress."""
        with contextlib.suppress(RedsyncError), observer.get_lock("demo:observer", timeout=0.0):
            pass  # a client learns about nodes only by using them
        out = {node: outage.what for node, outage in self._outages.items() if outage.end is None}
        table = Table("node", "address", "state", "", box=SIMPLE)
        for number, node in enumerate(observer.nodes()):
            state = Text(node.state, style=_COLOURS.get(node.state, ""))
            table.add_row(str(number + 1), node.address, state, out.get(number))
        granted, recently = [each.granted for each in self._attempts if each.granted], _now_ns() - 10**9
        recent = sum(instant > recently for instant in granted)
        failed = sum(each.outcome != "held" for each in self._attempts)
        elapsed = min(elapsed, self._seconds)
        rest = f" acquisitions, {recent:,} per second, {failed} attempts failed, {elapsed:.1f} of {self._seconds:g} s"
        progress = Table.grid()  # puts the bar on a separate line
        progress.add_row(ProgressBar(total=self._seconds, completed=elapsed, width=60))
        progress.add_row(Text.assemble((f"{len(granted):,}", "bold"), rest))
        self._live.update(Group(table, progress))

    def _inject(self, elapsed: float) -> None:
        """Carry out the faults that are due."""
        while self._plan and self._plan[0][0] <= elapsed:
            _, action, node = self._plan.pop(0)
            begin = _now_ns()
            getattr(self._nodes, action)(node)
            if action in _OUT:
                self._outages[node] = Outage(_OUT[action], begin)
            else:
                self._outages[node].end = _now_ns()
            put(f"{elapsed:5.1f} s  node {node + 1} {_FAULTS[action][1]}")

    def _scan(self) -> list[str]:
        """Return the claims and places on nodes."""
        found = []
        for number, port in enumerate(self._nodes.ports, 1):
            with redis.Redis(port=port, socket_timeout=_LEASE) as node:
                keys = sorted(node.scan_iter("redsync*lock:*", count=1000))
                found += [f"node {number}: {key.decode(errors='replace')}" for key in keys]
        return found


def _counter(file: int, lock: int) -> int:
    """Return the counter of a lock; each has eight bytes of the file."""
    return int.from_bytes(os.pread(file, 8, lock * 8), "big")


def show(report: Report) -> None:
    """Print the report; the figures that must be 0 are green or red."""
    table = Table("", "", box=SIMPLE, show_header=False)
    table.columns[1].justify = "right"
    for caption, figure in report.figures.items():
        style = f"bold {_GOOD if figure == '0' else 'red'}" if caption in _ZEROS else ""
        table.add_row(caption, figure, style=style)
    write_table(table)
    put(*report.evidence, report.conclusion())


# A worker process.


def attempt(client: Client, counters: int, worker: int, rng: random.Random) -> Attempt:
    """Take a lock, work, and release it; an error that no outage explains is a bug, and raised."""
    attempt = Attempt(worker, rng.randrange(LOCKS), _now_ns())
    lock = client.get_lock(f"lock:{attempt.lock + 1}", timeout=_TIMEOUT)
    try:
        with lock as hold:
            attempt.granted = attempt.ended = _now_ns()
            value = _counter(counters, attempt.lock) + 1
            time.sleep(rng.uniform(0.001, 0.002))
            for _ in range(rng.randrange(3)):
                with lock:
                    attempt.reentries += 1
            # The instant first: a hold that is valid after it was valid at it.
            instant = _now_ns()
            if hold.remaining() > _MARGIN:
                attempt.ended, attempt.written = instant, value
                os.pwrite(counters, value.to_bytes(8, "big"), attempt.lock * 8)
            instant = _now_ns()
            if hold.remaining() > 0:
                attempt.ended, attempt.kept = instant, True
    except LeaseLostError:
        attempt.outcome = "lost"
    except (AcquireTimeout, QuorumError) as error:
        attempt.outcome = "timeout" if isinstance(error, AcquireTimeout) else "no quorum"
        attempt.ended = attempt.ended or _now_ns()
    return attempt


def _obey(stop: threading.Event) -> None:
    """Stop at a word on standard input, and end this process when its standard input ends, with the demo."""
    while os.read(0, 100):
        stop.set()
    os._exit(1)


def work() -> None:
    """Run a worker process, with the arguments that the demo gives it."""
    seed, process, counters = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
    logging.basicConfig(level=logging.CRITICAL)  # losses are expected here, and written down
    stop = threading.Event()
    threading.Thread(target=_obey, args=(stop,), daemon=True).start()
    with Client(sys.argv[4:], lease=_LEASE) as client:
        with client.get_lock(f"ready:{process}", timeout=20.0):
            pass  # the nodes grant locks now

        def compete(worker: int) -> None:
            rng = random.Random(f"{seed} {worker}")
            while not stop.is_set():
                done = attempt(client, counters, worker, rng)
                os.write(1, (json.dumps(asdict(done)) + "\n").encode())

        with ThreadPoolExecutor(THREADS) as pool:
            # The error of a worker ends its process, and so the demo, once the others have ended.
            list(pool.map(compete, range(process * THREADS, (process + 1) * THREADS)))


if __name__ == "__main__":
    work()
