"""The arithmetic of votes, against a second implementation that is too dumb to be wrong: it tries all completions."""

import random
from functools import cache
from itertools import combinations, permutations, product

import pytest

from redsync._core.quorum import Choice, Tally, Verdict, Vote, quorum_of
from redsync._core.runner import Session
from tests.support.ours import of_ours

GRANTED, REFUSED, FAILED = Choice.GRANTED, Choice.REFUSED, Choice.FAILED
PENDING, WON, LOST = Verdict.PENDING, Verdict.WON, Verdict.LOST
SIZES = range(1, 7)


def new_tally(n, decide=None, judge=lambda reply: reply == "yes", **options):
    return Tally([f"node{i}" for i in range(n)], judge, decide, **options)


def cast(tally, node, choice):
    if choice is FAILED:
        return tally.fail(node, "down")
    return tally.record(node, "yes" if choice is GRANTED else "no")


@cache
def dumb_verdict(n, granted, voted):
    """Try every way in which the nodes that have not voted could vote."""
    if granted >= n // 2 + 1:
        return WON
    for rest in product([True, False], repeat=n - voted):
        if granted + sum(rest) >= n // 2 + 1:
            return PENDING
    return LOST


def check_round(n, votes):
    """Cast the votes, (node, choice) in the order of arrival, and compare with the dumb verdict after each of them."""
    tally = new_tally(n)
    counted, decided = {}, PENDING
    for node, choice in votes:
        deciding = cast(tally, node, choice)
        if decided is PENDING:
            counted[node] = choice
        granted = sum(c is GRANTED for c in counted.values())
        expected = dumb_verdict(n, granted, len(counted))
        assert tally.verdict is expected, votes
        assert decided in (PENDING, expected), votes
        assert deciding is (decided is PENDING and expected is not PENDING), votes
        decided = expected
        assert tally.choices == [counted.get(i) for i in range(n)], votes
    assert decided is not PENDING, votes
    counts = [sum(c is choice for c in counted.values()) for choice in (GRANTED, REFUSED, FAILED)]
    assert [tally.granted, tally.refused, tally.failed] == counts, votes
    assert tally.won is (decided is WON), votes
    return tally


# The quorum.


@pytest.mark.parametrize(("n", "quorum"), [(1, 1), (2, 2), (3, 2), (4, 3), (5, 3), (6, 4), (7, 4)])
def test_quorum_is_more_than_half_of_the_configured_nodes(n, quorum):
    assert quorum_of(n) == quorum
    assert new_tally(n).quorum == quorum
    assert Session(n, None, None, None).quorum == quorum


@pytest.mark.parametrize("n", SIZES)
def test_two_quorums_share_a_node(n):
    quorums = list(combinations(range(n), quorum_of(n)))
    assert all(set(one) & set(other) for one in quorums for other in quorums)


@pytest.mark.parametrize("n", [0, -1])
def test_quorum_of_no_nodes_is_refused(n):
    with pytest.raises(ValueError, match="at least one node"):
        quorum_of(n)


# The verdict.


@pytest.mark.parametrize("n", SIZES)
def test_verdict_is_right_for_each_vector_of_votes(n):
    for choices in product(Choice, repeat=n):
        check_round(n, list(enumerate(choices)))


@pytest.mark.parametrize("n", range(1, 5))
def test_verdict_is_right_in_each_order_of_arrival(n):
    for choices in product(Choice, repeat=n):
        for order in permutations(range(n)):
            check_round(n, [(node, choices[node]) for node in order])


@pytest.mark.parametrize("n", [5, 7])
def test_verdict_is_right_in_sampled_orders_of_arrival(n):
    seed = random.randrange(2**32)
    print("seed", seed)
    rng = random.Random(seed)
    for choices in product(Choice, repeat=n):
        for _ in range(2):
            order = rng.sample(range(n), n)
            check_round(n, [(node, choices[node]) for node in order])


@pytest.mark.parametrize("n", SIZES)
def test_verdict_without_votes_is_pending(n):
    tally = new_tally(n)
    assert tally.verdict is PENDING
    assert not tally.won
    assert not tally.without_quorum


# Late and duplicate replies.


@pytest.mark.parametrize("n", range(1, 6))
def test_votes_after_the_verdict_change_nothing(n):
    for choices in product(Choice, repeat=n):
        tally = new_tally(n)
        for node, choice in enumerate(choices):
            if cast(tally, node, choice):
                break
        before = (tally.verdict, tally.granted, tally.refused, tally.failed, list(tally.choices), list(tally.replies))
        votes = tally.votes
        for late in range(n):
            for choice in Choice:
                assert cast(tally, late, choice) is False
        tally.close("closed")
        after = (tally.verdict, tally.granted, tally.refused, tally.failed, list(tally.choices), list(tally.replies))
        assert after == before, choices
        assert tally.votes == votes


@pytest.mark.parametrize("first", Choice)
@pytest.mark.parametrize("second", Choice)
def test_second_vote_of_a_node_does_not_count(first, second):
    tally = new_tally(7)
    cast(tally, 3, first)
    replies = list(tally.replies)
    for _ in range(7):
        assert cast(tally, 3, second) is False
    assert tally.verdict is PENDING
    assert tally.granted + tally.refused + tally.failed == 1
    assert tally.choices[3] is first
    assert tally.replies == replies


# The end of a round.


@pytest.mark.parametrize("n", SIZES)
def test_close_fails_who_has_not_voted(n):
    for choices in product([GRANTED, REFUSED, FAILED, None], repeat=n):
        tally = new_tally(n)
        for node, choice in enumerate(choices):
            if choice is not None:
                cast(tally, node, choice)
        before, open_before = list(tally.choices), tally.verdict is PENDING
        tally.close("no answer within 0.25 s")
        assert tally.verdict is (WON if choices.count(GRANTED) >= n // 2 + 1 else LOST), choices
        for node, choice in enumerate(before):
            if choice is not None or not open_before:
                assert tally.choices[node] is choice
            else:
                # From the verdict on nobody is counted any more, whether it voted or not.
                assert tally.choices[node] in (FAILED, None)
                assert tally.replies[node] in ("no answer within 0.25 s", None)
        assert open_before <= ("no answer within 0.25 s" in tally.replies)


def test_close_of_a_silent_round_is_lost_without_quorum():
    tally = new_tally(5)
    tally.close("silence")
    assert (tally.verdict, tally.without_quorum) == (LOST, True)


@pytest.mark.parametrize("n", SIZES)
def test_round_lost_by_refusals_is_busy_and_by_failures_without_quorum(n):
    for choices in product(Choice, repeat=n):
        tally = check_round(n, list(enumerate(choices)))
        if tally.won:
            assert not tally.without_quorum
        # Without quorum: had all the other nodes granted, it would still not have been enough.
        assert tally.without_quorum is (n - tally.failed < n // 2 + 1), choices
        if FAILED not in choices:
            assert not tally.without_quorum
        if set(choices) == {FAILED}:
            assert tally.without_quorum


# Thorough rounds: silence is not taken for a refusal.


def dumb_thorough_verdict(n, choices):
    """Lost by refusals alone, or when there is nobody left to hear."""
    if choices.count(GRANTED) >= n // 2 + 1:
        return WON
    could_still_win = n - choices.count(REFUSED) >= n // 2 + 1
    return PENDING if could_still_win and len(choices) < n else LOST


@pytest.mark.parametrize("n", SIZES)
def test_thorough_verdict_is_right_for_each_vector_of_votes(n):
    for choices in product(Choice, repeat=n):
        tally = new_tally(n, thorough=True)
        decided = PENDING
        for node, choice in enumerate(choices):
            deciding = cast(tally, node, choice)
            if decided is PENDING:
                decided = dumb_thorough_verdict(n, choices[: node + 1])
                assert deciding is (decided is not PENDING), choices
            assert tally.verdict is decided, choices
        assert decided is not PENDING, choices


@pytest.mark.parametrize("n", range(1, 6))
def test_thorough_round_tells_busy_from_outage_in_whatever_order_nodes_answer(n):
    for choices in product(Choice, repeat=n):
        kinds = set()
        for order in permutations(range(n)):
            tally = new_tally(n, thorough=True)
            for node in order:
                cast(tally, node, choices[node])
            kinds.add((tally.verdict, tally.refused > n - tally.quorum))
        assert len(kinds) == 1, choices


@pytest.mark.parametrize("n", SIZES)
def test_thorough_round_is_lost_when_it_is_closed(n):
    for votes in range(n + 1):
        tally = new_tally(n, thorough=True)
        for node in range(votes):
            tally.fail(node, "down")
        tally.close("silence")
        assert tally.verdict is LOST
        assert tally.without_quorum


# Replies that nobody expected.


@pytest.mark.parametrize("error", [TypeError, ValueError, IndexError, KeyError, AttributeError, UnicodeError])
def test_reply_that_the_judge_does_not_know_fails_with_a_reason(error):
    def judge(reply):
        raise error("what is this?")

    tally = new_tally(3, judge=of_ours(judge))
    assert tally.record(0, [b"odd", 7]) is None
    assert (tally.granted, tally.refused, tally.failed) == (0, 0, 1)
    assert tally.choices[0] is FAILED
    assert tally.replies[0] == "unexpected reply [b'odd', 7]"
    assert tally.record(1, None) is None
    assert (tally.verdict, tally.without_quorum) == (LOST, True)


def test_reason_for_an_endless_garbage_reply_is_short():
    tally = new_tally(1, judge=of_ours(lambda reply: reply["absent"]))
    tally.record(0, b"x" * 100_000)
    assert tally.replies[0].startswith("unexpected reply b'xxx")
    assert len(tally.replies[0]) < 120


@pytest.mark.parametrize("interruption", [KeyboardInterrupt, MemoryError])
def test_judge_interrupted_leaves_the_vote_open(interruption):
    calls = []

    def judge(reply):
        calls.append(reply)
        if len(calls) == 1:
            raise interruption
        return True

    tally = new_tally(1, judge=judge)
    with pytest.raises(interruption):
        tally.record(0, "yes")
    assert tally.verdict is PENDING
    assert tally.record(0, "yes") is True


def test_interruption_in_an_answer_leaves_none_behind():
    """The node may fail then, and whoever reads the answers finds no other one of it."""

    class Interrupted:
        def __bool__(self):
            raise KeyboardInterrupt

    tally = new_tally(3, judge=lambda reply: Interrupted())
    with pytest.raises(KeyboardInterrupt):
        tally.record(0, "yes")
    tally.fail(0, "connection closed")
    assert (tally.choices[0], tally.answers[0]) == (FAILED, None)


# What people read.


def test_votes_tell_what_each_node_said():
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


# Decisions of one's own.


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
    tally.record(1, "yes")
    tally.fail(0, "down")
    tally.record(2, "no")
    assert seen == [
        (1, 0, 0, [None, GRANTED, None]),
        (1, 0, 1, [FAILED, GRANTED, None]),
        (1, 1, 1, [FAILED, GRANTED, REFUSED]),
    ]


def test_custom_decision_outlasts_a_quorum_of_granted():
    tally = new_tally(3, decide=lambda tally: PENDING if None in tally.choices else WON)
    assert [tally.record(i, "yes") for i in range(3)] == [False, False, True]


def test_close_loses_what_a_custom_decision_leaves_open():
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


# Late votes: they decide nothing, but tell who keeps a claim.


@pytest.mark.parametrize("n", SIZES)
def test_backers_are_all_who_granted_in_any_order_also_late(n):
    for votes in product([GRANTED, REFUSED, FAILED], repeat=n):
        tally = new_tally(n, late=True)
        won = False
        for node, choice in enumerate(votes):
            cast(tally, node, choice)
            won |= tally.won
        if won:
            assert tally.all_votes.backers == sum(
                1 << node for node, choice in enumerate(votes) if choice is GRANTED
            ), votes


@pytest.mark.parametrize("n", SIZES)
def test_late_votes_change_neither_verdict_nor_count(n):
    for votes in product([GRANTED, REFUSED, FAILED], repeat=n):
        plain, tally = new_tally(n), new_tally(n, late=True)
        for node, choice in enumerate(votes):
            assert cast(tally, node, choice) is cast(plain, node, choice), "no late vote decides anything"
        assert tally.verdict is plain.verdict, votes
        assert (tally.granted, tally.refused, tally.failed) == (plain.granted, plain.refused, plain.failed), votes


def test_backers_of_a_plain_tally_are_who_decided_it():
    tally = new_tally(5)
    assert tally.backers == 0
    for node in (4, 0, 2, 1):
        cast(tally, node, GRANTED)
    assert tally.backers == 0b10101


def test_late_votes_are_noted_with_what_was_said():
    tally = new_tally(5, late=True)
    for node in range(3):
        cast(tally, node, GRANTED)
    tally.record(3, "yes")
    tally.record(4, "no")
    assert tally.all_votes.choices == [GRANTED] * 4 + [REFUSED]
    assert tally.all_votes.replies[3:] == ["yes", "no"]
    assert tally.all_votes.votes[4] == Vote("node4", REFUSED, "'no'")


def test_late_votes_change_nothing_that_was_read_before():
    tally = new_tally(5, late=True)
    for node in range(3):
        cast(tally, node, GRANTED)
    decided = tally.choices, tally.answers, tally.replies
    seen = [list(each) for each in decided]
    tally.record(3, "yes")
    first = tally.all_votes
    tally.record(4, "no")
    assert [list(each) for each in decided] == seen
    assert first.choices[4] is None
    assert tally.backers == 0b00111


def test_late_vote_of_a_node_counts_once():
    tally = new_tally(5, late=True)
    for node in range(3):
        cast(tally, node, GRANTED)
    tally.record(3, "no")
    tally.record(3, "yes")
    tally.record(0, "no")
    assert tally.all_votes.backers == 0b00111


@pytest.mark.parametrize("error", [TypeError, ValueError, IndexError, KeyError, AttributeError])
def test_late_reply_that_the_judge_does_not_know_is_a_failed_vote(error):
    def judge(reply):
        if reply == "odd":
            raise error("odd")
        return True

    tally = new_tally(5, judge=of_ours(judge), late=True)
    for node in range(3):
        tally.record(node, "yes")
    assert tally.record(3, "odd") is None
    assert tally.all_votes.choices[3] is FAILED
    assert tally.all_votes.votes[3].detail == "unexpected reply 'odd'"
    assert tally.all_votes.backers == 0b00111


def test_late_failure_is_not_noted():
    """Who is not waited for any more and then fails is like who is silent: neither keeps a claim for sure."""
    tally = new_tally(5, late=True)
    for node in range(3):
        cast(tally, node, GRANTED)
    assert tally.fail(3, "closed the connection") is False
    assert tally.all_votes.choices[3] is None


def test_votes_after_a_lost_round_are_not_noted():
    """What it may have claimed is undone on all nodes anyway."""
    tally = new_tally(3, late=True)
    cast(tally, 0, REFUSED)
    cast(tally, 1, REFUSED)
    assert tally.verdict is LOST
    cast(tally, 2, GRANTED)
    assert tally.all_votes.choices[2] is None
    assert tally.all_votes.backers == 0


def test_closing_a_won_round_leaves_late_votes_to_come():
    tally = new_tally(5, late=True)
    for node in range(3):
        cast(tally, node, GRANTED)
    tally.close("no answer")
    tally.record(4, "yes")
    assert tally.all_votes.backers == 0b10111


# Lingering: everybody is wanted, but nobody is waited for at any cost.


@pytest.mark.parametrize("n", SIZES)
def test_lingering_tally_is_open_until_everybody_has_voted_or_it_is_lost(n):
    for votes in product([GRANTED, REFUSED, FAILED], repeat=n):
        plain, tally = new_tally(n), new_tally(n, lingers=True)
        for node, choice in enumerate(votes):
            before = tally.verdict
            ended = cast(tally, node, choice)
            cast(plain, node, choice)
            assert tally.open is (tally.verdict is PENDING or (tally.won and node < n - 1))
            assert ended is (tally.verdict is not before or (tally.won and node == n - 1)), votes
        assert tally.verdict is plain.verdict, votes
        assert (tally.granted, tally.refused, tally.failed) == (plain.granted, plain.refused, plain.failed), votes
        assert not tally.won or tuple(tally.choices) == votes


def test_lingering_tally_notes_why_nodes_failed():
    tally = new_tally(5, lingers=True)
    for node in range(3):
        cast(tally, node, GRANTED)
    assert not tally.fail(3, "refused")
    assert not tally.fail(3, "closed the connection")
    assert tally.fail(4, "closed the connection")
    assert [vote.detail for vote in tally.votes[3:]] == ["refused", "closed the connection"]


def test_frozen_tally_notes_nothing_more():
    tally = new_tally(5, lingers=True)
    for node in range(3):
        cast(tally, node, GRANTED)
    tally.freeze()
    assert not tally.open
    assert not cast(tally, 3, GRANTED)
    assert not cast(tally, 4, FAILED)
    assert tally.choices[3:] == [None, None]
    assert tally.votes[3] == Vote("node3", FAILED, "not waited for")
