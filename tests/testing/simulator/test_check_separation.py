"""The checker of separation, by hand; `test_planted_in_clusters` has the runs by seed."""

import pytest

from redsync._core.quorum import Choice
from redsync.testing.simulator import Simulation
from redsync.testing.simulator.checks import Separation
from redsync.testing.simulator.happenings import Decided, Executed, Faulted

GRANTED, REFUSED = Choice.GRANTED, Choice.REFUSED


def vote(node, server, number=1):
    return Executed(1.0, node, "a", "lock_acquire", (b"x",), (), 1, number=number, server=server)


def count(*choices):
    return Decided(1.0, "a", 1, "won", choices, (1,) * len(choices))


@pytest.fixture
def checker():
    with Simulation(seed=1, checkers=()) as sim:
        yield Separation(sim)


def test_two_votes_of_one_server_are_found(checker):
    assert checker.see(vote(0, "node-1a")) is checker.see(vote(2, "node-1a")) is None
    assert checker.see(count(GRANTED, None, GRANTED)) == "a counts two votes of node-1a for #1: as node 1 and as node 3"


@pytest.mark.parametrize("choices", [(GRANTED, None, REFUSED), (None, GRANTED, GRANTED)])
def test_votes_that_are_not_counted_do_not_matter(checker, choices):
    for node, server in enumerate(["node-1a", "node-2a", "node-1a"]):
        checker.see(vote(node, server))
    assert checker.see(count(*choices)) is None


@pytest.mark.parametrize("kind", ["cluster slot", "group failover"])
def test_votes_from_before_a_move_are_not_compared_with_later_ones(checker, kind):
    checker.see(vote(0, "node-1a"))
    checker.see(Faulted(1.0, kind, "something moves"))
    checker.see(vote(2, "node-1a"))
    assert checker.see(count(GRANTED, None, GRANTED)) is None


def test_single_servers_and_other_rounds_do_not_matter(checker):
    checker.see(vote(0, ""))
    checker.see(vote(1, ""))
    checker.see(vote(2, "node-1a", number=2))
    checker.see(Faulted(1.0, "node crash", "node-1a crashes"))
    assert checker.see(count(GRANTED, GRANTED, GRANTED)) is None
