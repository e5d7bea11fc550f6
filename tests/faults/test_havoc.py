"""The planned faults are as intended, and the time for which nodes can't be counted on is known."""

import itertools
import random

import pytest

from redsync.testing.harness.nemesis import Done, Fault
from redsync.testing.harness.spans import Span, shortages
from tests.faults import havoc
from tests.faults.havoc import GUARD, LEASE


def whole(faults, seconds):
    """Return when a quorum would be healthy if each of these faults took no time."""
    done = [Done(fault, int(fault.at * 1e9), int(fault.at * 1e9)) for fault in faults]
    until = int(seconds * 1e9)
    return shortages([], havoc.absences(done, until), Span(0, until))


def test_node_is_counted_on_again_from_the_end_of_its_trouble():
    pause, resume, kill, restart = (
        Fault(0.0, action, (node,)) for node, action in ((0, "pause"), (0, "resume"), (1, "kill"), (1, "restart"))
    )
    done = [Done(pause, 10, 11), Done(kill, 20, 21), Done(resume, 30, 31), Done(restart, 40, 41)]
    done += [Done(Fault(0.0, "restart", (2,)), 50, 51), Done(Fault(0.0, "kill", (3,)), 80, 81)]
    guard = int(GUARD * 1e9)
    expected = [[Span(10, 31)], [Span(20, 41 + guard)], [Span(50, 51 + guard)], [Span(80, 90)], []]
    assert havoc.absences(done, 90) == expected


@pytest.mark.parametrize("seconds", [10.0, 15.0])
def test_plan_by_chance_takes_a_majority_away_twice(seconds):
    for number in range(50):
        judged = whole(havoc.by_chance(random.Random(number), seconds), seconds)
        assert len(judged) == 3, number
        assert all(later.since - sooner.until > 0.99e9 * LEASE for sooner, later in itertools.pairwise(judged))
        assert sum(span.seconds for span in judged) > 0.4 * seconds, number


def test_plan_that_wipes_all_takes_a_majority_away_once():
    for number in range(50):
        faults = havoc.wiped_in_turn_and_all_at_once(random.Random(number), 10.0)
        judged = whole(faults, 10.0)
        assert len(judged) == 2, judged
        assert {fault.target[0] for fault in faults if fault.action == "restart" and fault.at < 5.5} == set(range(5))
