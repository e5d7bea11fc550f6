"""A new claim that others hold or contend for, or about which too few nodes answer: when the next try comes."""

import pytest

from redsync._protocols.lock import FAIR_LOCK, LOCK
from redsync.exceptions import QuorumError
from tests.support.toy_replies import NEW, held, waiting_script, without_quorum, won

# Waiting.


def test_waiter_for_a_held_lock_queues(toy):
    state = toy.acquire(*waiting_script(toy))
    assert state.valid(toy.now)
    queued = toy.asked[1]
    assert queued.command.keys == toy.keys.all
    assert queued.command.args == (toy.owner.claim(1), 1, 30_000, 0, 3_000, 1, toy.owner.channel, b"1")
    wake_key = toy.owner.wire + b" " + toy.keys.lock
    assert queued.subscribe == wake_key, "it listens before it queues, so that it misses no wake-up"
    (wait,) = toy.waits
    assert (wait.key, wait.enough, wait.ask_id) == (wake_key, 3, b"1")
    assert 0 < wait.grace < 0.05


@pytest.mark.parametrize(("timeout", "longest"), [(9.0, 0.25), (0.12, 0.12), (0.001, 0.03)])
def test_rounds_of_a_waiter_end_soon_after_its_deadline(toy, timeout, longest):
    silence = ("ask lock_acquire", toy.all_say(None))
    script = [silence, "tell lock_release"]
    if timeout == 9.0:
        script += [("wait", toy.slept()), ("ask lock_acquire", won(toy))]
        toy.acquire(*script, timeout=timeout)
    else:
        with pytest.raises(QuorumError):
            toy.acquire(*script, timeout=timeout)
    assert toy.asked[0].timeout == pytest.approx(longest)


# Sleeping.


def pause_after(toy, *replies, **fields):
    """Return how long a waiter sleeps after these replies."""
    rolled_back = [] if all(isinstance(reply, list) for reply in replies) else ["tell lock_release, stay"]
    toy.acquire(
        ("ask lock_acquire for a place", toy.answers(*replies)),
        *rolled_back,
        ("wait for wake-up", toy.slept()),
        ("ask lock_acquire for a place", won(toy)),
        crowded=True,
        **fields,
    )
    return toy.waits[0].until - toy.tallies[0].at


@pytest.mark.parametrize(
    ("remaining", "shortest", "longest"),
    [
        ([0.2, 0.2, 0.2, None, None], 0.2, 0.225),  # The holder's time is up:
        ([0.1, 0.2, 0.3, None, None], 0.3, 0.325),  # on a quorum, that is on the third to go.
        ([20.0, 20.0, 20.0, None, None], 0.5, 1.5),  # Polls once in a while, because wake-ups may get lost.
        ([0.0, 0.0, 0.0, None, None], 0.0, 0.025),
    ],
)
@pytest.mark.parametrize("random", [0.0, 0.5, 0.999])
def test_waiter_sleeps_until_the_holders_time_is_up_on_a_quorum(make_toy, remaining, shortest, longest, random):
    toy = make_toy(random=random)
    replies = [None if left is None else held(left) for left in remaining]
    assert shortest <= pause_after(toy, *replies) + 1e-9 <= longest + 2e-9


@pytest.mark.parametrize(
    ("replies", "shortest", "longest"),
    [
        # Two nodes are free already. When one of the others expires, there is a quorum.
        ([NEW, NEW, held(20.0), held(0.2), held(10.0)], 0.2, 0.23),
        # Of three refusing nodes three must become free, and one of them never does by itself.
        ([held(None), held(0.1), held(0.1), None, None], 0.5, 1.5),
    ],
)
def test_waiter_expects_a_quorum_of_nodes_that_granted_and_claims_that_expire(make_toy, replies, shortest, longest):
    pauses = {pause_after(make_toy(random=random), *replies) for random in (0.1, 0.5, 0.9)}
    assert shortest < min(pauses) < max(pauses) < longest
    assert len(pauses) == 3, "waiters sleep apart"


@pytest.mark.parametrize("failures", [0, 12])
@pytest.mark.parametrize(("kind", "longest"), [(LOCK, 0.25), (FAIR_LOCK, 0.05)])
def test_split_votes_spread_contenders_further_apart_each_time(toy, kind, longest, failures):
    """A holder with a node that failed looks alike. No wake-up ends the sleep of a waiter that can't draw a ticket."""
    split, undo = toy.answers(NEW, NEW, held(), held(), "down", takes=0.0), "tell lock_release, stay"
    first, ask, wake = "ask lock_acquire", "ask lock_acquire for a place", "wait for wake-up"
    if kind is FAIR_LOCK:
        first, ask, wake = *["ask fair_lock_acquire for a place"] * 2, "wait"
    toy.acquire(
        *[(first, without_quorum(toy)), ("wait", toy.slept())] * failures,
        *[(first, split), undo, ("wait", toy.slept())],
        *[(ask, split), undo, (wake, toy.slept())] * 14,
        (ask, won(toy)),
        kind=kind,
    )
    began = [tally.at for tally in toy.tallies[failures:]]
    pauses = [wait.until - start for wait, start in zip(toy.waits[failures:], began, strict=False)]
    assert pauses[:4] == sorted(pauses[:4])
    assert pauses[3] > 2 * pauses[0]
    assert longest / 4 <= min(pauses[-3:]) <= max(pauses) <= longest + 1e-9


# Outages.


def test_waiter_sleeps_through_an_outage_until_the_deadline(toy):
    replies = {"ask lock_acquire": without_quorum(toy), "tell lock_release, stay": None, "wait": toy.slept()}
    with pytest.raises(QuorumError) as caught:
        toy.drive(toy.acquiring(timeout=2.0), lambda described, effect: replies[described])
    assert 1002.0 <= toy.now < 1002.05
    assert len(caught.value.votes) == 5
    assert all(wait.until <= 1002.0 for wait in toy.waits)
    assert 8 <= len(toy.asked) <= 40


def test_last_round_decides_between_busy_and_outage(toy):
    result = toy.acquire(
        ("ask lock_acquire", without_quorum(toy)),
        ("wait", toy.slept()),
        ("ask lock_acquire", toy.all_say(held(), takes=0.02)),
        "tell lock_release",
        timeout=0.02,
    )
    assert result is None


def test_last_try_without_time_for_answers_repeats_the_outcome_of_the_round_before(toy):
    """Slow nodes are not an outage; in an outage, the rounds before have shown it."""
    refused = ("ask lock_acquire for a place", toy.all_say(held()))
    silent = ("ask lock_acquire for a place", toy.all_say(None))
    slept = ("wait for wake-up", toy.slept())
    leave = "tell lock_release"
    assert toy.acquire(refused, slept, silent, leave, timeout=0.1, crowded=True) is None
    assert toy.requested.holder is not None, "that round told it"
    silent_again, rollback = ("ask lock_acquire", toy.all_say(None)), "tell lock_release"
    paused = ("wait", toy.slept())
    with pytest.raises(QuorumError):
        toy.acquire(paused, silent, leave, paused, silent_again, rollback, timeout=0.3, crowded=True)


def test_waiter_that_a_quorum_has_answered_outlives_a_password_that_nodes_refuse_for_a_while(toy):
    """Only a client that no quorum has ever answered most likely has the wrong one."""
    passing = ("ask lock_acquire for a place", toy.all_say("WRONGPASS invalid username-password pair"))
    toy.acquire(("ask lock_acquire", toy.all_say(held())), "tell lock_release", timeout=0.0)
    paused, undo = ("wait", toy.slept()), "tell lock_release"
    toy.acquire(paused, passing, undo, paused, ("ask lock_acquire", won(toy)), timeout=9.0)
