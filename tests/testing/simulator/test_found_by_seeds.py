"""Runs by seed that once found a mistake in redsync or in a checker; each with its cause."""

import pytest

from redsync.testing.simulator.runs import simulate

FOUND = [
    ("lock", 1013974, "a waiter whose clock was set back and runs slow"),
    ("lock", 1044192, "a clock that had caught up unseen, mistaken for one that was never wrong"),
    ("lock", 1000950, "a renewal that was made before its hold ended in the same turn, and sent after it"),
    ("fair", 2001725, "four nodes that drew different tickets: two named one head, and two another"),
    ("fair", 2018814, "a ticket equal to one that its owner had left: it overtook later waiters"),
    ("fair", 2098523, "a client with a slow clock that is slow to abandon a silent connection"),
    ("latch", 1004446, "a command with an old state that arrives after nodes have forgotten the latch"),
    ("latch", 1001699, "a node that forgot, with its clock behind issued tokens (see docs/guarantees.md)"),
    ("limiter", 1018, "a place in line that outlasted its waiter on a node that was hung or cut off"),
    ("limiter", 2917, "time until room, where another client had requested more allowance"),
    ("limiter", 2060, "expired keys that no command had touched, back on a node whose clock was set back"),
    ("limiter", 5000124, "time until room, behind the first"),
    ("limiter", 20003682, "time until room: a node that had forgotten was believed"),
    ("limiter", 2085, "a message about a success that came too late, pending for a node that did not get the rollback"),
    ("limiter", 30001088, "time until room: each slot free on a quorum, but not all of them on one"),
    ("semaphore", 5001575, "a permit with a short lease that ended before the client abandoned a dark node"),
]
SWEPT = [
    ("semaphore", 3222, "a place in line that a node executed late, or had only from a rollback"),
    ("limiter", 10094, "another such place in line"),
    ("limiter", 2355, "keys that are back, and others that are not"),
    ("limiter", 5001565, "time until room, behind a waiter that left"),
    ("limiter", 5002175, "time until room: the client did not wait for a node"),
    ("limiter", 1146, "a waiter whose place is kept longer, and that may sleep longer"),
]


@pytest.mark.parametrize(
    ("kind", "seed"),
    [
        *(pytest.param(kind, seed, id=what) for kind, seed, what in FOUND),
        *(pytest.param(kind, seed, id=what, marks=pytest.mark.sweep) for kind, seed, what in SWEPT),
    ],
)
def test_run_that_found_something_once_keeps_every_promise(kind, seed):
    simulate(seed, kind=kind)
