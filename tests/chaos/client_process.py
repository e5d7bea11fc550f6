"""One client process: `python -m tests.chaos.client_process`, started by `process_pool`.

Its owners, threads or tasks, contend with those of all other processes. It reads its standard input line by line:

1. an `Job`: the process makes its client, and records that it is `ready`;
2. `go`, upon which its owners work;
3. `finish`, which ends the work.

If the input ends sooner, the process that started it is gone or has given up, and this one ends too. An error that no
owner expects ends it at once, with status 1 and a traceback.
"""

import asyncio
import ctypes
import faulthandler
import io
import logging
import os
import signal
import sys
import threading
import time
import traceback
from collections.abc import Callable, Coroutine, Sequence
from contextlib import AbstractAsyncContextManager
from pathlib import Path
from typing import Any

from tests.chaos.blocking import Blocking, run
from tests.chaos.health import Complaints, leftovers, open_sockets
from tests.chaos.history import History
from tests.chaos.jobs import Job
from tests.chaos.owner import Owner, World


class _Threads:
    """Runs owners as threads."""

    def run(self, steps: Coroutine[Any, Any, None]) -> None:
        run(steps)

    async def together(self, each: Sequence[Coroutine[Any, Any, None]]) -> None:
        threads = [threading.Thread(target=run, args=(steps,)) for steps in each]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()

    async def sleep(self, seconds: float) -> None:
        time.sleep(seconds)  # noqa: ASYNC251  (this flavour blocks)

    def client(self, urls: Sequence[str], **options: Any) -> AbstractAsyncContextManager[Any]:
        from redsync import Client

        return Blocking(Client(urls, **options))


class _Tasks:
    """Runs owners as tasks of asyncio."""

    def run(self, steps: Coroutine[Any, Any, None]) -> None:
        asyncio.run(steps)

    async def together(self, each: Sequence[Coroutine[Any, Any, None]]) -> None:
        await asyncio.gather(*each)

    async def sleep(self, seconds: float) -> None:
        await asyncio.sleep(seconds)

    def client(self, urls: Sequence[str], **options: Any) -> AbstractAsyncContextManager[Any]:
        from redsync import AsyncClient

        return AsyncClient(urls, **options)


class _Control:
    """Follows standard input, after the order."""

    def __init__(self, lines: io.RawIOBase) -> None:
        self._lines = lines
        self.begun, self.over = threading.Event(), threading.Event()
        threading.Thread(target=self._follow, name="control", daemon=True).start()

    def _follow(self) -> None:
        for event in self.begun, self.over:
            if not self._lines.readline():
                os._exit(1)
            event.set()


async def _play(job: Job, history: History, flavour: _Threads | _Tasks, control: _Control) -> None:
    from redsync import HoldLost

    def hear(event: object) -> None:
        if isinstance(event, HoldLost):
            history.note("heard", name=event.name, owner=event.owner, reason=event.reason)

    before = open_sockets()
    options = {"lease": job.lease, "restart_guard": job.restart_guard, "listeners": [hear]}
    async with flavour.client(job.urls, **options) as client:
        if job.warm:
            async with client.get_lock(f"ready:{job.first}", timeout=job.warm):
                pass
        history.note("ready")
        while not control.begun.is_set():
            await flavour.sleep(0.002)
        numbers = range(job.first, job.first + job.owners)
        world = World(client, history.note, flavour.sleep)
        owners = [Owner(number, job, world) for number in numbers]
        await flavour.together([_or_die(_live(owner, job, control.over.is_set)) for owner in owners])
    threads, sockets = await leftovers(before, flavour.sleep)
    history.note("closed", threads=threads, sockets=sockets)


async def _live(owner: Owner, job: Job, over: Callable[[], bool]) -> None:
    await owner.fight(over)
    if job.last:
        await owner.finish()
    owner.close()


async def _or_die(steps: Coroutine[Any, Any, None]) -> None:
    try:
        await steps
    except BaseException:
        # The pool sees that the process has ended, and standard error says why.
        traceback.print_exc()
        sys.stderr.flush()
        os._exit(1)


def _die_with_parent() -> None:
    """Make the kernel kill this process when its parent dies: a stopped process can't notice by itself."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(1, signal.SIGKILL)  # PR_SET_PDEATHSIG


def main() -> int:
    """Carry out the orders on standard input; return the exit status."""
    _die_with_parent()
    faulthandler.register(signal.SIGUSR1)  # to find out where it hangs
    logging.basicConfig(level=logging.CRITICAL)  # losses are expected here, and recorded in the history
    # Unbuffered, so the reading thread can't hold a lock while the interpreter ends.
    lines = io.FileIO(0, closefd=False)
    line = lines.readline()
    if not line:
        return 1
    job = Job.of(line)
    history = History(Path(job.history))
    logging.getLogger("redsync").addHandler(Complaints(history))
    flavour = _Tasks() if job.flavour == "asyncio" else _Threads()
    flavour.run(_play(job, history, flavour, _Control(lines)))
    return 0


if __name__ == "__main__":
    sys.exit(main())
