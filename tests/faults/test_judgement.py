"""The judgement of hammered synchronizers finds what it is to find, and what is done to nodes is what is meant."""

import itertools
import random

import pytest

from tests.faults import havoc, judgement
from tests.faults.havoc import GUARD, LEASE, Fault
from tests.faults.judgement import Belief, Span


def test_judgement_finds_four_at_once():
    three = [Span(0.0, 4.0), Span(1.0, 2.0), Span(1.5, 3.0), Span(2.0, 3.0)]
    assert judgement.most_at_once(three) == (3, 1.5)
    assert judgement.most_at_once([*three, Span(2.9, 5.0)]) == (4, 2.9)
    assert judgement.most_at_once([*three, Span(2.9, 2.9)]) == (3, 1.5)


def test_judgement_finds_whoever_believes_beside_a_writer():
    ada = Belief(0.0, 2.0, "ada", "write")
    bob, cid = Belief(1.0, 3.0, "bob", "read"), Belief(2.0, 4.0, "cid", "read")
    assert judgement.intrusions([cid, bob]) == []
    assert judgement.intrusions([cid, bob, ada]) == [(ada, bob)]
    late = ada._replace(since=2.5)._replace(until=2.6)
    assert judgement.intrusions([bob, cid, late]) == [(bob, late), (cid, late)]
    assert judgement.intrusions([ada, ada._replace(owner="eve")]) == [(ada, ada._replace(owner="eve"))]


def test_judgement_lets_a_writer_read():
    ada = Belief(0.0, 2.0, "ada", "write")
    assert judgement.intrusions([ada, Belief(1.0, 5.0, "ada", "read"), Belief(2.0, 3.0, "bob", "read")]) == []


def test_judgement_finds_tokens_that_are_no_higher_than_all_before():
    grants = [Belief(float(at), at + 0.5, token=token) for at, token in enumerate([3, 7, 5, 6, 8, 8])]
    one, two, three, four, five, six = grants
    assert judgement.disorder([two, one, five]) == []
    assert judgement.disorder(reversed(grants)) == [(two, three), (two, four), (five, six)]


def test_judgement_finds_a_shortage_only_while_a_quorum_is_whole():
    permits = [Span(0.0, 10.0), Span(0.0, 10.0), Span(0.0, 4.0), Span(6.0, 9.0)]
    well = [[] for _ in range(5)]
    assert judgement.shortages(permits, well, 1.0, 8.0, least=3) == [Span(4.0, 6.0)]
    assert judgement.shortages(permits, well, 1.0, 10.0, least=3) == [Span(4.0, 6.0), Span(9.0, 10.0)]
    assert judgement.shortages(permits, well, 1.0, 10.0, least=2) == []
    two_out = [[Span(0.0, 10.0)], [Span(0.0, 3.0), Span(2.0, 10.0)], [], [], []]
    assert judgement.shortages(permits, two_out, 1.0, 8.0, least=3) == [Span(4.0, 6.0)]
    three_out = [*two_out[:2], [Span(3.0, 5.0)], [], []]
    assert judgement.shortages(permits, three_out, 1.0, 8.0, least=3) == [Span(5.0, 6.0)]
    assert judgement.shortages([], three_out, 1.0, 8.0) == [Span(1.0, 3.0), Span(5.0, 8.0)]


def test_judgement_finds_the_longest_gap_within_what_is_judged():
    assert judgement.longest_gap([9.0, 2.0, 1.0], [Span(0.0, 4.0), Span(8.5, 10.0)]) == Span(2.0, 4.0)
    assert judgement.longest_gap([], [Span(1.0, 2.0)]) == Span(1.0, 2.0)


def test_node_is_counted_on_from_the_end_of_its_trouble_on():
    done = [Fault(1.0, "pause", 0), Fault(2.0, "kill", 1), Fault(3.0, "resume", 0), Fault(3.9, "kill", 1)]
    done += [Fault(4.0, "restart", 1), Fault(8.0, "kill", 2)]
    expected = [[Span(1.0, 3.0)], [Span(2.0, 4.0 + GUARD)], [Span(8.0, 9.0)], [], []]
    assert havoc.absences(done, 9.0) == expected


@pytest.mark.parametrize("seconds", [10.0, 15.0])
def test_plan_by_chance_takes_a_majority_away_twice(seconds):
    for number in range(50):
        out = havoc.absences(havoc.by_chance(random.Random(number), seconds), seconds)
        judged = judgement.shortages([], out, 0.0, seconds)
        assert len(judged) == 3, number
        assert all(later.since - sooner.until > 0.99 * LEASE for sooner, later in itertools.pairwise(judged))
        assert sum(span.length for span in judged) > 0.4 * seconds, number


def test_plan_that_wipes_all_takes_a_majority_away_once():
    for number in range(50):
        faults = havoc.wiped_in_turn_and_all_at_once(random.Random(number), 10.0)
        judged = judgement.shortages([], havoc.absences(faults, 10.0), 0.0, 10.0)
        assert len(judged) == 2, judged
        assert {fault.node for fault in faults if fault.action == "restart" and fault.at < 5.5} == set(range(5))
