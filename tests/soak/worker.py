"""One client process of the soak: `python -m tests.soak.worker`, started by `tests.soak.crew`.

Its threads fight with those of all others over a few locks. Each reads a counter under its lock, works for a while and
writes the counter back, unless the hold has become too old for that; all that happens goes into the journal.

The first line of its standard input is an `Order`. It works until the second, which says that the faults are over: then
every thread takes every lock once more, the client is closed, and the journal says what that has left behind. When the
input is closed before, nobody is left to care, and the process ends.
"""

import ctypes
import faulthandler
import json
import logging
import os
import random
import signal
import sys
import threading
import time
import traceback
from dataclasses import asdict, dataclass, replace
from functools import partial
from pathlib import Path

from redsync import AcquireTimeout, Client, HoldLost, LeaseLostError, QuorumError
from redsync.cli.demo_ledger import Ledger, now_ns
from tests.soak import sabotage
from tests.soak.journal import Journal, nanoseconds
from tests.soak.troubles import LEASE
from tests.soak.vitals import Complaints, Pulse, leftovers
from tests.support.leftovers import open_sockets

KINDS = ("lock", "mutex")
"""What is fought over: `Client.get_<kind>` makes it."""
REENTRANT = ("lock",)

MARGIN = 0.2  # seconds of validity without which the counter is not written
LAST_PATIENCE = 30.0  # seconds to wait for each lock when the faults are over
LOOK = 0.05  # seconds between two looks at a hold


@dataclass(frozen=True)
class Order:
    """What a worker process is to do.

    Attributes:
        urls: The nodes, as this client reaches them.
        names: The locks, each as "kind:name"; `Client.get_<kind>` makes it.
        directory: Where the ledgers are.
        journal: The file to write.
        first: The number of its first thread, counted over all processes of the run.
        threads: How many threads it has.
        seed: What all its choices are made from.
        work: What kind of tasks it has, see `WORK`; with "steady" ones each thread fights over one lock only.
        restart_guard: The client's; None for the default.
        sabotage: How to break the library, see `sabotage`; empty not to.
        lease: The client's.
    """

    urls: list[str]
    names: list[str]
    directory: str
    journal: str
    first: int
    threads: int
    seed: str
    work: str = "mixed"
    restart_guard: float | None = None
    sabotage: str = ""
    lease: float = LEASE

    def line(self) -> bytes:
        return json.dumps(asdict(self)).encode() + b"\n"


@dataclass(frozen=True)
class Task:
    """What is done under one hold, and how it is taken."""

    timeout: float
    seconds: float
    lease: float | None = None
    levels: int = 1
    extends: bool = False


def mixed(chance: random.Random) -> Task:
    """Return a task: mostly short ones, and some of each kind that the promises speak of."""
    timeout = chance.choice([0.0, 0.3, 1.0, 3.0, 3.0])
    levels = chance.choice([1, 1, 2, 3])
    draw = chance.random()
    if draw < 0.01:  # renewed several times
        return Task(timeout, chance.uniform(1.0, 1.6) * LEASE, levels=levels, extends=chance.random() < 0.5)
    if draw < 0.03:  # renewed once at least
        return Task(timeout, chance.uniform(0.35, 0.6) * LEASE, levels=levels)
    if draw < 0.04:  # lost by its own fault: worked on for longer than the lease and the time in which that is told
        lease = chance.uniform(0.3, 0.6)
        return Task(timeout, lease + chance.uniform(0.1, 1.6), lease, levels)
    if draw < 0.09:  # not renewed, so that nodes which forget it are not told again
        lease = chance.uniform(0.5, 1.0) * LEASE
        return Task(timeout, chance.uniform(0.2, 0.8) * lease, lease, levels)
    return Task(timeout, chance.choice([0.0, 0.001, 0.003, 0.01, chance.uniform(0.02, 0.15)]), levels=levels)


def leased(chance: random.Random) -> Task:
    """Return a task that holds for long, with a claim that nobody writes down again."""
    return Task(0.3, chance.uniform(0.6, 0.8) * LEASE, LEASE)


def brief(chance: random.Random) -> Task:
    """Return a short task, at times too long for its lease."""
    if chance.random() < 0.15:
        return Task(0.3, chance.uniform(0.35, 0.5), 0.3)
    return Task(0.3, chance.choice([0.0, 0.01, 0.3]))


def steady(chance: random.Random) -> Task:
    """Return a task such that a lock that few share is held most of the time."""
    return Task(chance.choice([1.0, 3.0, 10.0]), chance.uniform(0.1, 2.5), levels=chance.choice([1, 1, 2]))


WORK = {"mixed": mixed, "leased": leased, "brief": brief, "steady": steady}


class Worker:
    """What one thread does."""

    def __init__(self, number: int, order: Order, client: Client, journal: Journal):
        self._number, self._order, self._client = number, order, client
        self._note = partial(journal.note, worker=number)
        self._chance = random.Random(f"{order.seed} {number}")
        self._choose = WORK[order.work]
        own = order.names[number % len(order.names)]
        self._contested = [own] if order.work == "steady" else order.names
        directory = Path(order.directory)
        self._ledgers = {name: Ledger(directory, index, name) for index, name in enumerate(order.names)}
        self._attempts = 0

    def fight(self, over: threading.Event):
        """Take locks until it is over."""
        while not over.is_set():
            name, task = self._chance.choice(self._contested), self._choose(self._chance)
            self._attempt(name, task if name.startswith(REENTRANT) else replace(task, levels=1))
            over.wait(self._chance.uniform(0.0, 0.03))  # so that the load is bounded

    def finish(self):
        """Take every lock once more, now that nothing is in trouble."""
        for name in self._order.names:
            asked = now_ns()
            try:
                with self._lock(name, timeout=LAST_PATIENCE, on_lost=partial(self._told, self._note)):
                    self._note("last", name=name, asked=asked, got=True)
            except (AcquireTimeout, QuorumError, LeaseLostError) as error:
                self._note("last", name=name, asked=asked, got=False, why=repr(error))
        for ledger in self._ledgers.values():
            ledger.close()

    def _lock(self, name: str, **options):
        return getattr(self._client, f"get_{name.partition(':')[0]}")(name, **options)

    def _attempt(self, name: str, task: Task):
        self._attempts += 1
        note = partial(self._note, number=self._attempts)
        lock = self._lock(name, timeout=task.timeout, lease=task.lease, on_lost=partial(self._told, note))
        asked = now_ns()
        within: list[str] = []  # how far it has come
        try:
            with lock as hold:
                granted = now_ns()
                within.append("granted")
                note("grant", name=name, asked=asked, at=granted, until=self._until(hold), lease=task.lease)
                try:
                    self._section(hold, lock, task, note=note, granted=granted, name=name)
                finally:
                    # In this order: a hold that is valid after the instant was valid at it.
                    ended = now_ns()
                    note("end", at=ended, kept=hold.remaining() > 0, until=self._until(hold))
                within.append("leaving")
        except (AcquireTimeout, QuorumError) as error:
            if within:
                raise AssertionError(f"an error of acquiring came out of a hold ({within[-1]})") from error
            note("miss", name=name, asked=asked, why="busy" if isinstance(error, AcquireTimeout) else "no quorum")
        except LeaseLostError:
            note("gone", how="lost" if within[-1:] == ["leaving"] else "lost inside")
        else:
            note("gone", how="released")

    def _told(self, note, hold):
        note("told", lost=hold.lost, remaining=hold.remaining(), until=self._until(hold))

    @staticmethod
    def _until(hold) -> int:
        # The record of the hold is not public, but when a lost one was believed last must be known exactly.
        return nanoseconds(hold._state.valid_until)

    def _section(self, hold, lock, task: Task, *, note, granted: int, name: str):
        ledger = self._ledgers[name]
        begun = ledger.begin(self._number, granted)
        value = ledger.read_counter()
        if task.extends:
            self._extend(hold, note)
        self._nest(hold, lock, task, task.levels, note)
        if hold.remaining() > MARGIN:
            # Told first: whoever is killed in between may have written.
            note("write", written=value + 1)
            ledger.write_counter(value + 1)
        if hold.remaining() > 0:
            ledger.end(begun)

    def _extend(self, hold, note):
        try:
            hold.extend()
        except QuorumError:
            note("unsure", what="extend")

    def _nest(self, hold, lock, task: Task, levels: int, note):
        self._work(hold, task.seconds / task.levels, note)
        if levels <= 1:
            return
        try:
            with lock:
                self._nest(hold, lock, task, levels - 1, note)
        except QuorumError:
            note("unsure", what="re-entry")  # the hold goes on, but what needs the inner one is not done

    def _work(self, hold, seconds: float, note):
        ends_at = time.monotonic() + seconds
        while (left := ends_at - time.monotonic()) > 0:
            time.sleep(min(left, LOOK))
            if seconds > LOOK / 2:
                since, before = self._until(hold), now_ns()
                remaining, lost = hold.remaining(), hold.lost
                after = now_ns()
                note(
                    "look",
                    since=since,
                    before=before,
                    remaining=nanoseconds(remaining),
                    lost=lost,
                    after=after,
                    until=self._until(hold),
                )


def die_with_parent():
    """Let the kernel kill this process when its parent dies: one that is stopped could not notice by itself."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(1, signal.SIGKILL)  # PR_SET_PDEATHSIG


def end_unless_told(over: threading.Event):
    """Wait for the line that ends the fight; without it, the run was given up."""
    if sys.stdin.readline() != "finish\n":
        os._exit(1)
    over.set()


def run(order: Order):
    """Do what was ordered."""
    journal = Journal(Path(order.journal))
    logging.getLogger("redsync").addHandler(Complaints(journal))
    getattr(sabotage, order.sabotage or "nothing")()
    before, over = open_sockets(), threading.Event()

    def heard(event):
        if isinstance(event, HoldLost):
            journal.note("heard", name=event.name, owner=event.owner, reason=event.reason)

    def work(worker: Worker):
        try:
            worker.fight(over)
            worker.finish()
        except BaseException:
            # What no worker expects ends the process at once: the crew sees it, and standard error says what it was.
            traceback.print_exc()
            sys.stderr.flush()
            os._exit(1)

    threading.Thread(target=end_unless_told, args=(over,), daemon=True).start()
    with Pulse(journal):
        with Client(order.urls, lease=order.lease, restart_guard=order.restart_guard, listeners=[heard]) as client:
            journal.note("start", pid=os.getpid(), client=client.id)
            workers = [Worker(order.first + i, order, client, journal) for i in range(order.threads)]
            threads = [threading.Thread(target=work, args=(worker,)) for worker in workers]
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join()
        left = leftovers(before)
    journal.note("closed", threads=left[0], sockets=left[1])


def main() -> int:
    die_with_parent()
    faulthandler.register(signal.SIGUSR1)  # for whoever wants to know where it hangs
    logging.basicConfig(level=logging.CRITICAL)  # losses are expected here, and told in the journal
    line = sys.stdin.readline()
    if not line:
        return 1
    run(Order(**json.loads(line)))
    return 0


if __name__ == "__main__":
    sys.exit(main())
