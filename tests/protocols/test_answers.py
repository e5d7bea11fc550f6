"""Replies that no script gives, for each protocol, and what lost rounds mean; acquires read all known shapes."""

from functools import partial
from itertools import product

import pytest

from redsync._core.quorum import Choice
from redsync._core.scripts import Command, Script
from redsync._protocols.answers import (
    WRONG_TYPE,
    Refusal,
    gives_up,
    no_quorum,
    type_error,
)
from redsync._protocols.fenced_lock import FENCED_LOCK, Fence, FencedClaim
from redsync._protocols.holding import release
from redsync._protocols.latch import Latch, count_left
from redsync._protocols.lock import LOCK
from redsync._protocols.renewal import extend
from redsync._protocols.semaphore import available
from redsync._protocols.shrinking import MOST_BYTES
from redsync._protocols.surveys import force_release, is_held
from redsync.exceptions import KeyTypeError, QuorumError
from tests.protocols.conftest import GARBAGE
from tests.support.latch_clients import KEYS
from tests.support.rounds import tally_of
from tests.support.slots import ToySemaphore

COMMAND = Command(Script.load("name_inspect"), (), ())

PROTOCOLS = {
    "acquire": lambda toy: toy.acquiring(timeout=0.0),
    "release": lambda toy: release(toy.session, toy.take(), toy.now),
    "extension": lambda toy: extend(toy.session, toy.take(), None, toy.now),
    "fenced lock": lambda toy: toy.acquiring(claims=partial(FencedClaim, fence=Fence()), kind=FENCED_LOCK),
    "semaphore": lambda toy: ToySemaphore(toy).steps(),
    "look at a semaphore": lambda toy: available(toy.session, ToySemaphore(toy).pool, toy.owner),
    "look": lambda toy: is_held(toy.session, LOCK, "x", toy.keys, toy.owner),
    "forced release": lambda toy: force_release(toy.session, LOCK, "x", toy.keys, toy.owner),
    "latch": lambda toy: count_left(toy.session, Latch("x", KEYS, 60.0), toy.owner, toy.now),
}
FURTHER = {
    "acquire": (3, [20], [20, b"a"], [20, "a", 7], [20, b"a", b"7"], [20, b"a", 7, 3, 1]),
    "extension": ([7], [2.0], [2, 2]),
    "fenced lock": (1, 2, -1, -2, [1, 7], [2, 7], 7.0),
    "semaphore": (
        *(1, 2, b"3,0", [b"1,2", b""], [b"1"], [b"3,0"], [b"3,0", b"\xf0"], [b"3", bytes(MOST_BYTES + 1)]),
        *([20, b"full", 7, 3], [20, b"full", 7, 3, b"", 8], [20, b"full", 7, 3, 7]),
        *([-1, b"limit", 0, 0, told] for told in (b"x", b"", 7, b"1 10001")),
    ),
    "latch": (1,),
}
"""Replies that other protocols take for answers."""
GENUINE = {"latch": ([5, 7], [1, 2, 3])}
"""Generation, size, and since when the node remembers."""


@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_garbage_is_a_failed_vote(make_toy, protocol):
    """A reply that no script of ours gives says nothing: neither that we hold a claim nor that we don't."""
    for reply in (*GARBAGE, *FURTHER.get(protocol, ())):
        if reply not in GENUINE.get(protocol, ()):
            toy = make_toy()
            tally = toy.perform(toy.start(PROTOCOLS[protocol](toy)), toy.all_say(reply))
            assert tally.without_quorum, reply


# The meaning of rounds.


HELD, GRANTED = Refusal(20_000, b"client-a:1"), 1


@pytest.mark.parametrize("n", [1, 2, 3, 4, 5])
def test_type_error_needs_foreign_values_alone_or_on_too_many_nodes(n):
    for replies in product([GRANTED, HELD, WRONG_TYPE, "down"], repeat=n):
        tally = tally_of(*replies)
        heard = [reply for reply, choice in zip(replies, tally.choices, strict=True) if choice is Choice.REFUSED]
        foreign = heard.count(WRONG_TYPE)
        alone, on_too_many = foreign > 0 and HELD not in heard, foreign > n - (n // 2 + 1)
        error = type_error("x", tally)
        assert (error is not None) == (alone or on_too_many), replies
        assert error is None or isinstance(error, KeyTypeError)


def test_errors_name_the_lock_and_list_all_votes():
    tally = tally_of(WRONG_TYPE, "down", "too late")
    for error in (type_error(b"\xff", tally), no_quorum(b"\xff", tally)):
        assert error.name == b"\xff"
        assert error.votes == tally.votes
        assert "b'\\xff'" in str(error)
    assert isinstance(no_quorum("x", tally), QuorumError)


CERTIFICATE = "[SSL: CERTIFICATE_VERIFY_FAILED] certificate verify failed: {}. (_ssl.c:1006)".format
SENTINELS = "0 of 2 Sentinels name the master, 2 must: s1:26379: {}; s2:26379: {}".format
LASTING = [
    *("NOAUTH Authentication required.", "ERR unknown command 'HELLO'", "DB index is out of range"),
    *("answers HELLO with b'OK': it does not speak RESP3", "it is not Redis or Valkey ('')"),
    *('Protocol error, got "H" as reply type byte', CERTIFICATE("self-signed certificate")),
    SENTINELS("ERR unknown command 'SENTINEL'", "NOAUTH Authentication required."),
    SENTINELS("ERR No such master with that name", "ERR This instance has cluster support disabled"),
]
PASSING = [
    *("Connection refused", "timed out", "LOADING Redis is loading the dataset in memory"),
    *(CERTIFICATE("certificate has expired"), CERTIFICATE("certificate is not yet valid")),
    SENTINELS("ERR unknown command 'SENTINEL'", "Connection refused"),
]


@pytest.mark.parametrize("reason", LASTING + PASSING)
def test_wait_for_nodes_ends_at_once_only_if_a_majority_fails_for_a_reason_that_lasts(toy, reason):
    for lasting in (1, 2):
        tally = tally_of(*[reason] * lasting, *["Connection refused"] * (3 - lasting))
        tally.at = toy.now
        assert gives_up(toy.session, tally, toy.now) == (lasting == 2 and reason in LASTING)
    toy.session.answered = True
    assert not gives_up(toy.session, tally, toy.now)
