"""Processes that hammer one semaphore while its nodes fail, and the judgement of what they wrote down.

One of these processes is `python -m tests.faults.hammer SETTINGS`. It says "ready" when it has had a permit, and reads
when to end. Until then it takes permits and gives them back, and notes of each from when until when it believed in it;
whoever started it reads that afterwards. All instants are on the clock of the leases, which all processes share.

A permit is believed from the instant at which the library counted a quorum, which is before `acquire` returned, until
just before `release` was called, or until its validity ended; if it was lost before that, until it was last seen valid.
"""

import itertools
import json
import random
import signal
import sys
import time
from pathlib import Path
from typing import NamedTuple

from redsync import Client, LeaseLostError, QuorumError
from tests.soak.journal import Journal

NAME, PERMITS = "hammered", 3
LEASE = 1.5
GUARD = LEASE  # of the clients, as a client takes it from its lease
NODES, QUORUM = 5, 3

LOOK = 0.005  # seconds between two looks at a permit


def clock():
    return time.clock_gettime(time.CLOCK_BOOTTIME)


class Span(NamedTuple):
    """Some time, in seconds on the common clock."""

    since: float
    until: float

    @property
    def length(self):
        return self.until - self.since


# The processes.


def work(semaphore, journal, chance, ends_at):
    while (left := ends_at - clock()) > 0:
        # One that is not renewed is not told again to nodes that have forgotten it.
        lease = LEASE if chance.random() < 0.5 else None
        try:
            permit = semaphore.acquire(timeout=left, lease=lease)
        except QuorumError:
            continue
        if permit is not None:
            believe(permit, journal, chance)


def believe(permit, journal, chance):
    state = permit._state
    # The round that won it; the library forgets that when it has seen to the nodes that did not answer in time.
    tally = state.tally
    since = clock() if tally is None else tally.at
    # Mostly short; but most of the time is that of the long ones, for nodes to have something to forget.
    long = chance.random() < 0.05
    until = clock() + (chance.uniform(0.3, 1.5) * LEASE if long else chance.choice([0.0, 0.0, 0.002, 0.02]))
    seen = since
    while permit.remaining() > 0:
        if (before := clock()) > until:
            break
        time.sleep(min(LOOK, until - before))
        # Two statements: the instant must be one before the look.
        now = clock()
        seen = now if permit.remaining() > 0 else seen
    ended_at, lost = clock(), False
    try:
        permit.release()
    except LeaseLostError:
        lost = True
    journal.note("permit", since=since, until=seen if lost else min(ended_at, state.valid_until))


def main():
    settings = json.loads(sys.argv[1])
    signal.alarm(90)  # Should the test be killed, nobody stays for ever.
    chance = random.Random(settings["seed"])
    with Client(settings["urls"], lease=LEASE) as client:
        semaphore = client.get_semaphore(NAME, PERMITS)
        with semaphore:
            print("ready", flush=True)
        work(semaphore, Journal(Path(settings["journal"])), chance, float(sys.stdin.readline()))


# What happens to the nodes.


class Fault(NamedTuple):
    """One thing that is done to a node.

    Attributes:
        at: When, in seconds from the start.
        action: The method of `LocalNodes`.
        node: Its argument.
    """

    at: float
    action: str
    node: int


def plan(chance, seconds):
    """Return the faults of one run: nodes die and come back empty, or hang.

    Mostly a minority is out; but once a majority hangs for longer than a lease, and once a majority forgets all at the
    same time. In the last seconds nothing begins, so that all ends well.
    """
    faults, out_until = [], [0.0] * NODES
    great = {"hang": chance.uniform(0.1, 0.3) * seconds, "restart": chance.uniform(0.4, 0.6) * seconds}
    at = 0.5
    while at < seconds - 4.0:
        whole = [node for node in range(NODES) if out_until[node] < at]
        due = next((how for how, due_at in great.items() if due_at < at and len(whole) >= QUORUM), None)
        great.pop(due, None)
        spare = QUORUM if due else min(max(len(whole) - QUORUM, 0), chance.choice([1, 1, 2]))
        for node in chance.sample(whole, spare):
            until = at + chance.uniform(LEASE if due else 0.05, 1.5 * LEASE)
            match due or chance.choice(["kill", "restart", "hang"]):
                case "hang":
                    faults += [Fault(at, "pause", node), Fault(until, "resume", node)]
                    out_until[node] = until
                case "kill":
                    faults += [Fault(at, "kill", node), Fault(until, "restart", node)]
                    out_until[node] = until + GUARD
                case "restart":
                    faults.append(Fault(at, "restart", node))
                    out_until[node] = at + GUARD
        at += chance.uniform(0.3, 1.0)
    return sorted(faults)


# The judgement.


def absences(done, ends_at):
    """Return for each node when it could not be counted on, given what was done to it at which instants.

    A node that hung is whole when it goes on; one that was restarted when it has remembered for long enough.
    """
    spans = [[] for _ in range(NODES)]
    for node, mine in enumerate(spans):
        since = None
        for fault in done:
            if fault.node != node:
                continue
            if fault.action in ("kill", "pause"):
                since = fault.at
            else:
                until = fault.at + (0.0 if fault.action == "resume" else GUARD)
                mine.append(Span(fault.at if since is None else since, until))
                since = None
        if since is not None:
            mine.append(Span(since, ends_at))
    return spans


def levels(spans):
    """Return (instant, how many spans contain what comes after it), for each instant at which that changes."""
    # Ends first: who takes what is given back at this very instant is not with the one who gave it.
    changes = sorted([(span.until, -1) for span in spans] + [(span.since, 1) for span in spans])
    return list(zip((at for at, _ in changes), itertools.accumulate(by for _, by in changes), strict=True))


def most_at_once(spans):
    """Return how many of the spans had an instant in common at most, and when."""
    at, most = max(levels([span for span in spans if span.until > span.since]), key=lambda level: level[1])
    return most, at


def shortages(permits, out, since, until):
    """Return the spans in which fewer than all permits were believed although a quorum of nodes was whole.

    Args:
        permits: When each permit was believed in.
        out: For each node, when it could not be counted on.
        since: From when it is judged.
        until: Until when.
    """
    count, missing = 0, 0
    begun, found = since, []
    # One node may have overlapping absences: of these it has one at a time.
    merged = [span for spans in out for span in merge(spans)]
    changes = [(at, "permit", by) for at, by in steps(permits)] + [(at, "node", by) for at, by in steps(merged)]
    for at, what, by in sorted(changes, key=lambda change: change[0]):
        was_short = count < PERMITS and NODES - missing >= QUORUM
        count, missing = (count + by, missing) if what == "permit" else (count, missing + by)
        is_short = count < PERMITS and NODES - missing >= QUORUM
        if was_short and not is_short:
            found.append(Span(max(begun, since), min(at, until)))
        elif is_short and not was_short:
            begun = at
    if count < PERMITS and NODES - missing >= QUORUM:
        found.append(Span(max(begun, since), until))
    return [span for span in found if span.until > span.since]


def steps(spans):
    return [step for span in spans for step in ((span.since, 1), (span.until, -1))]


def merge(spans):
    merged = []
    for span in sorted(spans):
        if merged and span.since <= merged[-1].until:
            merged[-1] = Span(merged[-1].since, max(merged[-1].until, span.until))
        else:
            merged.append(span)
    return merged


if __name__ == "__main__":
    main()
