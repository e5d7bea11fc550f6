"""Runs by seed that found something once, in redsync or in a checker; each by what it was."""

import pytest

from redsync.testing.simulator.runs import simulate

FOUND = [
    ("lock", 1013974, "a waiter whose clock was set back and runs slow"),
    ("lock", 1044192, "a clock that had caught up unseen, taken for one that had been right all the time"),
    ("fair", 2001725, "four nodes that drew different tickets: two named one head, and two another"),
    ("fair", 2018814, "a ticket like that which its owner had left: it overtook who had queued in between"),
    ("fair", 2098523, "a client with a slow clock that takes long to give up a silent connection"),
    ("latch", 1004446, "a command with an old state that arrives after nodes have forgotten the latch"),
    ("latch", 1001699, "a node that forgot, with its clock behind the tokens it gave (docs/guarantees.md says so)"),
    ("limiter", 1018, "a place in line that outlasted its waiter on a node that was hung or cut off"),
    ("limiter", 2917, "time until room, where another client had asked for more allowance"),
    ("limiter", 2060, "keys that nobody had touched since their end, back on a node whose clock was set back"),
    ("limiter", 5000124, "time until room, behind the first"),
    ("limiter", 20003682, "time until room: a node that had forgotten was believed"),
    ("limiter", 30001088, "time until room: each slot free on a quorum, but not all of them on one"),
    ("semaphore", 5001575, "a permit of a short lease that ended before a dark node was given up"),
]
SWEPT = [
    ("semaphore", 3222, "a place in line that a node executed late, or had from an undoing alone"),
    ("limiter", 10094, "another such place in line"),
    ("limiter", 2355, "keys that are back, and others that are not"),
    ("limiter", 5001565, "time until room, behind one who left"),
    ("limiter", 5002175, "time until room: a node was not waited for"),
    ("limiter", 1146, "a waiter whose place is kept for longer, and that may sleep for longer"),
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
