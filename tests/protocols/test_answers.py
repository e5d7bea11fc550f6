"""Replies to an acquire: each known shape is read, and everything else is refused."""

import pytest

from redsync._protocols.answers import (
    EXISTING,
    FOREIGN,
    NEW,
    Forced,
    Refusal,
    read_by_arrival,
    read_by_ticket,
    read_forced,
)
from tests.protocols.conftest import GARBAGE

READERS = [read_by_arrival, read_by_ticket]


@pytest.mark.parametrize("read", READERS)
def test_grants_are_true_and_a_foreign_value_refuses(read):
    assert (read(1), read(2)) == (NEW, EXISTING)
    assert read(0) is FOREIGN
    assert not FOREIGN


def test_refusal_names_the_holder_and_the_number_of_waiters():
    assert read_by_arrival([20, b"a"]) == Refusal(20, b"a")
    assert read_by_arrival([20, b"a", 3]) == Refusal(20, b"a", ahead=3)
    assert read_by_ticket([-1, b"a", 7]) == Refusal(-1, b"a", 7)
    assert read_by_ticket([20, b"a", 7, 3]) == Refusal(20, b"a", 7, 3)
    assert not Refusal(20, b"a")


@pytest.mark.parametrize("read", READERS)
@pytest.mark.parametrize("reply", [*GARBAGE, 3, True, [20], [20, "a"], [20, b"a", 7, 3, 1], [20, b"a", b"7"]])
def test_garbage_is_not_an_answer(read, reply):
    with pytest.raises(ValueError, match="the reply to an acquire"):
        read(reply)


def test_queue_without_tickets_reports_none():
    with pytest.raises(ValueError, match="the reply to an acquire"):
        read_by_arrival([20, b"a", 7, 3])
    with pytest.raises(ValueError, match="the reply to an acquire"):
        read_by_ticket([20, b"a"])


def test_forced_release_reports_whether_there_was_a_holder():
    assert (read_forced(1), read_forced(0)) == (Forced(True), Forced(False))
    assert read_forced(0), "the node has done it"
    assert read_forced(-1) is FOREIGN
    for reply in (*GARBAGE, 2, True):
        with pytest.raises(ValueError, match="a forced release"):
            read_forced(reply)
