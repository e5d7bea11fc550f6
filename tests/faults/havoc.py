"""What happens to five nodes while processes hammer them, and when they could be counted on all the same.

All instants are on the clock of the leases, which all processes share.
"""

import random
import threading
import time
from typing import NamedTuple

from redsync.testing import LocalNodes
from tests.faults.judgement import NODES, QUORUM, Span

LEASE = 1.5
GUARD = LEASE  # of the clients, as a client takes it from its lease

CALM = 4.0  # seconds at the end in which nothing begins, so that all ends well


def clock() -> float:
    return time.clock_gettime(time.CLOCK_BOOTTIME)


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


def by_chance(chance: random.Random, seconds: float) -> list[Fault]:
    """Return the faults of one run: nodes die and come back empty, or hang.

    Mostly a minority is out; but once a majority hangs for longer than a lease, and once a majority forgets all at the
    same time.
    """
    faults, out_until, busy = [], [0.0] * NODES, seconds - CALM
    great = {"hang": chance.uniform(0.15, 0.4) * busy, "restart": chance.uniform(0.55, 0.8) * busy}
    at = 0.5
    while at < busy:
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


def wiped_in_turn_and_all_at_once(chance: random.Random, seconds: float) -> list[Fault]:
    """Return the faults of one run: each node forgets everything, and later all of them in the same instant."""
    busy = seconds - CALM
    order, every = chance.sample(range(NODES), NODES), 0.75 * busy / NODES
    faults = [Fault(0.5 + every * i, "restart", node) for i, node in enumerate(order)]
    return faults + [
        Fault(at, action, node) for at, action in ((busy - 0.3, "kill"), (busy, "restart")) for node in range(NODES)
    ]


def carry_out(nodes: LocalNodes, faults: list[Fault], starts_at: float) -> list[Fault]:
    """Do what is planned; return what was done, at the instants at which it was over."""
    done, late = [], 0.0
    for fault in faults:
        time.sleep(max(starts_at + fault.at + late - clock(), 0.0))
        before = clock()
        getattr(nodes, fault.action)(fault.node)
        after = clock()
        # Trouble counts from before it, mending from after it. A restart is both.
        if fault.action == "restart":
            done.append(fault._replace(at=before, action="kill"))
        done.append(fault._replace(at=before if fault.action in ("kill", "pause") else after))
        late = max(late, after - starts_at - fault.at)
    return done


def absences(done: list[Fault], ends_at: float) -> list[list[Span]]:
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
                since = fault.at if since is None else since
            else:
                until = fault.at + (0.0 if fault.action == "resume" else GUARD)
                mine.append(Span(fault.at if since is None else since, until))
                since = None
        if since is not None:
            mine.append(Span(since, ends_at))
    return spans


class Pulse:
    """Tells by how much the machine keeps us waiting: what it adds to all that has a bound.

    Attributes:
        late: Seconds in all, of stalls that are worth mentioning.
    """

    def __init__(self):
        self.late = 0.0
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._beat)

    def __enter__(self):
        self._thread.start()
        return self

    def __exit__(self, *error):
        self._over.set()
        self._thread.join()

    def _beat(self):
        last = clock()
        while not self._over.wait(0.05):
            now = clock()
            self.late += late if (late := now - last - 0.05) > 0.05 else 0.0
            last = now
