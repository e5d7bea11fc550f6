"""The arithmetic of votes, against a second implementation that is too simple to be wrong: it tries all completions."""

from functools import cache
from itertools import permutations, product

import pytest
from hypothesis import given
from hypothesis import strategies as st

from redsync._core.quorum import Choice, Tally, Verdict, Vote, quorum_of, verdict_of
from redsync._core.session import Session
from tests.support.ours import of_ours

GRANTED, REFUSED, FAILED = Choice.GRANTED, Choice.REFUSED, Choice.FAILED
PENDING, WON, LOST = Verdict.PENDING, Verdict.WON, Verdict.LOST
SIZES = range(1, 7)


def new_tally(n, decide=None, parse=lambda reply: reply == "yes", **options):
    return Tally([f"node{i}" for i in range(n)], parse, decide, **options)


def cast(tally, node, choice):
    if choice is FAILED:
        return tally.fail(node, "down")
    return tally.record(node, "yes" if choice is GRANTED else "no")


@cache
def dumb_verdict(n, granted, voted):
    """Try all votes of the nodes that have not voted."""
    if granted >= n // 2 + 1:
        return WON
    for rest in product([True, False], repeat=n - voted):
        if granted + sum(rest) >= n // 2 + 1:
            return PENDING
    return LOST


def check_round(n, votes):
    """Cast the votes, (node, choice) in order of arrival, and compare with the simple verdict after each of them."""
    tally = new_tally(n)
    assert (tally.verdict, tally.won, tally.without_quorum) == (PENDING, False, False)
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


@pytest.mark.parametrize("n", [0, -1])
def test_quorum_of_no_nodes_is_refused(n):
    with pytest.raises(ValueError, match="at least one node"):
        quorum_of(n)


# The verdict.


@pytest.mark.parametrize("n", range(1, 5))
def test_verdict_is_right_in_each_order_of_arrival(n):
    for choices in product(Choice, repeat=n):
        for order in permutations(range(n)):
            check_round(n, [(node, choices[node]) for node in order])


@st.composite
def arrivals(draw):
    """A number of nodes, and votes in order of arrival, (node, choice): some nodes vote twice, some never."""
    n = draw(st.integers(1, 9))
    return n, draw(st.lists(st.tuples(st.integers(0, n - 1), st.sampled_from(Choice)), max_size=2 * n))


@given(arrivals(), st.booleans(), st.booleans())
def test_verdict_comes_as_soon_as_it_is_certain_and_is_that_of_all_votes(arrived, late, closes):
    """Redlock: a majority of all nodes, whatever the order of votes, failures, duplicates and late votes."""
    n, votes = arrived
    majority = n // 2 + 1
    tally = new_tally(n, late=late)
    first: dict[int, Choice] = {}
    for node, choice in votes:
        before = tally.verdict
        ended = cast(tally, node, choice)
        first.setdefault(node, choice)
        granted = sum(each is GRANTED for each in first.values())
        # With the best and the worst of luck among the nodes that have not voted.
        most, least = granted + n - len(first), granted
        certain = WON if least >= majority else LOST if most < majority else PENDING
        assert tally.verdict is certain, "neither too early nor too late, and once given it stands"
        assert ended is (before is PENDING and certain is not PENDING)
    if closes:
        tally.close("no answer in time")
        assert tally.verdict is (WON if sum(each is GRANTED for each in first.values()) >= majority else LOST)
    # An answer is never an outage: REFUSED and FAILED are counted apart, each node once.
    for node, choice in enumerate(tally.choices):
        assert choice in (first.get(node), None) or (closes and choice is FAILED and node not in first)
    assert [tally.granted, tally.refused, tally.failed] == [tally.choices.count(choice) for choice in Choice]
    assert tally.without_quorum is (tally.choices.count(FAILED) > n - majority)
    if late and tally.won:
        heard = {node: choice for node, choice in first.items() if choice is not FAILED}
        assert heard.items() <= dict(enumerate(tally.all_votes.choices)).items()


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
def test_close_fails_nodes_that_have_not_voted(n):
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
                # After the verdict no node counts any more, whether it voted or not.
                assert tally.choices[node] in (FAILED, None)
                assert tally.replies[node] in ("no answer within 0.25 s", None)
        assert open_before <= ("no answer within 0.25 s" in tally.replies)


@pytest.mark.parametrize("n", SIZES)
def test_round_lost_by_refusals_is_busy_and_by_failures_without_quorum(n):
    for choices in product(Choice, repeat=n):
        tally = check_round(n, list(enumerate(choices)))
        if tally.won:
            assert not tally.without_quorum
        # Without quorum: even if all other nodes had granted, they would not have been enough.
        assert tally.without_quorum is (n - tally.failed < n // 2 + 1), choices
        if FAILED not in choices:
            assert not tally.without_quorum
        if set(choices) == {FAILED}:
            assert tally.without_quorum


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
def test_thorough_round_distinguishes_busy_from_outage_in_any_order_of_answers(n):
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


# Unexpected replies.


@pytest.mark.parametrize("error", [TypeError, ValueError, IndexError, KeyError, AttributeError, UnicodeError])
def test_reply_unknown_to_the_parser_fails_with_a_reason(error):
    def parse(reply):
        raise error("what is this?")

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
    assert not seen, "one of three grants decides nothing"
    tally.fail(0, "down")
    tally.record(2, "no")
    assert seen == [
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


# Late votes: they decide nothing, but show which nodes keep a claim.


@pytest.mark.parametrize("n", SIZES)
def test_late_votes_decide_nothing_and_count_among_the_backers(n):
    for votes in product([GRANTED, REFUSED, FAILED], repeat=n):
        plain, tally = new_tally(n), new_tally(n, late=True)
        for node, choice in enumerate(votes):
            assert cast(tally, node, choice) is cast(plain, node, choice), "no late vote decides anything"
        assert (tally.verdict, tally.granted, tally.refused, tally.failed) == (
            *(plain.verdict, plain.granted, plain.refused, plain.failed),
        ), votes
        if tally.won:
            assert tally.all_votes.backers == sum(
                1 << node for node, choice in enumerate(votes) if choice is GRANTED
            ), votes


def test_backers_of_a_plain_tally_are_the_nodes_that_decided_it():
    tally = new_tally(5)
    assert tally.backers == 0
    for node in (4, 0, 2, 1):
        cast(tally, node, GRANTED)
    assert tally.backers == 0b10101


def test_late_votes_are_recorded_with_their_replies():
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
def test_late_reply_unknown_to_the_parser_is_a_failed_vote(error):
    def parse(reply):
        if reply == "odd":
            raise error("odd")
        return True

    tally = new_tally(5, parse=of_ours(parse), late=True)
    for node in range(3):
        tally.record(node, "yes")
    assert tally.record(3, "odd") is None
    assert tally.all_votes.choices[3] is FAILED
    assert tally.all_votes.votes[3].detail == "unexpected reply 'odd'"
    assert tally.all_votes.backers == 0b00111


def test_late_failure_is_not_recorded():
    """A node that the round does not wait for and that then fails is like a silent one: it may keep a claim or not."""
    tally = new_tally(5, late=True)
    for node in range(3):
        cast(tally, node, GRANTED)
    assert tally.fail(3, "closed the connection") is False
    assert tally.all_votes.choices[3] is None


def test_votes_after_a_lost_round_are_not_recorded():
    """Any claims are rolled back on all nodes anyway."""
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


# Lingering: the round wants all votes, but does not wait forever.


@pytest.mark.parametrize("n", SIZES)
def test_lingering_tally_is_open_until_all_nodes_have_voted_or_it_is_lost(n):
    for votes in product([GRANTED, REFUSED, FAILED], repeat=n):
        plain, tally = new_tally(n), new_tally(n, lingers=True)
        for node, choice in enumerate(votes):
            before = tally.verdict
            ended = cast(tally, node, choice)
            cast(plain, node, choice)
            assert tally.open is (tally.verdict is PENDING or (tally.won and node < n - 1))
            assert ended is (tally.verdict is not before or (tally.won and node == n - 1)), votes
        assert tally.verdict is plain.verdict, votes
        assert not tally.won or tuple(tally.choices) == votes


def test_lingering_tally_records_why_nodes_failed():
    tally = new_tally(5, lingers=True)
    for node in range(3):
        cast(tally, node, GRANTED)
    assert not tally.fail(3, "refused")
    assert not tally.fail(3, "closed the connection")
    assert tally.fail(4, "closed the connection")
    assert [vote.detail for vote in tally.votes[3:]] == ["refused", "closed the connection"]


def test_frozen_tally_records_nothing_more():
    tally = new_tally(5, lingers=True)
    for node in range(3):
        cast(tally, node, GRANTED)
    tally.freeze()
    assert not tally.open
    assert not cast(tally, 3, GRANTED)
    assert not cast(tally, 4, FAILED)
    assert tally.choices[3:] == [None, None]
    assert tally.votes[3] == Vote("node3", FAILED, "not waited for")
