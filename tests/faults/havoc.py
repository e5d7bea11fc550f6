"""Faults of five nodes while processes contend, and the times when nodes could still be counted on."""

import random
from collections.abc import Sequence

from redsync.testing.harness.crew import COMMAND, Crew
from redsync.testing.harness.nemesis import Done, Fault
from redsync.testing.harness.orders import Order
from redsync.testing.harness.spans import Span

NODES, QUORUM = 5, 3

LEASE = 1.5
GUARD = LEASE  # of the clients, which derive it from their lease

CALM = 4.0  # seconds at the end without new faults, so that all of them end


def crew_of(nodes, directory, names, *, flavours, owners=1, command=COMMAND, **changes) -> Crew:
    """Return a crew with a process for each of these flavours, all started."""

    def make_order(client, first, journal):
        return Order(
            urls=nodes.urls,
            names=names,
            directory=str(directory),
            journal=str(journal),
            first=first,
            owners=owners,
            flavour=flavours[client],
            **{"lease": LEASE, "warm": 20.0, **changes},
        )

    crew = Crew(directory, make_order, lambda _: command)
    for client in range(len(flavours)):
        crew.start(client)
    return crew


def by_chance(rng: random.Random, seconds: float) -> list[Fault]:
    """Return the faults of one run: nodes die and come back empty, or hang.

    Mostly a minority is out; but once a majority hangs for longer than a lease, and once a majority forgets everything
    at the same time.
    """
    faults, out_until, busy = [], [0.0] * NODES, seconds - CALM
    great = {"hang": rng.uniform(0.15, 0.4) * busy, "restart": rng.uniform(0.55, 0.8) * busy}
    at = 0.5
    while at < busy:
        whole = [node for node in range(NODES) if out_until[node] < at]
        due = next((how for how, due_at in great.items() if due_at < at and len(whole) >= QUORUM), None)
        great.pop(due, None)
        spare = QUORUM if due else min(max(len(whole) - QUORUM, 0), rng.choice([1, 1, 2]))
        for node in rng.sample(whole, spare):
            until = at + rng.uniform(LEASE if due else 0.05, 1.5 * LEASE)
            match due or rng.choice(["kill", "restart", "hang"]):
                case "hang":
                    faults += [Fault(at, "pause", (node,)), Fault(until, "resume", (node,))]
                    out_until[node] = until
                case "kill":
                    faults += [Fault(at, "kill", (node,)), Fault(until, "restart", (node,))]
                    out_until[node] = until + GUARD
                case "restart":
                    faults.append(Fault(at, "restart", (node,)))
                    out_until[node] = at + GUARD
        at += rng.uniform(0.3, 1.0)
    return sorted(faults)


def wiped_in_turn_and_all_at_once(rng: random.Random, seconds: float) -> list[Fault]:
    """Return the faults of one run: each node forgets everything, and later all of them in the same instant."""
    busy = seconds - CALM
    order, every = rng.sample(range(NODES), NODES), 0.75 * busy / NODES
    faults = [Fault(0.5 + every * i, "restart", (node,)) for i, node in enumerate(order)]
    return faults + [
        Fault(at, action, (node,)) for at, action in ((busy - 0.3, "kill"), (busy, "restart")) for node in range(NODES)
    ]


def absences(done: Sequence[Done], until: int) -> list[list[Span]]:
    """Return for each node when it could not be counted on, given the faults carried out.

    Trouble counts from before it, repair from after it; a restart may be both. A node that hung is healthy when it
    continues; a restarted one when it has remembered for long enough.
    """
    spans = [[] for _ in range(NODES)]
    for node, mine in enumerate(spans):
        since = None
        for fault, before, after in done:
            if fault.target != (node,):
                continue
            since = before if since is None else since
            if fault.action in ("restart", "resume"):
                mine.append(Span(since, after + (0 if fault.action == "resume" else int(GUARD * 1e9))))
                since = None
        if since is not None:
            mine.append(Span(since, until))
    return spans
