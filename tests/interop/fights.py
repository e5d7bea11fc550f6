"""A fight of two libraries for one name, and what must be true of it.

Four workers of redsync and four of the neighbour, in two processes each, acquire one name, write into a ledger, release
and pause. The ledger lives here, between all of them: a worker is inside from its program's `won` until the command to
release, so never longer than it really holds. Then one process of each library is killed while it holds a name for
which one of the other library waits.
"""

import asyncio
import re
import time
from collections import Counter
from contextlib import AsyncExitStack, ExitStack
from dataclasses import dataclass, field
from itertools import count

import redis

from redsync.testing import LocalNodes
from tests.interop.programs import Library, start_ours, start_theirs
from tests.support.leftovers import claims

SECTION, PAUSE = 0.002, 0.010
"""How long a worker works in the ledger, and pauses after its release, in seconds."""

LEASE_MS, SHORT_LEASE_MS = 10_000, 2_000
"""The leases of the fight, and of a holder that is killed."""

STALL = 2.0
"""How many seconds after the end of its lease the heir may have a killed holder's lock: it polls, machines stall."""

LEAST_SHARE = 0.10

WINS_LEAST, OVERTIME = 60, 40.0
"""The wins that show shares, and for how many more seconds than asked for a fight continues without them."""

SIDES = ("ours", "theirs")

PREFIX = "redlock:"
"""The prefix that pottery adds to each name; to the others it is a part of the name."""


@dataclass
class Ledger:
    """The record of a fight, which the workers write; two inside at once overwrite each other's update."""

    wins: Counter = field(default_factory=Counter)
    timeouts: Counter = field(default_factory=Counter)
    failures: list = field(default_factory=list)
    overlaps: int = 0
    total: int = 0
    inside: int = 0

    async def work(self, side):
        self.overlaps += self.inside > 0
        self.inside += 1
        read = self.total
        await asyncio.sleep(SECTION)
        self.total = read + 1
        self.inside -= 1
        self.wins[side] += 1

    @property
    def lost_updates(self):
        return self.wins.total() - self.total


@dataclass
class Result:
    """The outcome of one fight; `left` has the keys that each side left behind, once for each node.

    `theirs_freed` are the seconds until our waiting process had the lock of their killed one.
    """

    library: Library
    nodes: int
    ledger: Ledger
    left: dict
    theirs_freed: float
    ours_freed: float

    def share(self, side):
        return self.ledger.wins[side] / max(1, self.ledger.wins.total())

    def complaints(self):
        """Return a sentence for each thing that should not be."""
        ledger, limit = self.ledger, SHORT_LEASE_MS / 1000 + STALL
        checks = {
            f"{ledger.overlaps} overlaps": ledger.overlaps,
            f"{ledger.lost_updates} lost updates": ledger.lost_updates,
            f"left behind {self.left}": self.left["ours"] or (self.left["theirs"] and not self.library.leaves),
            f"programs failed: {ledger.failures[:3]}": ledger.failures,
            "the lock of their killed process stayed": self.theirs_freed > limit,
            "the lock of our killed process stayed": self.ours_freed > limit,
        }
        for side in SIDES if self.nodes == 1 or not self.library.stalls else ():
            checks[f"{side} won only {self.share(side):.1%}"] = self.share(side) < LEAST_SHARE
        return [f"{self.library.name}, nodes: {self.nodes}: {text}" for text, wrong in checks.items() if wrong]


def goes_on(ledger, until):
    """Return whether a fight continues: on a busy machine until it has shown enough."""
    now = time.monotonic()
    return now < until or (ledger.wins.total() < WINS_LEAST and now < until + OVERTIME)


async def compete(program, worker, side, ledger, until):
    """Let one worker acquire and release until the fight is over."""
    while goes_on(ledger, until):
        reply = await program.ask("acquire", worker, f"{PREFIX}fight", LEASE_MS)
        if reply == "won":
            await ledger.work(side)
            reply = await program.ask("release", worker)
        if reply == "lost":
            ledger.timeouts[side] += 1
        elif reply != "released":
            ledger.failures.append(f"{side} {reply}")
        await asyncio.sleep(PAUSE)


async def warm_up(program, worker):
    """Let one worker acquire its own name: connections are then open, scripts loaded, classes compiled."""
    for _ in range(5):
        assert await program.ask("acquire", worker, f"{PREFIX}warm-{worker}", LEASE_MS) == "won"
        assert await program.ask("release", worker) == "released"


async def fight(ours, theirs, seconds):
    """Let two workers of each program compete; return the ledger."""
    numbers, ledger = count(), Ledger()
    workers = [
        (program, next(numbers), side)
        for side, programs in zip(SIDES, (ours, theirs), strict=True)
        for program in programs
        for _ in range(2)
    ]
    await asyncio.gather(*(warm_up(program, worker) for program, worker, _ in workers))
    until = time.monotonic() + seconds
    await asyncio.gather(*(compete(*each, ledger, until) for each in workers))
    return ledger


async def inherit(holder, heir, name):
    """Kill a program that holds a name; return the seconds until a waiting one has it."""
    assert await holder.ask("acquire", 100, name, SHORT_LEASE_MS) == "won"
    waiting = asyncio.create_task(heir.ask("acquire", 101, name, SHORT_LEASE_MS))
    await asyncio.sleep(0.1)  # so that it really waits; a later look makes the result only smaller
    await holder.kill()
    killed_at = time.monotonic()
    if await waiting != "won":
        return float("inf")
    took = time.monotonic() - killed_at
    await heir.ask("release", 101)
    return took


async def left_behind(urls, within=2.0):
    """Return the keys of each side that do not go away at once: a release may still be on its way."""
    with ExitStack() as stack:
        nodes = [stack.enter_context(redis.Redis.from_url(url)) for url in urls]
        for _ in range(20):
            found = [(side_of(node, key), key.decode()) for node in nodes for key in claims(node)]
            if not found:
                break
            await asyncio.sleep(within / 20)
        return {side: [key for whose, key in found if whose == side] for side in SIDES}


def side_of(node, key):
    """Return the side that has a key on a node: our claims are `uuid:serial:number`, no other's are."""
    holder = {b"string": node.get, b"hash": node.hkeys}.get(node.type(key), str)(key)
    return "ours" if re.search(r"[0-9a-f-]{36}:\d+:\d+", str(holder)) or key.startswith(b"redsync_") else "theirs"


async def meet(library, n, seconds):
    """Let redsync and another library meet on n new nodes; return the result."""
    async with AsyncExitStack() as stack:
        urls = stack.enter_context(LocalNodes(n)).urls
        starts = [start(library, urls) for start in (start_ours, start_ours, start_theirs, start_theirs)]
        started = await asyncio.gather(*starts, return_exceptions=True)
        failed = [each for each in started if isinstance(each, BaseException)]
        for program in started:
            if program not in failed:
                stack.push_async_callback(program.end)
        if failed:
            raise failed[0]
        ours, theirs = started[:2], started[2:]
        ledger = await fight(ours, theirs, seconds)
        left = await left_behind(urls)
        theirs_freed, ours_freed = await asyncio.gather(
            inherit(theirs[0], ours[1], f"{PREFIX}theirs"),
            inherit(ours[0], theirs[1], f"{PREFIX}ours"),
        )
        after = await left_behind(urls)
        left = {side: left[side] + after[side] for side in SIDES}
        return Result(library, n, ledger, left, theirs_freed, ours_freed)
