"""Shortages and gaps, by hand."""

from redsync.testing.harness.spans import Span, longest_gap, shortages


def test_shortages_are_found_only_while_a_quorum_is_healthy():
    permits = [Span(0, 100), Span(0, 100), Span(0, 40), Span(60, 90)]
    well = [[] for _ in range(5)]
    assert shortages(permits, well, Span(10, 80), least=3) == [Span(40, 60)]
    assert shortages(permits, well, Span(10, 100), least=3) == [Span(40, 60), Span(90, 100)]
    assert shortages(permits, well, Span(10, 100), least=2) == []
    two_out = [[Span(0, 100)], [Span(0, 30), Span(20, 100)], [], [], []]
    assert shortages(permits, two_out, Span(10, 80), least=3) == [Span(40, 60)]
    three_out = [*two_out[:2], [Span(30, 50)], [], []]
    assert shortages(permits, three_out, Span(10, 80), least=3) == [Span(50, 60)]
    assert shortages([], three_out, Span(10, 80)) == [Span(10, 30), Span(50, 80)]


def test_longest_gap_lies_within_the_judged_spans():
    assert longest_gap([90, 20, 10], [Span(0, 40), Span(85, 100)]) == Span(20, 40)
    assert longest_gap([], [Span(10, 20)]) == Span(10, 20)
