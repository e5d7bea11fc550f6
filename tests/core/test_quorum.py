"""The arithmetic of votes, against a second implementation that is too simple to be wrong: it tries all completions."""

from functools import cache
from itertools import permutations, product

import pytest
from hypothesis import given
from hypothesis import strategies as st

from redsync._core.quorum import Choice, Tally, Verdict, Vote, quorum_of, thoroughly, verdict_of
from redsync._core.session import Session
from tests.support.ours import of_ours

GRANTED, REFUSED, FAILED = Choice.GRANTED, Choice.REFUSED, Choice.FAILED
PENDING, WON, LOST = Verdict.PENDING, Verdict.WON, Verdict.LOST
SIZES = range(1, 6)


def new_tally(n, decide=None, parse=lambda reply: reply == "yes"):
    return Tally([f"node{i}" for i in range(n)], parse, decide)


REPLIES = {GRANTED: "yes", REFUSED: "no", FAILED: "down"}


def cast(tally, node, choice):
    reply = REPLIES[choice]
    return tally.fail(node, reply) if choice is FAILED else tally.record(node, reply)


@cache
def dumb_verdict(n, granted, voted):
    """Try all votes of the nodes that have not voted."""
    if granted >= n // 2 + 1:
        return WON
    for rest in product([True, False], repeat=n - voted):
        if granted + sum(rest) >= n // 2 + 1:
            return PENDING
    return LOST


def check_round(n, votes, *, closes=False):
    """Cast the votes, (node, choice) in order of arrival, and compare with the simple verdict after each of them.

    A node's first vote counts, and none after the verdict.
    """
    tally, decided = new_tally(n), PENDING
    assert (tally.verdict, tally.won, tally.without_quorum) == (PENDING, False, False)
    counted = {}
    for node, choice in votes:
        before, ended = decided, cast(tally, node, choice)
        if decided is PENDING:
            counted.setdefault(node, choice)
            decided = dumb_verdict(n, list(counted.values()).count(GRANTED), len(counted))
        assert tally.verdict is decided, votes
        assert ended is (decided is not before), votes
        check_votes(tally, n, counted)
    if closes:
        tally.close("silence")
        assert tally.verdict is (WON if decided is WON else LOST), votes
        silent = [node for node in range(n) if tally.replies[node] == "silence"]
        assert bool(silent) is (decided is PENDING), votes
        assert not set(silent) & set(counted), votes
        assert tally.choices == [FAILED if node in silent else counted.get(node) for node in range(n)], votes
    assert tally.won is (tally.verdict is WON), votes
    # Even if all other nodes had granted, they would not have been enough.
    assert tally.without_quorum is (n - tally.choices.count(FAILED) < n // 2 + 1), votes


def check_votes(votes, n, counted):
    assert votes.choices == [counted.get(node) for node in range(n)]
    assert votes.replies == [REPLIES.get(choice) for choice in votes.choices]
    assert [votes.granted, votes.refused, votes.failed] == [votes.choices.count(choice) for choice in REPLIES]
    assert votes.backers == sum(1 << node for node, choice in counted.items() if choice is GRANTED)


# The quorum.


@pytest.mark.parametrize(("n", "quorum"), [(1, 1), (2, 2), (3, 2), (4, 3), (5, 3), (6, 4), (7, 4)])
def test_quorum_is_more_than_half_of_the_configured_nodes(n, quorum):
    assert quorum_of(n) == quorum
    assert new_tally(n).quorum == quorum
    assert Session(n, None, None, None).quorum == quorum


@pytest.mark.parametrize("n", [0, -1])
def test_quorum_of_no_nodes_is_refused(n):
    with pytest.raises(ValueError, match="at least one node"):
        quorum_of(n)


# The verdict.


@pytest.mark.parametrize("n", range(1, 5))
def test_verdict_is_right_in_each_order_of_arrival(n):
    """Each node votes again, in all ways, after its vote."""
    for choices in product(Choice, repeat=n):
        for order in permutations(range(n)):
            check_round(n, [(node, choice) for node in order for choice in (choices[node], *Choice)])


@pytest.mark.parametrize("n", SIZES)
def test_closed_round_is_won_or_lost_whichever_nodes_have_voted(n):
    for choices in product([*Choice, None], repeat=n):
        votes = [(node, choice) for node, choice in enumerate(choices) if choice is not None]
        check_round(n, votes, closes=True)


@st.composite
def arrivals(draw):
    """A number of nodes, and votes in order of arrival, (node, choice): some nodes vote twice, some never."""
    n = draw(st.integers(1, 9))
    return n, draw(st.lists(st.tuples(st.integers(0, n - 1), st.sampled_from(Choice)), max_size=2 * n))


@given(arrivals(), st.booleans())
def test_verdict_comes_as_soon_as_it_is_certain(arrived, closes):
    """Redlock: a majority of all nodes, whatever the order of votes, failures, duplicates and late votes."""
    check_round(*arrived, closes=closes)


@given(st.lists(st.sampled_from([*Choice, None]), min_size=1, max_size=9), st.booleans())
def test_verdict_is_a_function_of_the_votes_alone(choices, silence_refuses):
    verdict = verdict_of(choices, silence_refuses=silence_refuses)
    assert verdict is verdict_of(choices[::-1], silence_refuses=silence_refuses)
    majority = len(choices) // 2 + 1
    assert (verdict is WON) is (choices.count(GRANTED) >= majority)
    if None not in choices:
        assert verdict is not PENDING
    elif not silence_refuses and verdict is LOST:
        assert choices.count(REFUSED) > len(choices) - majority


# Thorough rounds: silence does not count as a refusal.


def dumb_thorough_verdict(n, choices):
    """Lost by refusals alone, or when every node has voted."""
    if choices.count(GRANTED) >= n // 2 + 1:
        return WON
    could_still_win = n - choices.count(REFUSED) >= n // 2 + 1
    return PENDING if could_still_win and len(choices) < n else LOST


@pytest.mark.parametrize("n", SIZES)
def test_thorough_verdict_is_right_for_each_vector_of_votes(n):
    for choices in product(Choice, repeat=n):
        tally = new_tally(n, thoroughly)
        decided = PENDING
        for node, choice in enumerate(choices):
            deciding = cast(tally, node, choice)
            if decided is PENDING:
                decided = dumb_thorough_verdict(n, choices[: node + 1])
                assert deciding is (decided is not PENDING), choices
            assert tally.verdict is decided, choices
        assert decided is not PENDING, choices


@pytest.mark.parametrize("n", range(1, 6))
def test_thorough_round_distinguishes_busy_from_outage_in_any_order_of_answers(n):
    for choices in product(Choice, repeat=n):
        kinds = set()
        for order in permutations(range(n)):
            tally = new_tally(n, thoroughly)
            for node in order:
                cast(tally, node, choices[node])
            kinds.add((tally.verdict, tally.refused > n - tally.quorum))
        assert len(kinds) == 1, choices


@pytest.mark.parametrize("n", SIZES)
def test_thorough_round_is_lost_when_it_is_closed(n):
    for votes in range(n + 1):
        tally = new_tally(n, thoroughly)
        for node in range(votes):
            tally.fail(node, "down")
        tally.close("silence")
        assert tally.verdict is LOST
        assert tally.without_quorum


def test_interrupted_count_leaves_the_round_open():
    """So the driver still ends it, and may ask again."""

    def interrupted(_tally):
        raise KeyboardInterrupt

    tally = new_tally(3, interrupted)
    with pytest.raises(KeyboardInterrupt):
        tally.record(0, REPLIES[REFUSED])
    assert tally.verdict is PENDING
    assert tally.open


# Unexpected replies.


@pytest.mark.parametrize("error", [TypeError, ValueError, IndexError, KeyError, AttributeError, UnicodeError])
def test_reply_unknown_to_the_parser_fails_with_a_reason(error):
    def parse(reply):
        if reply != "yes":
            raise error("what is this?")
        return True

    tally = new_tally(3, parse=of_ours(parse))
    assert tally.record(0, [b"odd", 7]) is None
    assert (tally.granted, tally.refused, tally.failed) == (0, 0, 1)
    assert tally.choices[0] is FAILED
    assert tally.replies[0] == "unexpected reply [b'odd', 7]"
    assert tally.record(1, None) is None
    assert (tally.verdict, tally.without_quorum) == (LOST, True)


def test_reason_for_an_endless_garbage_reply_is_short():
    tally = new_tally(1, parse=of_ours(lambda reply: reply["absent"]))
    tally.record(0, b"x" * 100_000)
    assert tally.replies[0].startswith("unexpected reply b'xxx")
    assert len(tally.replies[0]) < 120


@pytest.mark.parametrize("interruption", [KeyboardInterrupt, MemoryError])
def test_interrupted_parser_leaves_the_vote_open(interruption):
    calls = []

    def parse(reply):
        calls.append(reply)
        if len(calls) == 1:
            raise interruption
        return True

    tally = new_tally(1, parse=parse)
    with pytest.raises(interruption):
        tally.record(0, "yes")
    assert tally.verdict is PENDING
    assert tally.record(0, "yes") is True


def test_interruption_in_an_answer_leaves_no_answer_behind():
    """The node may fail then, and no part of its answer may be left for readers."""

    class Interrupted:
        def __bool__(self):
            raise KeyboardInterrupt

    tally = new_tally(3, parse=lambda reply: Interrupted())
    with pytest.raises(KeyboardInterrupt):
        tally.record(0, "yes")
    tally.fail(0, "connection closed")
    assert (tally.choices[0], tally.answers[0]) == (FAILED, None)


# For people to read.


def test_votes_show_each_nodes_reply():
    tally = new_tally(5)
    tally.record(0, "yes")
    tally.record(1, "no")
    tally.fail(2, "connection refused")
    assert tally.votes == (
        Vote("node0", GRANTED, "'yes'"),
        Vote("node1", REFUSED, "'no'"),
        Vote("node2", FAILED, "connection refused"),
        Vote("node3", FAILED, "not waited for"),
        Vote("node4", FAILED, "not waited for"),
    )
    assert [str(vote) for vote in tally.votes] == [
        "node0 granted: 'yes'",
        "node1 refused: 'no'",
        "node2 failed: connection refused",
        "node3 failed: not waited for",
        "node4 failed: not waited for",
    ]


def test_votes_shorten_long_replies_but_no_reasons():
    tally = new_tally(3)
    tally.record(0, "n" * 1000)
    tally.fail(1, "because " * 50)
    assert len(tally.votes[0].detail) == 60
    assert tally.votes[1].detail == "because " * 50


def test_vote_without_detail_reads_without_colon():
    assert str(Vote("10.0.0.1:6379", GRANTED)) == "10.0.0.1:6379 granted"


# Custom decisions.


def test_custom_decision_replaces_the_count():
    tally = new_tally(3, decide=lambda tally: WON if tally.refused == 2 else PENDING)
    assert [tally.record(i, reply) for i, reply in enumerate(["no", "yes", "no"])] == [False, False, True]
    assert tally.won


def test_custom_decision_sees_the_vote_it_decides_about():
    seen = []

    def decide(tally):
        seen.append((tally.granted, tally.refused, tally.failed, list(tally.choices)))
        return PENDING

    tally = new_tally(3, decide)
    assert tally.record(1, "yes") is False
    tally.fail(0, "down")
    tally.record(2, "no")
    assert seen == [
        (1, 0, 0, [None, GRANTED, None]),
        (1, 0, 1, [FAILED, GRANTED, None]),
        (1, 1, 1, [FAILED, GRANTED, REFUSED]),
    ]


def test_close_loses_a_round_that_a_custom_decision_leaves_open():
    tally = new_tally(3, decide=lambda tally: PENDING)
    for i in range(3):
        assert tally.record(i, "yes") is False
    tally.close("over")
    assert tally.verdict is LOST
    assert tally.choices == [GRANTED] * 3


def test_close_stops_where_a_custom_decision_is_taken():
    tally = new_tally(5, decide=lambda tally: WON if tally.failed == 2 else PENDING)
    tally.close("over")
    assert tally.won
    assert tally.choices == [FAILED, FAILED, None, None, None]
