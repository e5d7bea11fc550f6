"""Processes that hammer one synchronizer while its nodes fail.

One of these processes is `python -m tests.faults.hammer SETTINGS`. It says "ready" when it has had what it is to take,
and reads when to end. Until then it takes it and gives it back, and notes of each time from when until when it believed
in it; whoever started it reads that afterwards. All instants are on the clock of the leases, which all processes share.

A hold is believed from the instant at which the library counted a quorum, which is before `acquire` returned, until
just before `release` was called, or until its validity ended; if it was lost before that, until it was last seen valid.
"""

import contextlib
import json
import random
import signal
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from redsync import Client, LeaseLostError, QuorumError
from redsync._core.holds import HoldState
from tests.bridge import Bridge
from tests.faults.havoc import LEASE, clock
from tests.soak.journal import Journal

NAME, PERMITS = "hammered", 3

LOOK = 0.005  # seconds between two looks at a hold

LONGEST = 1.5 * LEASE
"""Seconds for which one holds at most; if it is not renewed, it is lost before."""


@dataclass
class Taken:
    """One acquisition.

    Attributes:
        state: The library's record of it, which tells exactly from when until when it is believed.
        release: Gives it back; returns what is held instead, or None.
        facts: What else to note of it.
    """

    state: HoldState
    release: Callable[[], "Taken | None"]
    facts: dict[str, Any] = field(default_factory=dict)


def take_permit(client: Client, chance: random.Random, **terms: Any) -> Taken | None:
    permit = client.get_semaphore(NAME, PERMITS).acquire(**terms)
    return Taken(permit._state, permit.release) if permit else None


def take_fenced(client: Client, chance: random.Random, **terms: Any) -> Taken | None:
    # A new object each time: it has seen no token, and so can't help the nodes to exceed it.
    lock = client.get_fenced_lock(NAME)
    if not lock.acquire(**terms):
        return None
    state = lock._state()
    return Taken(state, lock.release, {"token": state.fencing_token})


def take_to_read_or_write(client: Client, chance: random.Random, **terms: Any) -> Taken | None:
    pair = client.get_read_write_lock(NAME)
    mode = "write" if chance.random() < 0.4 else "read"
    lock = pair.write_lock if mode == "write" else pair.read_lock
    if not lock.acquire(**terms):
        return None
    downgrades = mode == "write" and chance.random() < 0.3
    return Taken(lock._state(), (lambda: downgrade(pair)) if downgrades else lock.release, {"mode": mode})


def downgrade(pair: Any) -> Taken | None:
    """Go on reading, and give the write lock back; if that was lost, give both back."""
    reading = None
    with contextlib.suppress(QuorumError):
        if pair.read_lock.acquire(timeout=LEASE):
            reading = Taken(pair.read_lock._state(), pair.read_lock.release, {"mode": "read"})
    try:
        pair.write_lock.release()
    except LeaseLostError:
        if reading is not None:
            pair.read_lock.release()
        raise
    return reading


KINDS = {"semaphore": take_permit, "fenced lock": take_fenced, "read-write lock": take_to_read_or_write}


def work(take: Callable[..., Taken | None], client: Client, journal: Journal, chance: random.Random, ends_at: float):
    while (left := ends_at - clock()) > 0:
        # One that is not renewed is not told again to nodes that have forgotten it.
        lease = LEASE if chance.random() < 0.5 else None
        # Nodes that forgot wake nobody: those notice first who come new.
        timeout = min(left, chance.choice([left, left, 0.05, 0.3]))
        try:
            taken = take(client, chance, timeout=timeout, lease=lease)
        except QuorumError:
            continue
        while taken is not None:
            taken = believe(taken, journal, chance)


def believe(taken: Taken, journal: Journal, chance: random.Random) -> Taken | None:
    state = taken.state
    # The round that won it; the library forgets that when it has seen to the nodes that did not answer in time.
    tally = state.tally
    since = clock() if tally is None else tally.at
    # Mostly short; but most of the time is that of the long ones, for nodes to have something to forget.
    long = chance.random() < 0.05
    until = clock() + (chance.uniform(0.2, 1.0) * LONGEST if long else chance.choice([0.0, 0.0, 0.002, 0.02]))
    seen = since
    while state.valid(before := clock()) and before <= until:
        time.sleep(min(LOOK, until - before))
        # Two statements: the instant must be one before the look.
        now = clock()
        seen = now if state.valid(clock()) else seen
    ended_at, lost, instead = clock(), False, None
    try:
        instead = taken.release()
    except LeaseLostError:
        lost = True
    until = seen if lost else min(ended_at, state.valid_until)
    journal.note("held", since=since, until=until, owner=str(state.owner), **taken.facts)
    return instead


@contextlib.contextmanager
def connected(settings: dict[str, Any]):
    """Make the client, of either flavour, and close it in the end."""
    if settings["flavour"] == "threads":
        with Client(settings["urls"], lease=LEASE) as client:
            yield client
        return
    bridge = Bridge()
    with contextlib.closing(bridge.connect(settings["urls"], lease=LEASE)) as client:
        yield client
    bridge.end()


def main():
    settings = json.loads(sys.argv[1])
    signal.alarm(90)  # Should the test be killed, nobody stays for ever.
    chance = random.Random(settings["seed"])
    take = KINDS[settings["kind"]]
    with connected(settings) as client:
        taken = take(client, chance)
        while taken is not None:
            taken = taken.release()
        print("ready", flush=True)
        work(take, client, Journal(Path(settings["journal"])), chance, float(sys.stdin.readline()))


if __name__ == "__main__":
    main()
