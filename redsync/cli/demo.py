"""`redsync demo`: processes compete for a few locks while nodes fail; every acquisition is checked.

The demo starts real servers, then worker processes with several threads each. It kills and hangs nodes while they work
(`demo_faults`), and finally checks the workers' journals (`demo_report`). Workers, journals and checkers are those of
`redsync.testing.harness`. Exit status: 0 if all promises were kept, 1 if one was broken or the run proved nothing, 69
if there is no server.
"""

from __future__ import annotations

import argparse
import contextlib
import logging
import random
import shutil
import signal
import tempfile
import time
from collections import deque
from collections.abc import Iterator, Sequence
from functools import partial
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING, Any, Final, Self

from redsync.cli.arguments import add_json, seconds, whole
from redsync.cli.demo_faults import FaultPlan, plan
from redsync.cli.demo_picture import PictureFile, Run
from redsync.cli.demo_report import Findings, Report, plural
from redsync.cli.demo_view import NodeLine, PlainView, Snapshot, View, choose_view
from redsync.cli.exits import BROKEN, FINE, UNAVAILABLE
from redsync.cli.output import warn, write_json
from redsync.exceptions import RedsyncError
from redsync.testing.harness.crew import Crew, RunFailedError
from redsync.testing.harness.endings import zombies
from redsync.testing.harness.journal import Follower, Line, now_ns
from redsync.testing.harness.ledger import read_ledgers
from redsync.testing.harness.orders import Order

if TYPE_CHECKING:
    from redsync import Client, Lock
    from redsync.testing import LocalNodes

__all__ = ["add_parsers", "run"]

LEASE: Final = 2.0

_INSTALL = 'This installs everything that the demo needs: pip install "redsync-toolkit[server,cli]"'

_LONGEST = 86_400.0
_TICK = 0.1
_POLL = 0.02
_CLEANUP_TIMEOUT = 5.0
_START_TIMEOUT = 30.0
_END_TIMEOUT = 10.0
_READY_TIMEOUT = 20.0
_HEADSTART_NS = 50_000_000


def add_parsers(subparsers: Any) -> None:
    """Add the command and its arguments."""
    summary = "watch processes compete for locks while nodes fail, and check every acquisition"
    parser = subparsers.add_parser("demo", help=summary, description=f"{summary[0].upper()}{summary[1:]}.")
    parser.set_defaults(run=run)
    parser.add_argument("--processes", type=whole(1), default=4, metavar="N", help="worker processes (4)")
    parser.add_argument("--threads", type=whole(1), default=4, metavar="N", help="threads in each of them (4)")
    parser.add_argument("--names", type=whole(1), default=3, metavar="N", help="locks to compete for (3)")
    parser.add_argument(
        "--seconds", type=seconds(1, _LONGEST), default=12.0, metavar="S", help="duration of the run (12)"
    )
    parser.add_argument("--nodes", type=whole(1), default=5, metavar="N", help="servers to start (5)")
    parser.add_argument("--seed", type=int, metavar="N", help="repeat the choices of an earlier run (random)")
    parser.add_argument("--svg", metavar="FILE", help="draw the run: holds as bars, outages of nodes as bands")
    add_json(parser, "write the report as JSON to standard output, and the rest to standard error")


@contextlib.contextmanager
def _quiet_nodes() -> Iterator[None]:
    """Keep state changes of nodes out of the log: the view shows them. Watchdog errors are still logged."""
    logger = logging.getLogger("redsync.node")
    before = logger.level
    logger.setLevel(logging.ERROR)
    try:
        yield
    finally:
        logger.setLevel(before)


def run(options: argparse.Namespace) -> int:
    """Run the demo; return its exit status."""
    from redsync.testing import LocalNodes, ServerNotFoundError, ServerStartError
    from redsync.testing.servers import pinned_server

    try:
        with (
            _quiet_nodes(),
            _Interruption() as interruption,
            PictureFile(options.svg) as picture,
            _Directory() as directory,
            LocalNodes(options.nodes, server=pinned_server()) as nodes,
        ):
            view = PlainView(warn) if options.json else choose_view()
            with contextlib.closing(view):
                return _Demo(options, directory, nodes, view, picture).run(interruption)
    except ServerNotFoundError as error:
        warn(f"redsync demo: {error}", _INSTALL)
        return UNAVAILABLE
    except ServerStartError as error:
        warn(*f"redsync demo: {error}".split("\n"))
        return UNAVAILABLE
    except RunFailedError as error:
        warn(*f"redsync demo: {error}".split("\n"))
        return BROKEN


class _Demo:
    """One run."""

    def __init__(
        self,
        options: argparse.Namespace,
        directory: _Directory,
        nodes: LocalNodes,
        view: View,
        picture: PictureFile,
    ) -> None:
        self._options = options
        self._picture = picture
        self._seed: int = random.randrange(10**6) if options.seed is None else options.seed
        self._directory = directory
        self._nodes = nodes
        self._view = view
        self._names = [f"lock:{number + 1}" for number in range(options.names)]
        self._journals = Follower(directory.path)
        self._begin = 0
        self._faults = FaultPlan(nodes, plan(options.seconds, options.nodes, random.Random(self._seed)))

    def run(self, interruption: _Interruption) -> int:
        """Start the workers, let them compete, judge the run; return the exit status."""
        from redsync import Client

        options, view = self._options, self._view
        workers = f"{plural(options.processes, 'process')} with {plural(options.threads, 'thread')} each"
        view.say(f"started {plural(options.nodes, 'server')} ({self._nodes.version})")
        view.say(
            f"{workers} will compete for {plural(options.names, 'lock')} for {options.seconds:g} s (seed {self._seed})"
        )
        with Crew(self._directory.path, self._order) as crew:
            # An interruption after the start of a process but before the crew knows it would leave it running.
            with interruption.deferred():
                for process in range(options.processes):
                    crew.start(process)
            with Client(self._nodes.urls, lease=LEASE) as observer:
                self._await_first_lock(observer, crew)
                self._fight(observer, crew)
            left = zombies(self._scan, LEASE, time.monotonic, partial(time.sleep, _POLL))
            self._journals.read()
            return self._judge(left, crew.said())

    def _order(self, _process: int, first: int, journal: Path) -> Order:
        return Order(
            urls=self._nodes.urls,
            names=self._names,
            directory=str(self._directory.path),
            journal=str(journal),
            first=first,
            owners=self._options.threads,
            seed=str(self._seed),
            work="nested",
            lease=LEASE,
            warm=_READY_TIMEOUT,
        )

    def _await_first_lock(self, observer: Client, crew: Crew) -> None:
        """Wait until the demo and each process can acquire locks."""
        began = time.monotonic()
        self._view.say(
            f"waiting for the first lock: a server that has just started may have forgotten locks that are still held, "
            f"so it grants none for one lease, {LEASE:g} s"
        )
        lock = observer.get_lock("demo:first", timeout=_TICK)
        while not (_try_once(lock) and crew.noted("ready")):
            crew.working()
            if time.monotonic() - began > _START_TIMEOUT:
                raise RunFailedError(
                    f"no lock could be acquired within {_START_TIMEOUT:g} s; output of the workers:\n{crew.said()}"
                )
            time.sleep(_POLL)
        self._view.say(f"first lock after {time.monotonic() - began:.1f} s")

    def _fight(self, observer: Client, crew: Crew) -> None:
        """Let the workers work and the nodes fail; show the progress."""
        seconds = self._options.seconds
        self._begin = begin = now_ns() + _HEADSTART_NS
        crew.go(begin, begin + int(seconds * 1e9))
        lock = observer.get_lock("demo:observer", timeout=0.0)
        tally = _Tally()
        while crew.working():
            elapsed = max(now_ns() - begin, 0) / 1e9
            for fault in self._faults.inject(elapsed):
                self._view.say(f"{elapsed:5.1f} s  {fault}")
            # A client learns the state of its nodes only by using them.
            _try_once(lock)
            tally.add(elapsed, self._journals.read())
            self._view.update(tally.snapshot(elapsed, seconds, self._node_lines(observer)))
            if elapsed > seconds + _END_TIMEOUT:
                late = elapsed - seconds
                raise RunFailedError(f"workers still hang {late:.0f} s after the end; their output:\n{crew.said()}")
            time.sleep(max(min(_TICK, self._faults.next_at - elapsed), 0.0))

    def _node_lines(self, observer: Client) -> list[NodeLine]:
        marks = self._faults.marks()
        return [NodeLine(node.address, node.state, marks.get(index, "")) for index, node in enumerate(observer.nodes())]

    def _scan(self) -> dict[int, list[bytes]]:
        """Return the keys of each node, by the node's index."""
        import redis

        keys: dict[int, list[bytes]] = {}
        for index, port in enumerate(self._nodes.ports):
            try:
                with redis.Redis(port=port, socket_timeout=LEASE) as node:
                    keys[index] = list(node.scan_iter(count=1000))
            except redis.RedisError as error:
                raise RunFailedError(f"node {index + 1} died unexpectedly: {error}") from error
        return keys

    def _judge(self, left: dict[int, list[bytes]], said: str) -> int:
        options, view = self._options, self._view
        ledgers, counters = read_ledgers(self._directory.path, self._names)
        report = Report(
            Findings(
                self._journals.lines,
                self._names,
                list(ledgers.values()),
                list(counters.values()),
                left,
                options.seconds,
                options.nodes,
                options.processes,
                options.threads,
                [story for fault in self._faults.injected if (story := fault.story)],
            )
        )
        view.close()
        view.table(report.rows(), report.failures())
        for line in report.evidence():
            view.say(line)
        if said:
            view.say(f"output of the workers:\n{said}")
        view.say(report.conclusion())
        if report.broken:
            self._directory.keep = True
            view.say(f"ledgers and journals are kept in {self._directory.path}; the seed is {self._seed}")
        if self._picture.write(Run(report, self._begin, self._faults.outages)):
            view.say(f"the picture of the run is in {options.svg}")
        if options.json:
            write_json({"seed": self._seed, **report.as_json()})
        return BROKEN if report.broken or report.proves_nothing else FINE


class _Tally:
    """Counts acquisitions during the run."""

    def __init__(self) -> None:
        self._acquisitions = 0
        self._trouble = 0
        self._past: deque[tuple[float, int]] = deque([(0.0, 0)])

    def add(self, elapsed: float, lines: Sequence[Line]) -> None:
        """Count the journal lines since the last call."""
        events = [line["event"] for line in lines]
        self._acquisitions += events.count("acquired")
        self._trouble += sum(map(events.count, ("busy", "no quorum", "lost")))
        self._past.append((elapsed, self._acquisitions))
        while len(self._past) > 2 and self._past[1][0] <= elapsed - 1:
            self._past.popleft()

    def snapshot(self, elapsed: float, seconds: float, nodes: Sequence[NodeLine]) -> Snapshot:
        """Return the current state of the run."""
        since, before = self._past[0]
        rate = (self._acquisitions - before) / max(elapsed - since, 0.001)
        return Snapshot(elapsed, seconds, self._acquisitions, rate, self._trouble, nodes)


class _Directory:
    """A temporary directory, removed at the end unless `keep` is set."""

    def __init__(self) -> None:
        self.path = Path(tempfile.mkdtemp(prefix="redsync-demo-"))
        self.keep = False

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        if not self.keep:
            shutil.rmtree(self.path, ignore_errors=True)


class _Interruption:
    """Turns the signals that should end a program into exceptions, once.

    While the program cleans up after that exception, it ignores further signals, so a second Ctrl-C leaves no servers
    or files behind. This ends after a few seconds, because the exception may be raised where it can't be caught, for
    example in a finalizer.
    """

    _SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)

    def __init__(self) -> None:
        self._former: dict[signal.Signals, Any] = {}
        self._deaf_until = 0.0
        self._is_deferred = False
        self._pending: int | None = None

    @contextlib.contextmanager
    def deferred(self) -> Iterator[None]:
        """Let the body end before an interruption is raised."""
        self._is_deferred = True
        try:
            yield
        finally:
            self._is_deferred = False
            if self._pending is not None:
                self._end(self._pending, None)

    def __enter__(self) -> Self:
        for number in self._SIGNALS:
            # Signals that the parent process made us ignore (nohup, a shell's background job) stay ignored.
            if signal.getsignal(number) is not signal.SIG_IGN:
                self._former[number] = signal.signal(number, self._end)
        return self

    def __exit__(self, *error: object) -> None:
        for number, former in self._former.items():
            signal.signal(number, former)

    def _end(self, number: int, _: FrameType | None) -> None:
        if self._is_deferred:
            self._pending = number
            return
        if time.monotonic() < self._deaf_until:
            return
        self._deaf_until = time.monotonic() + _CLEANUP_TIMEOUT
        if number == signal.SIGINT:
            raise KeyboardInterrupt
        raise SystemExit(128 + number)


def _try_once(lock: Lock) -> bool:
    """Acquire and release an uncontended lock; return whether a quorum granted it."""
    try:
        with lock:
            return True
    except RedsyncError:
        return False
