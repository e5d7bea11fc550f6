"""The arithmetic of votes, against a second implementation that is too simple to be wrong: it tries all completions."""

from functools import cache
from itertools import permutations, product

import pytest

from redsync._core.quorum import Choice, Tally, Verdict, Vote, quorum_of, thoroughly
from redsync._core.session import Session

GRANTED, REFUSED, FAILED = Choice.GRANTED, Choice.REFUSED, Choice.FAILED
PENDING, WON, LOST = Verdict.PENDING, Verdict.WON, Verdict.LOST
REPLIES = {GRANTED: "yes", REFUSED: "no", FAILED: "down"}


def new_tally(n, decide=None, parse=lambda reply: reply == "yes"):
    return Tally([f"node{i}" for i in range(n)], parse, decide)


def cast(tally, node, choice):
    reply = REPLIES[choice]
    return tally.fail(node, reply) if choice is FAILED else tally.record(node, reply)


@cache
def dumb_plain_verdict(n, granted, refused, failed):
    """Try all votes of the nodes that have not voted."""
    if granted >= n // 2 + 1:
        return WON
    for rest in product([True, False], repeat=n - granted - refused - failed):
        if granted + sum(rest) >= n // 2 + 1:
            return PENDING
    return LOST


def dumb_thorough_verdict(n, granted, refused, failed):
    """Lost by refusals alone, or when every node has voted: silence does not count as a refusal."""
    if granted >= n // 2 + 1:
        return WON
    could_still_win = n - refused >= n // 2 + 1
    return PENDING if could_still_win and granted + refused + failed < n else LOST


RULES = pytest.mark.parametrize(
    ("decide", "dumb_verdict"), [(None, dumb_plain_verdict), (thoroughly, dumb_thorough_verdict)]
)


def check_round(n, votes, decide, dumb_verdict):
    """Cast the votes, (node, choice) in order of arrival, and compare with the simple verdict after each of them.

    A node's first vote counts, and none after the verdict. Return the tally.
    """
    tally, decided = new_tally(n, decide), PENDING
    counted = {}
    for node, choice in votes:
        before, ended = decided, cast(tally, node, choice)
        if decided is PENDING:
            counted.setdefault(node, choice)
            decided = dumb_verdict(n, *map(list(counted.values()).count, REPLIES))
        assert tally.verdict is decided, votes
        assert ended is (decided is not before), votes
        assert tally.choices == [counted.get(node) for node in range(n)], votes
    return tally


# The quorum.


@pytest.mark.parametrize(("n", "quorum"), [(1, 1), (2, 2), (3, 2), (4, 3), (5, 3), (6, 4), (7, 4)])
def test_quorum_is_more_than_half_of_the_configured_nodes(n, quorum):
    assert quorum_of(n) == new_tally(n).quorum == Session(n, None, None, None).quorum == quorum


def test_quorum_of_no_nodes_is_refused():
    with pytest.raises(ValueError, match="at least one node"):
        quorum_of(0)


# The verdict.


@RULES
@pytest.mark.parametrize("n", range(1, 5))
def test_verdict_comes_as_soon_as_it_is_certain_in_each_order_of_arrival(n, decide, dumb_verdict):
    """Redlock: a majority of all nodes. Each node votes again, in all ways, after its vote."""
    for choices in product(Choice, repeat=n):
        for order in permutations(range(n)):
            votes = [(node, choice) for node in order for choice in (choices[node], *Choice)]
            check_round(n, votes, decide, dumb_verdict)


@RULES
@pytest.mark.parametrize("n", range(1, 6))
def test_closed_round_is_won_or_lost_whichever_nodes_have_voted(n, decide, dumb_verdict):
    for choices in product([*Choice, None], repeat=n):
        votes = [(node, choice) for node, choice in enumerate(choices) if choice is not None]
        tally = check_round(n, votes, decide, dumb_verdict)
        before, was_open = list(tally.choices), tally.verdict is PENDING
        tally.close("silence")
        assert tally.won is (choices.count(GRANTED) > n / 2)
        assert tally.verdict in (WON, LOST)
        for then, now in zip(before, tally.choices, strict=True):
            assert now is then or (was_open and (then, now) == (None, FAILED))
        assert [tally.granted, tally.refused, tally.failed] == [tally.choices.count(choice) for choice in REPLIES]
        assert tally.nodes_with(GRANTED) == sum(
            1 << node for node, choice in enumerate(tally.choices) if choice is GRANTED
        )
        # Even if all other nodes had granted, they would not have been enough.
        assert tally.without_quorum is (n - tally.failed < n // 2 + 1)


def test_closed_round_is_lost_if_a_custom_decision_leaves_it_open():
    tally = new_tally(3, decide=lambda tally: PENDING)
    assert [tally.record(node, "yes") for node in range(3)] == [False] * 3
    tally.close("over")
    assert (tally.verdict, tally.choices) == (LOST, [GRANTED] * 3)


# Unexpected replies.


@pytest.mark.parametrize("error", [TypeError, ValueError, IndexError, KeyError, AttributeError, UnicodeError])
def test_reply_unknown_to_the_parser_fails_with_a_short_reason(error):
    def parse(reply):
        raise error("what is this?")

    tally = new_tally(3, parse=parse)
    assert tally.record(0, [b"odd", 7]) is tally.record(1, b"x" * 100_000) is None
    assert tally.replies[0] == "unexpected reply [b'odd', 7]"
    assert tally.replies[1].startswith("unexpected reply b'xxx")
    assert len(tally.replies[1]) < 120
    assert (tally.verdict, tally.failed, tally.without_quorum) == (LOST, 2, True)


def interrupted(_):
    raise KeyboardInterrupt


class InterruptedAnswer:
    def __bool__(self):
        raise KeyboardInterrupt


@pytest.mark.parametrize("parse", [interrupted, lambda reply: InterruptedAnswer()], ids=["parser", "answer"])
def test_interrupted_vote_leaves_nothing_behind_and_the_node_may_still_fail(parse):
    tally = new_tally(3, parse=parse)
    with pytest.raises(KeyboardInterrupt):
        tally.record(0, "yes")
    assert tally.verdict is PENDING
    tally.fail(0, "connection closed")
    assert (tally.choices[0], tally.answers[0]) == (FAILED, None)


def test_interrupted_count_leaves_the_round_open():
    """So the driver still ends it, and may ask again."""
    tally = new_tally(3, interrupted)
    with pytest.raises(KeyboardInterrupt):
        tally.record(0, "no")
    assert tally.verdict is PENDING


# For people to read.


def test_votes_show_each_nodes_reply_shortened_and_each_reason():
    tally = new_tally(5)
    tally.record(0, "yes")
    tally.record(1, "n" * 1000)
    tally.fail(2, "connection refused")
    assert tally.votes[2] == Vote("node2", FAILED, "connection refused")
    assert [str(vote) for vote in tally.votes] == [
        "node0 granted: 'yes'",
        f"node1 refused: {tally.votes[1].detail}",
        "node2 failed: connection refused",
        "node3 failed: not waited for",
        "node4 failed: not waited for",
    ]
    assert len(tally.votes[1].detail) == 60
    assert str(Vote("10.0.0.1:6379", GRANTED)) == "10.0.0.1:6379 granted"
