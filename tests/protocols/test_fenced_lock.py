"""Acquires whose grants carry tokens, step by step; `test_fenced_lock_on_nodes` has the schedules."""

from functools import partial

import pytest

from redsync._protocols.fenced_lock import FENCED_LOCK, Fence, FencedClaim
from redsync.exceptions import QuorumError
from tests.protocols.conftest import GARBAGE
from tests.support.toy_replies import busy

ASK, PLACE, WRITE = "ask fenced_lock_acquire", "ask fenced_lock_acquire for a place", "ask fenced_lock_write_back"


def fencing(toy, fence=None, **fields):
    """Return the steps of a new acquire of a fenced lock."""
    return toy.acquiring(kind=FENCED_LOCK, claims=partial(FencedClaim, fence=fence or Fence()), **fields)


@pytest.fixture
def fenced(toy):
    """Return a function that acquires a fenced lock as a script says."""
    fence = Fence()
    return lambda *script, **fields: toy.play(fencing(toy, fence, **fields), *script)


def test_quorum_that_agrees_needs_one_round(toy, fenced):
    state = fenced((ASK, toy.answers(7, 7, 7, 7, 7)))
    assert (state.fencing_token, state.count) == (7, 1)
    assert toy.commands[0].keys == (toy.keys.lock, toy.keys.foreign_token, toy.keys.token)
    assert toy.commands[0].words == (toy.owner.claim(1), 1, 30_000, b"0,-,", 0), (
        "processes are named even without a guard"
    )


def test_quorum_that_differs_is_raised_to_its_highest_token(toy, fenced):
    state = fenced((ASK, toy.answers(7, 9, 8, "down", "down")), (WRITE, toy.answers(9, 9, 9, "down", "down")))
    assert state.fencing_token == 9
    assert toy.commands[1].keys == (toy.keys.lock, toy.keys.token)
    assert toy.commands[1].args == (toy.owner.claim(1), 9)
    assert state.valid_until == pytest.approx(toy.session.timing.valid_until(toy.tallies[0].sent_at, 30.0))


def test_write_back_that_comes_too_late_is_rolled_back(toy, fenced):
    with pytest.raises(QuorumError, match="too late, after 31 s"):
        fenced(
            (ASK, toy.answers(7, 9, 8, 7, 7)),
            (WRITE, toy.all_say(9, takes=31.0)),
            "tell lock_release",
            timeout=0.0,
        )


def test_node_that_connects_before_the_write_back_must_get_the_release(toy, fenced):
    state = fenced((ASK, toy.answers(7, 9, 8, "down", "down", sent=0b00111)), (WRITE, toy.all_say(9)))
    assert state.may_keep == 0b11111


def test_acquire_that_waits_tries_again_after_a_failed_write_back(toy, fenced):
    state = fenced(
        (ASK, toy.answers(7, 9, 8, 7, 7)),
        (WRITE, toy.all_say("down")),
        "tell lock_release",
        ("wait", toy.slept()),
        (ASK, toy.all_say(10)),
        timeout=5.0,
    )
    assert state.fencing_token == 10
    assert toy.commands[-1].args[-1] == 0, "no owner got the 9"
    assert toy.asked[1].timeout <= 5.0


@pytest.mark.parametrize("at", [0, 1])
def test_interrupted_acquire_is_rolled_back_everywhere(toy, at):
    steps = fencing(toy)
    script = [(ASK, toy.answers(7, 9, 8, 7, 7)), (WRITE, toy.all_say(9))]
    assert toy.interrupt(steps, script, at) == ["tell lock_release"]
    assert toy.told[0].deliver_to == 0b11111


def test_waiter_that_gets_the_lock_by_hand_over_asks_for_a_token_with_its_claim(toy, fenced):
    """A node that hands over does not know the token of a quorum."""
    state = fenced(
        (ASK, busy(toy)),
        (PLACE, busy(toy)),
        ("wait for wake-up", toy.slept(0.05, handed=0b11111)),
        (PLACE, toy.all_say(-7)),
    )
    assert state.fencing_token == 7
    assert state.valid_until == pytest.approx(toy.tallies[-1].sent_at + 30.0 - 0.302)
    queued = toy.commands[1]
    assert queued.keys == (*toy.keys.all, toy.keys.foreign_token, toy.keys.token)
    assert queued.args[4:] == (3_000, 1, toy.owner.channel, b"1", 0)
    assert toy.waits[0].ask_id == b"1"


def test_write_back_with_a_nonsense_reply_does_not_count(make_toy):
    for reply in (0, -1, *GARBAGE):
        toy = make_toy()
        steps = fencing(toy, timeout=0.0)
        asked = toy.perform(toy.start(steps), toy.answers(7, 9, 8, 7, 7))
        effect = steps.send(asked)
        assert toy.begin(effect) == WRITE
        assert toy.perform(effect, toy.all_say(reply)).without_quorum, reply


@pytest.mark.parametrize("absurd", [1 << 60, (1 << 52) + 1, -(1 << 52) - 1])
def test_token_of_absurd_size_is_a_failed_vote_and_does_not_spread(toy, fenced, absurd):
    state = fenced((ASK, toy.answers(absurd, 7, 7, 7, 7)))
    assert state.fencing_token == 7
    toy.session.holds.remove(state)
    fenced((ASK, toy.all_say(8)))
    assert toy.commands[-1].words[-1] == 7, "the next one asks for more than this"
