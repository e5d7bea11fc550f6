"""The meaning of a lost round: its refusals, and the error to raise."""

from itertools import product

import pytest

from redsync._core.quorum import Choice, Tally
from redsync._protocols.answers import FOREIGN, Refusal
from redsync._protocols.rounds import no_quorum, told, type_error
from redsync.exceptions import KeyTypeError, QuorumError

HELD, GRANTED = Refusal(20_000, b"client-a:1"), 1


def tally_of(*replies):
    """Count replies; a text means FAILED."""
    tally = Tally([f"node{i}" for i in range(len(replies))], lambda answer: answer)
    for node, reply in enumerate(replies):
        if isinstance(reply, str):
            tally.fail(node, reply)
        else:
            tally.record(node, reply)
    return tally


def test_node_with_a_value_of_another_type_reports_nothing_else():
    assert told(tally_of(GRANTED, HELD, "down", FOREIGN, GRANTED)) == [HELD]
    assert told(tally_of(GRANTED, "down", "down")) == []


@pytest.mark.parametrize("n", [1, 2, 3, 4, 5])
def test_type_error_needs_foreign_values_alone_or_on_too_many_nodes(n):
    for replies in product([GRANTED, HELD, FOREIGN, "down"], repeat=n):
        tally = tally_of(*replies)
        heard = [reply for reply, choice in zip(replies, tally.choices, strict=True) if choice is Choice.REFUSED]
        foreign = heard.count(FOREIGN)
        alone, on_too_many = foreign > 0 and HELD not in heard, foreign > n - (n // 2 + 1)
        error = type_error("x", tally)
        assert (error is not None) == (alone or on_too_many), replies
        assert error is None or isinstance(error, KeyTypeError)


def test_errors_name_the_lock_and_list_all_votes():
    tally = tally_of(FOREIGN, "down", "too late")
    for error in (type_error(b"\xff", tally), no_quorum(b"\xff", tally)):
        assert error.name == b"\xff"
        assert error.votes == tally.votes
        assert "b'\\xff'" in str(error)
    assert isinstance(no_quorum("x", tally), QuorumError)


def test_error_for_an_outage_counts_the_nodes():
    sentence = no_quorum("x", tally_of("down", "down", "down", HELD, HELD)).sentence
    assert "3 of 5 nodes" in sentence
