"""One worker process of the demo: `python -m redsync.cli.demo_worker`, started by `redsync.cli.demo_crew`.

Its threads fight with those of all other processes over a few locks. Each takes a lock, often more than once (nested),
does something under it that only one may do at a time, and notes in the journal what happened. Trouble is counted and
survived, as a real program would have to: too few nodes, a timeout, a lost hold. Anything else is a bug, and ends the
process with status 1 and a traceback.

It reads from its standard input a line of JSON (an `Order`) and, when it has said that it is ready by making the file
`process-<n>.ready`, a second line "<begin> <end>", the instants in ns between which it works. When that input is closed
early, the demo has ended, however it did, and the process ends too.
"""

from __future__ import annotations

import json
import logging
import os
import random
import sys
import threading
import time
import traceback
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Final

from redsync.cli.demo_ledger import HELD, LOST, NO_QUORUM, TIMEOUT, Attempt, JournalReader, Ledger, now_ns
from redsync.exceptions import AcquireTimeout, LeaseLostError, QuorumError

if TYPE_CHECKING:
    from redsync import Client, Hold, Lock
    from redsync._core.events import Event

__all__ = ["PATIENCE", "Losses", "Order", "Worker", "main"]

PATIENCE: Final = 2.0
"""Seconds that a worker waits for a lock: more than any fault of the demo may cost."""

_READY_PATIENCE = 20.0
_TELL_PATIENCE = 1.0

_MARGIN = 0.5
"""Seconds that a hold must still be valid for when the counter is written: a quarter of the lease, where some
microseconds would do; so a worker would have to be suspended for this long, right there, to write too late."""


@dataclass(frozen=True)
class Order:
    """What a worker process is to do.

    Attributes:
        urls: The nodes.
        lease: The client's lease in seconds.
        names: The locks to fight over.
        directory: Where ledgers and journals are.
        process: The number of this process, from 0.
        threads: How many threads it has.
        seed: What all choices of this run are made from.
    """

    urls: list[str]
    lease: float
    names: list[str]
    directory: str
    process: int
    threads: int
    seed: int

    def to_json(self) -> str:
        """Return the order as one line."""
        return json.dumps(asdict(self))


class Losses:
    """A listener that keeps the exact end of each lost hold until its worker asks for it."""

    def __init__(self) -> None:
        self._ends: dict[tuple[str, str | bytes], int] = {}
        self._news = threading.Condition()

    def __call__(self, event: Event) -> None:
        """Take note of an event; called by the client."""
        from redsync import HoldLost as Lost  # late, or this module would import redis when it is imported

        if isinstance(event, Lost):
            # Whichever came first: its validity ran out, or its owner was told that the nodes had forgotten it.
            end = min(now_ns(), int(event.state.valid_until * 1e9))
            with self._news:
                self._ends[event.owner, event.name] = end
                self._news.notify_all()

    def take(self, hold: Hold, patience: float = _TELL_PATIENCE) -> int | None:
        """Return when a hold ended, None if nobody tells that it was lost.

        Args:
            hold: A hold that was lost.
            patience: The longest wait in seconds: another thread may have noticed the loss, and be about to tell.
        """
        key = hold.owner, hold.name
        with self._news:
            self._news.wait_for(lambda: key in self._ends, patience)
            return self._ends.pop(key, None)


@dataclass
class _Section:
    """What happens under one hold, as far as it has happened."""

    hold: Hold | None = None
    granted: int = 0
    ended: int = 0
    kept: bool = False
    reentries: int = 0
    quorum_errors: int = 0
    read: int = 0
    written: int = 0


class Worker:
    """What one thread does."""

    def __init__(self, number: int, client: Client, ledgers: Sequence[Ledger], losses: Losses, seed: int) -> None:
        """Make a worker.

        Args:
            number: Who it is, counted over all processes.
            client: Makes the locks.
            ledgers: The ledger of each lock to fight over.
            losses: Listens to the client.
            seed: What the choices of all workers of this run are made from.
        """
        self._number = number
        self._client = client
        self._ledgers = ledgers
        self._losses = losses
        self._chance = random.Random(f"{seed}/{number}")

    def attempt(self) -> Attempt:
        """Try to take one of the locks, work under it, release it; return what happened."""
        index = self._chance.randrange(len(self._ledgers))
        ledger = self._ledgers[index]
        levels = self._chance.randint(1, 3)
        lock = self._client.get_lock(ledger.name, timeout=PATIENCE)
        section = _Section()
        asked = now_ns()
        try:
            with lock as hold:
                section.granted = now_ns()
                section.hold = hold
                try:
                    self._nest(lock, hold, ledger, levels - 1, section)
                finally:
                    # In this order: a hold that is valid after the instant was valid at it.
                    section.ended = now_ns()
                    section.kept = hold.remaining() > 0
            outcome = HELD
        except AcquireTimeout:
            outcome = TIMEOUT
        except QuorumError:
            outcome = NO_QUORUM
            section.quorum_errors += 1
        except LeaseLostError:
            outcome = LOST
            self._end_lost(section)
        return Attempt(
            outcome,
            index,
            self._number,
            asked,
            section.granted,
            section.ended,
            int(section.kept),
            section.reentries,
            section.quorum_errors,
            section.read,
            section.written,
        )

    def _nest(self, lock: Lock, hold: Hold, ledger: Ledger, levels: int, section: _Section) -> None:
        if not levels:
            self._work(hold, ledger, section)
            return
        try:
            with lock:
                section.reentries += 1
                self._nest(lock, hold, ledger, levels - 1, section)
        except QuorumError:
            # Only the re-entry failed: the hold goes on, but what needs the inner one is not done.
            section.quorum_errors += 1

    def _work(self, hold: Hold, ledger: Ledger, section: _Section) -> None:
        begun = ledger.begin(self._number, section.granted)
        value = ledger.read_counter()
        time.sleep(self._chance.uniform(0.001, 0.002))
        if hold.remaining() > _MARGIN:
            ledger.write_counter(value + 1)
            section.read, section.written = value, value + 1
        if hold.remaining() > 0:
            ledger.end(begun)

    def _end_lost(self, section: _Section) -> None:
        """Move the end of a lost hold to where it was lost."""
        if section.hold is None:
            raise AssertionError("a lock that this thread did not hold was lost")
        # One that was valid to its release may turn out lost only by it; no event tells what the error has told.
        end = self._losses.take(section.hold, 0.0 if section.kept else _TELL_PATIENCE)
        if end is not None:
            section.ended = min(section.ended, end)
        elif not section.kept:
            raise AssertionError("a hold was lost, and no HoldLost event told of it")


class _Process:
    """The threads of this process and its journal."""

    def __init__(self, order: Order) -> None:
        self._order = order
        self._directory = Path(order.directory)
        path = JournalReader.path(self._directory, order.process)
        self._journal = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
        self._failed = False

    def run(self) -> int:
        """Work from the first to the second instant that standard input names; return the exit status."""
        from redsync import Client

        order, losses = self._order, Losses()
        with Client(order.urls, lease=order.lease, listeners=[losses]) as client:
            # The nodes have just started, and grant nothing for one lease: not before this is the client any use.
            with client.get_lock(f"demo:ready:{order.process}", timeout=_READY_PATIENCE):
                pass
            (self._directory / f"process-{order.process}.ready").touch()
            line = sys.stdin.readline()
            if not line:
                return 1
            begin, end = map(int, line.split())
            threading.Thread(target=_end_with_parent, daemon=True).start()
            time.sleep(max(begin - now_ns(), 0) / 1e9)
            first = order.process * order.threads
            threads = [
                threading.Thread(target=self._work, args=(number, client, losses, end))
                for number in range(first, first + order.threads)
            ]
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join()
        return int(self._failed)

    def _work(self, number: int, client: Client, losses: Losses, end: int) -> None:
        order = self._order
        try:
            ledgers = [Ledger(self._directory, index, name) for index, name in enumerate(order.names)]
            worker = Worker(number, client, ledgers, losses, order.seed)
            while now_ns() < end:
                os.write(self._journal, worker.attempt().line())
            for ledger in ledgers:
                ledger.close()
        except Exception:
            self._failed = True
            traceback.print_exc()


def _end_with_parent() -> None:
    # The demo keeps the other end open for as long as it lives.
    sys.stdin.read()
    os._exit(1)


def main() -> int:
    """Do what standard input orders; return the exit status."""
    # The demo itself shows what becomes of nodes; a lost hold, and what should never happen, is still told.
    logging.getLogger("redsync.node").setLevel(logging.ERROR)
    line = sys.stdin.readline()
    return _Process(Order(**json.loads(line))).run() if line else 1


if __name__ == "__main__":
    sys.exit(main())
