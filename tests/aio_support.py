"""Shared by the tests of the asyncio flavour: loops that report unseen errors, clients, and turns of a loop."""

import asyncio
import functools
import gc
import logging
import time
import types

import pytest

from redsync import AsyncClient
from tests.support import leftovers
from tests.support.locks import PATIENCE

try:
    import uvloop
except ImportError:  # no wheel for this system
    uvloop = None

no_uvloop = pytest.mark.skipif(uvloop is None, reason="uvloop does not exist for this system")

ENDLESS = 30
"""Seconds for which a body sleeps that something else must end."""

comes_out = pytest.raises
"""Around whole `async with` statements, to test how they treat their bodies' errors."""

both_loops = pytest.mark.parametrize("loop", ["asyncio", pytest.param("uvloop", marks=no_uvloop)])

uvloop_in_sweeps = pytest.mark.parametrize(
    "loop", ["asyncio", pytest.param("uvloop", marks=[no_uvloop, pytest.mark.sweep])]
)
"""For sweeps themselves: shorter tests show the differences of uvloop."""


def loop_factory(loop="asyncio"):
    return uvloop.new_event_loop if loop == "uvloop" else asyncio.new_event_loop


class Complaints(logging.Handler):
    """Unsolicited reports of a loop: errors that were never retrieved, tasks that were destroyed."""

    def __init__(self):
        super().__init__(logging.WARNING)
        self.said = []

    def emit(self, record):
        self.said.append(record.getMessage())

    def handle_context(self, _, context):
        self.said.append(f"{context.get('message')}: {context.get('exception')!r}")


def run(main, loop="asyncio", *, leaves_tasks=False):
    """Run a coroutine function in a new loop; fail if it leaves tasks, or unseen errors."""
    complaints = Complaints()
    log = logging.getLogger("asyncio")
    log.addHandler(complaints)
    try:
        with asyncio.Runner(loop_factory=loop_factory(loop)) as runner:
            runner.get_loop().set_exception_handler(complaints.handle_context)
            result = runner.run(_watched(main, leaves_tasks))
        # An unobserved task or future reports its fate when it is collected.
        gc.collect()
    finally:
        log.removeHandler(complaints)
    assert not complaints.said, complaints.said
    return result


async def _watched(main, leaves_tasks):
    result = await main()
    if not leaves_tasks:
        await until(lambda: not other_tasks())
    return result


def other_tasks():
    """Return the tasks of this loop except the running one."""
    return asyncio.all_tasks() - {asyncio.current_task()}


def in_loop(test):
    """Make a test of a coroutine function; its parameter `loop`, if it has one, names the kind of loop."""

    @functools.wraps(test)
    def run_test(**kwargs):
        run(functools.partial(test, **kwargs), kwargs.get("loop", "asyncio"))

    return run_test


async def until(condition, within=PATIENCE):
    """Wait until a condition is true."""
    deadline = time.monotonic() + within
    while not (result := condition()):
        assert time.monotonic() < deadline, f"it did not happen within {within:g} s"
        await asyncio.sleep(0.002)
    return result


async def turns(n):
    """Let the loop run n turns."""
    for _ in range(n):
        await asyncio.sleep(0)


async def goes_on():
    """Check that no cancellation of the running task is left, and that it can await as before."""
    assert asyncio.current_task().cancelling() == 0
    await asyncio.sleep(0.001)
    await turns(3)


@types.coroutine
def run_until(coroutine, condition):
    """Run it in this task until it waits while the condition is true."""
    waits_for = coroutine.send(None)
    while not condition():
        yield waits_for
        waits_for = coroutine.send(None)
    waits_for.cancel()


async def take(lock):
    async with lock:
        pass


def client_of(nodes, **options):
    """Return a client of these nodes, LocalNodes or a list; the caller closes it.

    Its lease is a minute: claims that are gone sooner were released.
    """
    urls = getattr(nodes, "urls", nodes)
    return AsyncClient(urls, **{"restart_guard": 0.0, "lease": 60.0, **options})


def claims(raw):
    """Return the keys on the nodes except records, each with its node's index."""
    return [(i, key) for i, node in enumerate(raw) for key in leftovers.claims(node)]


def structures(client):
    """Return the driver's structures for operations under way that are not empty, by name."""
    runner = client.runner
    life, links = runner.life, runner.life.links
    found = {
        "holds": len(runner.session.holds),
        "orphans": len(runner.session.holds.orphans),
        "owners": len([task for task in life.owners._owners if task is not asyncio.current_task()]),
        "mailboxes": len(life.wakeups._mailboxes),
        "bells": len(life.wakeups._events),
        "asleep": len(links._asleep),
        "rounds": links._rounds,
        "active": life.active,
        "batch": len(links._batch),
    }
    return {name: n for name, n in found.items() if n}
