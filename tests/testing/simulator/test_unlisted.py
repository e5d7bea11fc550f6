"""Clients whose lists of nodes differ: by one node every promise is kept, by two it is not."""

import pytest

from redsync.testing.simulator.checks import Exclusion
from redsync.testing.simulator.runs import simulate
from tests.support.hunting import hunt


@pytest.mark.parametrize("kind", ["lock", "fair", "fenced", "read-write", "semaphore", "limiter", "latch"])
@pytest.mark.parametrize("nodes", [4, 5])
def test_promises_hold_while_one_node_is_not_on_all_lists(kind, nodes):
    for seed in range(2000, 2004):
        assert simulate(seed, kind=kind, nodes=nodes, unlisted=1).acquisitions


def test_majorities_of_lists_that_differ_by_two_may_not_meet():
    assert "is held by" in hunt(Exclusion, range(2000, 2010), nodes=5, unlisted=2)
