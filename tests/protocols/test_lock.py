"""The reentrant lock's decisions, one by one, with a driver made of paper."""

import math
import random

import pytest

from redsync._core.effects import Broadcast, Tell, Wait
from redsync._core.quorum import Choice
from redsync._protocols.lease import wait_end
from redsync._protocols.lock import acquire, check, extend, farewell, release
from redsync.exceptions import KeyTypeError, LeaseLostError, NotOwnedError, QuorumError

NEW, OURS, FOREIGN = 1, 2, 0
HAD, HAD_NOT = 1, 0
A, B, C = b"client-a:1", b"client-b:1", b"client-c:1"
ALL = 0b11111
LEASE = 30.0
DRIFT = 0.302


def held(remaining=20.0, by=A):
    """A refusal: somebody holds it for that many seconds more; None: without an end."""
    return [-1 if remaining is None else round(remaining * 1000), by]


def won(toy):
    return toy.answers(*[NEW] * toy.n)


def busy(toy, remaining=20.0):
    return toy.answers(*[held(remaining)] * toy.n)


def mute(toy):
    return toy.answers(*["down"] * toy.n, sent=0)


def take(toy, **fields):
    """Acquire at once and return the hold."""
    steps = acquire(toy.session, toy.demand(**fields), toy.now)
    return toy.play(steps, ("ask lock_acquire", won(toy)))


def run_acquire(toy, *script, **fields):
    return toy.play(acquire(toy.session, toy.demand(**fields), toy.now), *script)


# Won.


def test_acquire_asks_for_a_new_claim(toy):
    take(toy)
    (effect,) = toy.effects
    assert effect.command.script.name == "lock_acquire"
    assert effect.command.keys == (toy.keys.lock,)
    assert effect.command.args == (toy.owner.wire, 1, 30_000)
    assert (effect.owner, effect.lane, effect.fresh) == (toy.owner, toy.owner.lane, True)
    assert effect.timeout == 0.25


def test_acquire_is_won_by_a_quorum_of_granted(toy):
    state = run_acquire(toy, ("ask lock_acquire", toy.answers(NEW, "down", NEW, held(), NEW)))
    assert state.valid_until == pytest.approx(1000.0 + LEASE - DRIFT)
    assert state.renew_at == pytest.approx(1000.0 + LEASE / 3)
    assert (state.count, state.lease, state.live, state.lost) == (1, LEASE, True, None)
    assert list(toy.session.holds) == [state]
    assert toy.session.holds.get(toy.keys.lock, toy.owner) is state
    assert toy.alarms == 1


def test_first_acquire_counts_claims_that_an_earlier_reply_was_lost_for(toy):
    """Granted is granted, also by a node that has our claim from a try whose reply was lost."""
    assert run_acquire(toy, ("ask lock_acquire", toy.answers(OURS, OURS, NEW, None, None)))


def test_acquire_is_not_won_by_a_minority(toy):
    answers = toy.answers(NEW, NEW, held(), held(), held())
    assert run_acquire(toy, ("ask lock_acquire", answers), "tell lock_abandon", timeout=0.0) is None
    assert len(toy.session.holds) == 0


@pytest.mark.parametrize("n", [1, 2, 3, 4, 6, 7])
def test_acquire_needs_more_than_half_of_any_number_of_nodes(make_toy, n):
    quorum = n // 2 + 1
    toy = make_toy(n)
    assert run_acquire(toy, ("ask lock_acquire", toy.answers(*[NEW] * quorum, *[held()] * (n - quorum))))
    toy = make_toy(n)
    answers = toy.answers(*[NEW] * (quorum - 1), *[held()] * (n - quorum + 1))
    assert run_acquire(toy, ("ask lock_acquire", answers), "tell lock_abandon", timeout=0.0) is None


def test_acquire_remembers_which_nodes_may_keep_the_claim(toy):
    state = run_acquire(
        toy,
        ("ask lock_acquire", toy.answers(NEW, "down", "down", "down", "down", sent=0b00011)),
        "tell lock_abandon",
        ("wait", toy.slept()),
        ("ask lock_acquire", toy.answers(NEW, NEW, NEW, "down", "down", sent=0b00111)),
    )
    assert state.touched == 0b00111


def test_acquire_with_a_lease_is_not_renewed(toy):
    state = take(toy, lease=2.0)
    assert toy.asked[0].command.args[2] == 2_000
    assert toy.asked[0].timeout == pytest.approx(0.1)
    assert state.renew_at == math.inf
    assert not state.renewed
    assert state.valid_until == pytest.approx(1000.0 + 2.0 - 0.022)


def test_acquire_sends_whole_milliseconds_rounded_up(toy):
    take(toy, lease=2.0001)
    assert toy.asked[0].command.args[2] == 2_001


def test_acquire_takes_several_holds_at_once(toy):
    state = take(toy, holds=3)
    assert toy.asked[0].command.args[1] == 3
    assert state.count == 3


def test_max_hold_ends_the_hold_whatever_the_lease(toy):
    state = take(toy, max_hold=5.0)
    assert state.ends_at == pytest.approx(1005.0)
    assert state.valid_until == pytest.approx(1005.0)


def test_max_hold_longer_than_the_lease_leaves_the_lease(toy):
    state = take(toy, max_hold=300.0)
    assert state.valid_until == pytest.approx(1000.0 + LEASE - DRIFT)
    assert state.ends_at == pytest.approx(1300.0)


def test_callback_for_the_loss_gets_the_hold(toy):
    heard = []
    state = take(toy, on_lost=heard.append)
    for callback in state.on_lost:
        callback(state)
    assert heard == [state]


def test_hold_that_acquire_returns_is_valid_at_that_instant(toy):
    """Also when max_hold is over before the nodes have answered."""
    late = toy.answers(*[NEW] * 5, takes=0.2)
    script = [("ask lock_acquire", late), "tell lock_abandon"]
    with pytest.raises(QuorumError):
        run_acquire(toy, *script, max_hold=0.1, timeout=0.0)
    assert len(toy.session.holds) == 0


# Won too late.


@pytest.mark.parametrize("lateness", [0.0, 0.001, 60.0])
def test_acquire_won_too_late_is_undone_and_not_returned(toy, lateness):
    late = toy.answers(*[NEW] * 5, takes=LEASE - DRIFT + lateness)
    with pytest.raises(QuorumError) as caught:
        run_acquire(toy, ("ask lock_acquire", late), "tell lock_abandon", timeout=0.0)
    assert [vote.choice for vote in caught.value.votes].count(Choice.GRANTED) == 3
    assert len(toy.session.holds) == 0
    assert toy.told[0].owed_to == ALL


def test_acquire_won_too_late_is_no_matter_of_foreign_values_on_a_minority(toy):
    late = toy.answers(FOREIGN, NEW, NEW, NEW, NEW, takes=LEASE)
    with pytest.raises(QuorumError):
        run_acquire(toy, ("ask lock_acquire", late), "tell lock_abandon", timeout=0.0)


def test_error_for_an_acquire_won_too_late_blames_no_failed_nodes(toy):
    late = toy.answers(*[NEW] * 5, takes=LEASE)
    with pytest.raises(QuorumError) as caught:
        run_acquire(toy, ("ask lock_acquire", late), "tell lock_abandon", timeout=0.0)
    assert "0 of 5 nodes failed" not in str(caught.value)


def test_acquire_won_in_the_last_instant_is_returned(toy):
    just = toy.answers(*[NEW] * 5, takes=LEASE - DRIFT - 0.001)
    state = run_acquire(toy, ("ask lock_acquire", just), timeout=0.0)
    assert state.valid(toy.now)


def test_acquire_won_too_late_is_tried_again_within_the_timeout(toy):
    state = run_acquire(
        toy,
        ("ask lock_acquire", toy.answers(*[NEW] * 5, takes=LEASE)),
        "tell lock_abandon",
        ("wait", toy.slept()),
        ("ask lock_acquire", won(toy)),
        timeout=100.0,
    )
    assert state.valid_until == pytest.approx(toy.now - 0.001 + LEASE - DRIFT)


# Lost without waiting.


def test_busy_lock_is_none_at_once_without_blocking(toy):
    assert run_acquire(toy, ("ask lock_acquire", busy(toy)), "tell lock_abandon", timeout=0.0) is None
    (undo,) = toy.told
    assert undo.command.keys == toy.keys.all
    assert undo.command.args == (toy.owner.wire, 0)
    assert (undo.owner, undo.lane, undo.owed_to) == (toy.owner, toy.owner.lane, ALL)
    assert undo.owed_until >= toy.now + LEASE
    assert len(toy.session.holds) == 0


def test_split_vote_is_none_at_once_without_blocking(toy):
    split = toy.answers(NEW, held(by=A), held(by=B), held(by=B), "down")
    assert run_acquire(toy, ("ask lock_acquire", split), "tell lock_abandon", timeout=0.0) is None


def test_no_quorum_is_an_error_at_once_without_blocking(toy):
    replies = ("connection refused", NEW, "no answer within 0.25 s", "quarantined for 12 s", held())
    with pytest.raises(QuorumError) as caught:
        run_acquire(toy, ("ask lock_acquire", toy.answers(*replies)), "tell lock_abandon", timeout=0.0)
    error = caught.value
    assert error.name == "x"
    assert [vote.node for vote in error.votes] == ["node0", "node1", "node2", "node3", "node4"]
    assert [vote.choice.value for vote in error.votes] == ["failed", "granted", "failed", "failed", "refused"]
    assert "connection refused" in str(error)
    assert "quarantined for 12 s" in str(error)
    assert "'x'" in str(error)
    assert len(toy.session.holds) == 0


@pytest.mark.parametrize("replies", [("down", "down", held(), NEW, NEW), ("down", held(), held(), held(), "down")])
def test_two_failures_of_five_are_no_outage(toy, replies):
    assert run_acquire(toy, ("ask lock_acquire", toy.answers(*replies)), "tell lock_abandon", timeout=0.0) is None


def test_undo_is_owed_to_nodes_that_did_not_answer_too(toy):
    answers = toy.answers(NEW, None, None, None, "down", sent=0b01111)
    with pytest.raises(QuorumError):
        run_acquire(toy, ("ask lock_acquire", answers), "tell lock_abandon", timeout=0.0)
    assert toy.told[0].owed_to == 0b01111


# Foreign values.


def test_key_of_another_type_is_an_error_at_once_even_when_blocking(toy):
    with pytest.raises(KeyTypeError, match="another type") as caught:
        run_acquire(toy, ("ask lock_acquire", toy.answers(*[FOREIGN] * 5)), "tell lock_abandon")
    assert caught.value.name == "x"
    assert len(caught.value.votes) == 5


def test_foreign_values_on_a_minority_do_no_harm(toy):
    assert run_acquire(toy, ("ask lock_acquire", toy.answers(FOREIGN, FOREIGN, NEW, NEW, NEW)))


def test_foreign_values_beside_a_holder_are_no_error(toy):
    answers = toy.answers(FOREIGN, held(), held(), held(), held())
    assert run_acquire(toy, ("ask lock_acquire", answers), "tell lock_abandon", timeout=0.0) is None


def test_foreign_values_that_alone_keep_the_lock_away_are_an_error(toy):
    answers = toy.answers(FOREIGN, NEW, NEW, "down", "down")
    with pytest.raises(KeyTypeError):
        run_acquire(toy, ("ask lock_acquire", answers), "tell lock_abandon")


def test_foreign_values_make_a_waiter_leave_its_queues(toy):
    with pytest.raises(KeyTypeError):
        run_acquire(
            toy, ("ask lock_acquire for a place", toy.answers(*[FOREIGN] * 5)), "tell lock_abandon, leave", crowded=True
        )


# Waiting.


def waiting_script(toy, *, pause=None):
    """Refused, then queued, then woken, then won."""
    return [
        ("ask lock_acquire", busy(toy)),
        "tell lock_abandon",
        ("ask lock_acquire for a place", busy(toy)),
        "tell lock_abandon",
        ("wait for wake-up", toy.slept(0.05, signals=3)),
        ("ask lock_acquire for a place", won(toy)),
    ]


def test_held_lock_is_waited_for_in_the_queue(toy):
    state = run_acquire(toy, *waiting_script(toy))
    assert state.valid(toy.now)
    queued = toy.asked[1]
    assert queued.command.keys == toy.keys.all
    assert queued.command.args == (toy.owner.wire, 1, 30_000, 5_000, 1, toy.owner.channel)
    assert queued.fresh
    wake_key = toy.owner.wire + b" " + toy.keys.lock
    assert queued.listen == wake_key, "listens before it is queued, so that no wake-up is missed"
    (wait,) = toy.waits
    assert (wait.key, wait.lane, wait.enough) == (wake_key, toy.owner.lane, 3)
    assert 0 < wait.grace < 0.05


def test_waiter_tells_how_long_it_has_waited(toy):
    run_acquire(
        toy,
        ("ask lock_acquire for a place", busy(toy)),
        "tell lock_abandon",
        ("wait for wake-up", toy.slept(0.5)),
        ("ask lock_acquire for a place", busy(toy)),
        "tell lock_abandon",
        ("wait for wake-up", toy.slept(0.25)),
        ("ask lock_acquire for a place", won(toy)),
        crowded=True,
    )
    assert [command.args[4] for command in toy.commands if command.script.name == "lock_acquire"] == [0, 501, 752]


def test_crowded_lock_is_queued_for_at_once(toy):
    state = run_acquire(toy, ("ask lock_acquire for a place", won(toy)), crowded=True)
    assert state.valid(toy.now)


def test_crowded_lock_is_not_queued_for_without_blocking(toy):
    assert run_acquire(toy, ("ask lock_acquire", busy(toy)), "tell lock_abandon", crowded=True, timeout=0.0) is None
    assert toy.asked[0].listen is None


def test_waiter_gives_up_at_its_deadline_and_leaves_the_queues(toy):
    result = run_acquire(
        toy,
        ("ask lock_acquire", busy(toy)),
        "tell lock_abandon",
        ("ask lock_acquire for a place", busy(toy)),
        "tell lock_abandon",
        ("wait for wake-up", toy.slept()),
        ("ask lock_acquire for a place", busy(toy)),
        "tell lock_abandon",
        ("wait for wake-up", toy.slept()),
        ("ask lock_acquire for a place", busy(toy)),
        "tell lock_abandon, leave",
        timeout=1.5,
    )
    assert result is None
    assert toy.waits[-1].until == pytest.approx(1001.5), "sleeps no longer than until the deadline"
    assert 1001.5 <= toy.now < 1001.55
    assert len(toy.session.holds) == 0


def test_waiter_that_never_queued_leaves_no_queue(toy):
    result = run_acquire(
        toy, ("ask lock_acquire", toy.answers(*[held()] * 5, takes=0.2)), "tell lock_abandon", timeout=0.1
    )
    assert result is None


def test_waiter_tries_once_more_at_its_deadline(toy):
    state = run_acquire(
        toy,
        ("ask lock_acquire for a place", busy(toy)),
        "tell lock_abandon",
        ("wait for wake-up", toy.slept()),
        ("ask lock_acquire for a place", won(toy)),
        timeout=0.3,
        crowded=True,
    )
    assert state.valid(toy.now)
    assert toy.asked[-1].timeout <= 0.05, "the last try must not stretch the timeout"


@pytest.mark.parametrize(("timeout", "patience"), [(9.0, 0.25), (0.12, 0.12), (0.001, 0.03)])
def test_rounds_of_a_waiter_end_soon_after_its_deadline(toy, timeout, patience):
    silence = ("ask lock_acquire", toy.answers(*[None] * 5))
    script = [silence, "tell lock_abandon"]
    if timeout == 9.0:
        script += [("wait", toy.slept()), ("ask lock_acquire", won(toy))]
        run_acquire(toy, *script, timeout=timeout)
    else:
        with pytest.raises(QuorumError):
            run_acquire(toy, *script, timeout=timeout)
    assert toy.asked[0].timeout == pytest.approx(patience)


def test_wake_up_is_a_hint_and_no_proof(toy):
    state = run_acquire(
        toy,
        ("ask lock_acquire for a place", busy(toy)),
        "tell lock_abandon",
        ("wait for wake-up", toy.slept(0.01, signals=5)),
        ("ask lock_acquire for a place", busy(toy)),
        "tell lock_abandon",
        ("wait for wake-up", toy.slept(0.01, signals=5)),
        ("ask lock_acquire for a place", won(toy)),
        crowded=True,
    )
    assert state.valid(toy.now)


def pause_after(toy, *replies, **fields):
    """Return for how long a waiter sleeps that got these replies."""
    run_acquire(
        toy,
        ("ask lock_acquire for a place", toy.answers(*replies)),
        "tell lock_abandon",
        ("wait for wake-up", toy.slept()),
        ("ask lock_acquire for a place", won(toy)),
        crowded=True,
        **fields,
    )
    return toy.waits[0].until - 1000.001


@pytest.mark.parametrize(
    ("remaining", "shortest", "longest"),
    [
        ([0.2, 0.2, 0.2, None, None], 0.2, 0.225),  # the holder's time is up
        ([0.1, 0.2, 0.3, None, None], 0.3, 0.325),  # on a quorum, that is on the third to go
        ([20.0, 20.0, 20.0, None, None], 0.5, 1.5),  # polls once in a while: wake-ups may get lost
        ([0.0, 0.0, 0.0, None, None], 0.0, 0.025),
    ],
)
@pytest.mark.parametrize("luck", [0.0, 0.5, 0.999])
def test_waiter_sleeps_until_the_holders_time_is_up_on_a_quorum(make_toy, remaining, shortest, longest, luck):
    toy = make_toy(luck=luck)
    replies = [None if left is None else held(left) for left in remaining]
    assert shortest <= pause_after(toy, *replies) + 1e-9 <= longest + 2e-9


def test_waiter_counts_nodes_that_granted_among_the_quorum_to_come(toy):
    """Two nodes are free already: when one of the others expires, there is a quorum."""
    assert 0.2 < pause_after(toy, NEW, NEW, held(20.0), held(0.2), held(10.0)) < 0.23


def test_waiter_expects_no_end_of_a_claim_without_one(toy):
    """Of three refusing nodes three must become free, and one of them never will by itself."""
    assert 0.5 <= pause_after(toy, held(None), held(0.1), held(0.1), None, None) <= 1.5


def test_waiters_sleep_apart(make_toy):
    pauses = {pause_after(make_toy(luck=luck), *[held(20.0)] * 5) for luck in (0.0, 0.3, 0.6, 0.9)}
    assert len(pauses) == 4


# Split votes.

SPLIT = (NEW, NEW, held(by=A), held(by=B), held(by=B))


def test_split_vote_is_tried_again_after_a_short_pause(toy):
    state = run_acquire(
        toy,
        ("ask lock_acquire", toy.answers(*SPLIT)),
        "tell lock_abandon",
        ("wait", toy.slept()),
        ("ask lock_acquire for a place", won(toy)),
    )
    assert state.valid(toy.now)
    assert 0 < toy.waits[0].until - 1000.001 <= 0.05


def test_split_votes_spread_contenders_further_apart_each_time(toy):
    split = toy.answers(*SPLIT, takes=0.0)
    again = [("ask lock_acquire for a place", split), "tell lock_abandon", ("wait for wake-up", toy.slept())]
    run_acquire(
        toy,
        ("ask lock_acquire", split),
        "tell lock_abandon",
        ("wait", toy.slept()),
        *again * 11,
        ("ask lock_acquire for a place", won(toy)),
    )
    began = [1000.0, *(wait.until for wait in toy.waits)]
    pauses = [wait.until - start for wait, start in zip(toy.waits, began, strict=False)]
    assert pauses[:4] == sorted(pauses[:4])
    assert pauses[3] > 2 * pauses[0]
    assert max(pauses) <= 0.05 + 1e-9


def test_contenders_with_different_luck_pause_differently(make_toy):
    until = set()
    for luck in (0.0, 0.5, 0.9):
        toy = make_toy(luck=luck)
        run_acquire(
            toy,
            ("ask lock_acquire", toy.answers(*SPLIT)),
            "tell lock_abandon",
            ("wait", toy.slept()),
            ("ask lock_acquire for a place", won(toy)),
        )
        until.add(toy.waits[0].until)
    assert len(until) == 3


@pytest.mark.parametrize(
    "replies",
    [
        (held(by=A), held(by=A), held(by=A), NEW, NEW),  # A has a quorum
        (held(by=A), held(by=A), held(by=B), None, None),  # A may have one, for all we know
        (held(by=A), held(by=A), held(by=B), "down", NEW),
    ],
)
def test_vote_is_not_split_while_somebody_may_have_a_quorum(toy, replies):
    run_acquire(
        toy,
        ("ask lock_acquire", toy.answers(*replies)),
        "tell lock_abandon",
        ("ask lock_acquire for a place", won(toy)),
    )


def test_two_contenders_for_an_even_number_of_nodes_retry_soon(make_toy):
    toy = make_toy(4)
    run_acquire(
        toy,
        ("ask lock_acquire", toy.answers(NEW, NEW, held(by=A), held(by=A))),
        "tell lock_abandon",
        ("wait", toy.slept()),
        ("ask lock_acquire for a place", won(toy)),
    )
    assert toy.waits[0].until - 1000.0 < 0.06


# Outages.


def test_outage_is_waited_out_until_the_deadline(toy):
    replies = {"ask lock_acquire": mute(toy), "tell lock_abandon": None, "wait": toy.slept()}
    with pytest.raises(QuorumError) as caught:
        toy.drive(acquire(toy.session, toy.demand(timeout=2.0), toy.now), lambda described, effect: replies[described])
    assert 1002.0 <= toy.now < 1002.05
    assert len(caught.value.votes) == 5
    assert all(wait.until <= 1002.0 for wait in toy.waits)
    assert 8 <= len(toy.asked) <= 40
    assert len(toy.told) == len(toy.asked)


def test_outage_that_ends_in_time_is_no_error(toy):
    state = run_acquire(
        toy,
        ("ask lock_acquire", mute(toy)),
        "tell lock_abandon",
        ("wait", toy.slept()),
        ("ask lock_acquire", won(toy)),
    )
    assert state.valid(toy.now)


def test_outage_is_not_asked_all_the_time(toy):
    outage = ("ask lock_acquire", toy.answers(*["down"] * 5, takes=0.0))
    run_acquire(toy, *[outage, "tell lock_abandon", ("wait", toy.slept())] * 10, ("ask lock_acquire", won(toy)))
    starts = [1000.0, *(wait.until for wait in toy.waits)]
    pauses = [wait.until - start for wait, start in zip(toy.waits, starts, strict=False)]
    assert min(pauses) >= 0.004
    assert max(pauses) <= 0.25 + 1e-9
    assert pauses[-1] > 0.05


def test_last_round_decides_between_busy_and_outage(toy):
    result = run_acquire(
        toy,
        ("ask lock_acquire", mute(toy)),
        "tell lock_abandon",
        ("wait", toy.slept()),
        ("ask lock_acquire", toy.answers(*[held()] * 5, takes=0.02)),
        "tell lock_abandon",
        timeout=0.02,
    )
    assert result is None


# Interruptions.


def acquire_scripts(toy):
    """Ways for an acquire to go, each up to its win."""
    outage_then_split = [
        ("ask lock_acquire", toy.answers(NEW, NEW, "down", "down", "down", sent=0b00011)),
        "tell lock_abandon",
        ("wait", toy.slept()),
        ("ask lock_acquire", toy.answers(*SPLIT)),
        "tell lock_abandon",
        ("wait", toy.slept()),
        ("ask lock_acquire for a place", won(toy)),
    ]
    return {"at once": [("ask lock_acquire", won(toy))], "waiting": waiting_script(toy), "unlucky": outage_then_split}


@pytest.mark.parametrize("way", ["at once", "waiting", "unlucky"])
def test_acquire_interrupted_anywhere_leaves_nothing_behind(make_toy, way):
    script = acquire_scripts(make_toy())[way]
    for at in range(len(script)):
        toy = make_toy()
        cleanup = toy.interrupt(acquire(toy.session, toy.demand(), toy.now), acquire_scripts(toy)[way], at)
        queued = any(len(effect.command.keys) == 3 for effect in toy.asked)
        assert cleanup == ["tell lock_abandon, leave" if queued else "tell lock_abandon"], at
        assert len(toy.session.holds) == 0
        assert toy.alarms == 0
        undo = toy.told[-1]
        assert undo.command.args[0] == toy.owner.wire
        assert (undo.owner, undo.lane) == (toy.owner, toy.owner.lane)
        assert undo.owed_until >= toy.now + LEASE, "as long as a node may keep the claim"
        if isinstance(toy.effects[-2], Broadcast):
            assert undo.owed_to == ALL, "the interrupted round may have been sent to any node"


def test_acquire_interrupted_without_blocking_drops_its_claims(toy):
    steps = acquire(toy.session, toy.demand(timeout=0.0), toy.now)
    assert toy.interrupt(steps, [("ask lock_acquire", won(toy))], 0) == ["tell lock_abandon"]
    assert toy.told[-1].owed_to == ALL


@pytest.mark.parametrize("at", [1, 3])
def test_acquire_interrupted_while_it_gives_up_leaves_its_queues(toy, at):
    script = [
        ("ask lock_acquire", busy(toy)),
        "tell lock_abandon",
        ("ask lock_acquire for a place", toy.answers(*[held()] * 5, takes=0.2)),
        "tell lock_abandon, leave",
    ]
    cleanup = toy.interrupt(acquire(toy.session, toy.demand(timeout=0.1), toy.now), script, at)
    assert cleanup == ["tell lock_abandon" if at == 1 else "tell lock_abandon, leave"]


def test_place_in_a_queue_is_owed_as_long_as_it_is_kept(make_toy):
    """A place is kept for 5 s, also for a lease of 1 s."""
    toy = make_toy(lease=1.0)
    script = [("ask lock_acquire for a place", busy(toy))]
    assert toy.interrupt(acquire(toy.session, toy.demand(crowded=True), toy.now), script, 0)
    place_kept = toy.commands[0].args[3] / 1000
    assert toy.told[-1].owed_until >= 1000.0 + place_kept


def test_acquire_after_an_interrupted_one_begins_anew(toy):
    toy.interrupt(acquire(toy.session, toy.demand(), toy.now), [("ask lock_acquire", won(toy))], 0)
    assert take(toy).count == 1


# All at once: random answers against what must hold whatever they are.


class Chance:
    """Answers at random, and checks after each effect what the protocol owes to its promises."""

    def __init__(self, rng, make_toy):
        self.rng = rng
        self.toy = make_toy(rng.randint(1, 7), luck=rng.random(), lease=rng.choice([0.5, 5.0, 30.0]))
        self.timeout = rng.choice([0.0, 0.01, 0.3, 3.0, None])
        self.deadline = math.inf if self.timeout is None else 1000.0 + self.timeout
        self.reach = 0
        self.must_undo = False
        self.queued = False
        self.rounds = 0
        self.trace = []

    def demand(self):
        return self.toy.demand(timeout=self.timeout, crowded=self.rng.random() < 0.3)

    def node_says(self):
        if self.timeout is None and self.rounds > 30:
            return NEW
        return self.rng.choice([NEW, NEW, NEW, OURS, held(self.rng.random(), A), held(3.0, B), "down", None, FOREIGN])

    def __call__(self, described, effect):
        self.trace.append(described)
        now = self.toy.now
        if self.must_undo:
            assert isinstance(effect, Tell), "undone on all nodes before anything else happens"
            assert effect.owed_to & self.reach == self.reach
            assert effect.owed_until >= now + self.toy.session.timing.lease
            self.must_undo = False
            return None
        if isinstance(effect, Wait):
            assert effect.until <= self.deadline
            assert now <= effect.until <= now + 1.6
            assert (effect.key is not None) <= self.queued
            return self.toy.slept(self.rng.choice([None, 0.0]))
        assert isinstance(effect, Broadcast)
        self.rounds += 1
        assert effect.timeout <= max(self.deadline - now, 0.05) or self.timeout == 0
        self.queued |= effect.listen is not None
        sent = self.rng.getrandbits(self.toy.n)
        self.reach |= sent
        takes = self.rng.choice([0.0, 0.001, 0.05, 40.0 if self.rng.random() < 0.2 else 0.0])
        self.must_undo = True
        return self.toy.answers(*[self.node_says() for _ in range(self.toy.n)], takes=takes, sent=sent)


def test_acquire_keeps_its_promises_under_random_answers(make_toy):
    seed = random.randrange(2**32)
    print("seed", seed)
    outcomes = []
    for i in range(2_000):
        chance = Chance(random.Random(seed + i), make_toy)
        toy = chance.toy
        error = state = None
        try:
            state = toy.drive(acquire(toy.session, chance.demand(), toy.now), chance)
        except (QuorumError, KeyTypeError) as raised:
            error = raised
        note = f"seed {seed} + {i}: {chance.trace}"
        tally = toy.tallies[-1]
        in_time = toy.now < toy.session.timing.valid_until(tally.sent_at, toy.session.timing.lease)
        if state is not None:
            assert tally.choices.count(Choice.GRANTED) >= toy.n // 2 + 1, note
            assert in_time, note
            assert isinstance(toy.effects[-1], Broadcast), note
            assert list(toy.session.holds) == [state], note
            assert state.touched == chance.reach, note
        else:
            assert not (tally.won and in_time), note
            assert not chance.must_undo, note
            assert toy.told[-1].command.args[1] == int(chance.queued), note
            assert len(toy.session.holds) == 0, note
            if not isinstance(error, KeyTypeError):
                assert toy.now >= chance.deadline, note
                outage = tally.failed > toy.n - tally.quorum or tally.won
                assert isinstance(error, QuorumError) == outage, note
        if chance.timeout == 0:
            assert chance.rounds == 1, note
            assert not chance.queued, note
        outcomes.append(type(error).__name__ if error else state is not None)
    assert {True, False, "QuorumError", "KeyTypeError"} == set(outcomes)


# Re-entry.


def run_reenter(toy, *script, **fields):
    return toy.play(acquire(toy.session, toy.demand(**fields), toy.now), *script)


def test_reentry_asks_for_the_next_count(toy):
    state = take(toy)
    assert run_reenter(toy, ("ask lock_acquire", toy.answers(*[OURS] * 5))) is state
    assert toy.commands[-1].args == (toy.owner.wire, 2, 30_000)
    assert toy.commands[-1].keys == (toy.keys.lock,)
    assert state.count == 2
    assert not toy.asked[-1].fresh, "nodes that lost their memory are healed by it"
    assert list(toy.session.holds) == [state]


def test_reentry_counts_are_set_and_not_added(toy):
    state = take(toy)
    for count in (2, 3, 4):
        run_reenter(toy, ("ask lock_acquire", toy.answers(*[OURS] * 5)))
        assert toy.commands[-1].args[1] == count
    assert state.count == 4


def test_reentry_takes_several_holds_at_once(toy):
    state = take(toy, holds=2)
    run_reenter(toy, ("ask lock_acquire", toy.answers(*[OURS] * 5)), holds=3)
    assert toy.commands[-1].args[1] == 5
    assert state.count == 5


def test_reentry_that_failed_does_not_count(toy):
    state = take(toy)
    with pytest.raises(QuorumError):
        run_reenter(toy, ("ask lock_acquire", mute(toy)), timeout=0.0)
    assert state.count == 1
    run_reenter(toy, ("ask lock_acquire", toy.answers(*[OURS] * 5)))
    assert toy.commands[-1].args[1] == 2
    assert state.count == 2


@pytest.mark.parametrize(
    ("answers", "wins"),
    [
        ((OURS, OURS, OURS, "down", "down"), True),
        ((OURS, OURS, OURS, NEW, NEW), True),
        ((NEW, NEW, OURS, OURS, OURS), True),
        ((OURS, OURS, NEW, "down", "down"), False),
        ((NEW, NEW, NEW, OURS, OURS), False),
        ((NEW, NEW, NEW, NEW, NEW), False),
        ((OURS, OURS, held(), held(), NEW), False),
    ],
)
def test_reentry_wins_only_with_a_quorum_that_had_the_claim(toy, answers, wins):
    state = take(toy)
    against = sum(answer not in (OURS, "down") for answer in answers)
    steps = acquire(toy.session, toy.demand(timeout=0.0), toy.now)
    if wins:
        assert toy.play(steps, ("ask lock_acquire", toy.answers(*answers))) is state
        assert state.count == 2
        return
    script = [("ask lock_acquire", toy.answers(*answers))]
    if against > 2:
        script += ["tell lock_abandon", "notify HoldLost"]
    with pytest.raises(LeaseLostError if against > 2 else QuorumError):
        toy.play(steps, *script)
    assert state.count == 1
    assert (state.lost is not None) == (against > 2)
    assert state.live, "who holds it has yet to release it"
    assert toy.session.holds.get(toy.keys.lock, toy.owner) is state


def test_lost_hold_is_never_won_again_by_reentry(toy):
    state = take(toy)
    with pytest.raises(LeaseLostError):
        run_reenter(
            toy, ("ask lock_acquire", toy.answers(*[NEW] * 5)), "tell lock_abandon", "notify HoldLost", timeout=None
        )
    assert state.lost
    for _ in range(3):
        # No node is even asked: the claims of the first try might still be there.
        with pytest.raises(LeaseLostError):
            run_reenter(toy, timeout=None)
    assert not state.valid(toy.now)
    assert state.valid_until < 1000.0 + LEASE


def test_reentry_of_an_expired_hold_asks_nobody(toy):
    state = take(toy)
    toy.now = state.valid_until
    with pytest.raises(LeaseLostError, match="ended without a renewal"):
        run_reenter(toy, "tell lock_abandon", "notify HoldLost")
    assert state.count == 1


def test_reentry_confirmed_after_the_old_end_is_lost(toy):
    state = take(toy, lease=2.0)
    late = toy.answers(*[OURS] * 5, takes=5.0)
    with pytest.raises(LeaseLostError):
        run_reenter(toy, ("ask lock_acquire", late), "tell lock_abandon", "notify HoldLost", lease=60.0)
    assert state.count == 1


def test_loss_at_reentry_undoes_the_claims_that_it_made(toy):
    state = run_acquire(toy, ("ask lock_acquire", toy.answers(NEW, NEW, NEW, "down", "down", sent=0b00111)))
    answers = toy.answers(NEW, NEW, NEW, "down", OURS, sent=0b10111)
    with pytest.raises(LeaseLostError):
        run_reenter(toy, ("ask lock_acquire", answers), "tell lock_abandon", "notify HoldLost")
    assert toy.told[-1].owed_to == 0b10111
    assert toy.events[-1].state is state
    assert toy.events[-1].name == "x"
    assert toy.events[-1].owner == str(toy.owner)


def test_reentry_retries_an_outage_until_its_deadline(toy):
    state = take(toy)
    state = run_reenter(
        toy,
        ("ask lock_acquire", mute(toy)),
        ("wait", toy.slept()),
        ("ask lock_acquire", mute(toy)),
        ("wait", toy.slept()),
        ("ask lock_acquire", toy.answers(*[OURS] * 5)),
        timeout=1.0,
    )
    assert state.count == 2
    assert [command.args[1] for command in toy.commands[1:]] == [2, 2, 2]


def test_reentry_in_an_outage_never_waits_beyond_the_validity(toy):
    state = take(toy, lease=0.05)
    with pytest.raises(LeaseLostError):
        toy.drive(
            acquire(toy.session, toy.demand(timeout=None), toy.now),
            lambda described, effect: (
                toy.answers(*["down"] * 5, takes=0.0)
                if described.startswith("ask")
                else toy.slept()
                if described == "wait"
                else None
            ),
        )
    assert all(wait.until <= state.valid_until for wait in toy.waits)
    assert toy.now <= state.valid_until + 0.01


def test_reentry_without_a_lease_inherits_the_outermost_one(toy):
    state = take(toy, lease=2.0)
    run_reenter(toy, ("ask lock_acquire", toy.answers(*[OURS] * 5)))
    assert toy.commands[-1].args[2] == 2_000
    assert not state.renewed
    assert state.lease == 2.0


def test_reentry_with_a_lease_does_not_end_the_renewal(toy):
    state = take(toy)
    run_reenter(toy, ("ask lock_acquire", toy.answers(*[OURS] * 5)), lease=2.0)
    assert state.renewed
    assert state.lease == LEASE
    assert state.valid_until == pytest.approx(1000.0 + LEASE - DRIFT), "an inner lease never shortens"


def test_reentry_with_a_longer_lease_lengthens(toy):
    state = take(toy, lease=2.0)
    began = toy.now
    run_reenter(toy, ("ask lock_acquire", toy.answers(*[OURS] * 5)), lease=60.0)
    assert toy.commands[-1].args[2] == 60_000
    assert state.valid_until == pytest.approx(began + 60.0 - 0.602)
    assert not state.renewed


def test_reentry_never_outlasts_max_hold(toy):
    state = take(toy, max_hold=5.0)
    run_reenter(toy, ("ask lock_acquire", toy.answers(*[OURS] * 5)), lease=60.0)
    assert state.valid_until == pytest.approx(1005.0)


def test_reentry_adds_its_callback(toy):
    heard = []
    state = take(toy, on_lost=lambda state: heard.append("outer"))
    run_reenter(toy, ("ask lock_acquire", toy.answers(*[OURS] * 5)), on_lost=lambda state: heard.append("inner"))
    for callback in state.on_lost:
        callback(state)
    assert heard == ["outer", "inner"]


def test_callback_of_one_lock_object_is_called_once_however_often_it_is_reentered(toy):
    heard = []
    state = take(toy, on_lost=heard.append)
    for _ in range(3):
        run_reenter(toy, ("ask lock_acquire", toy.answers(*[OURS] * 5)), on_lost=heard.append)
    for callback in state.on_lost:
        callback(state)
    assert heard == [state]


def test_holds_of_other_owners_are_no_reentry(toy):
    take(toy)
    other = toy.new_owner()
    assert run_acquire(toy, ("ask lock_acquire", busy(toy)), "tell lock_abandon", timeout=0.0, owner=other) is None


def test_reentry_interrupted_anywhere_keeps_the_holds_it_had(make_toy):
    for at in range(3):
        toy = make_toy()
        state = take(toy)
        script = [
            ("ask lock_acquire", mute(toy)),
            ("wait", toy.slept()),
            ("ask lock_acquire", toy.answers(*[OURS] * 5)),
        ]
        cleanup = toy.interrupt(acquire(toy.session, toy.demand(), toy.now), script, at)
        assert cleanup == [], "nothing is abandoned that is still held"
        assert (state.count, state.live, state.lost) == (1, True, None)
        assert list(toy.session.holds) == [state]


def test_reentry_interrupted_is_owed_a_release_on_all_nodes_it_may_have_reached(toy):
    state = run_acquire(toy, ("ask lock_acquire", toy.answers(NEW, NEW, NEW, "down", "down", sent=0b00111)))
    toy.interrupt(acquire(toy.session, toy.demand(), toy.now), [("ask lock_acquire", won(toy))], 0)
    toy.play(release(toy.session, state, toy.now), ("ask lock_release", toy.answers(*[HAD] * 5)))
    assert toy.asked[-1].owed_to == ALL


# Re-entry while other threads act on the same hold.


def given_back(toy, state):
    """What another thread does with the hold: `hold.release()`."""
    toy.play(release(toy.session, state, toy.now), ("ask lock_release", toy.answers(*[HAD] * toy.n)))


def test_reentry_of_a_hold_given_back_meanwhile_is_a_first_acquire(toy):
    first = take(toy)
    state = run_reenter(
        toy,
        ("ask lock_acquire", toy.answers(*[OURS] * 5, meanwhile=lambda: given_back(toy, first))),
        "tell lock_abandon",
        ("ask lock_acquire", won(toy)),
    )
    assert state is not first
    assert state.count == 1
    assert state.valid(toy.now)
    assert list(toy.session.holds) == [state]
    assert not first.live


def test_reentry_that_becomes_a_first_acquire_keeps_its_deadline(toy):
    first = take(toy)
    result = run_reenter(
        toy,
        ("ask lock_acquire", mute(toy)),
        ("wait", toy.slept()),
        ("ask lock_acquire", toy.answers(*["down"] * 5, takes=0.4, meanwhile=lambda: given_back(toy, first))),
        "tell lock_abandon",
        ("ask lock_acquire", toy.answers(*[held()] * 5, takes=0.2)),
        "tell lock_abandon",
        timeout=0.5,
    )
    assert result is None
    assert toy.now < 1001.0


def test_reentry_of_a_hold_given_back_while_it_paused_leaves_nothing_behind(toy):
    """Whatever is asked after the release may create claims: it is undone, also if it is interrupted."""
    first = take(toy)
    first_half = [
        ("ask lock_acquire", mute(toy)),
        ("wait", toy.slept(meanwhile=lambda: given_back(toy, first))),
    ]
    steps = acquire(toy.session, toy.demand(timeout=9.0), toy.now)
    cleanup = toy.interrupt(steps, [*first_half, ("ask lock_acquire", won(toy))], 2)
    assert cleanup == ["tell lock_abandon"]


def test_reentry_of_a_hold_given_back_while_it_paused_goes_on_as_a_first_acquire(toy):
    first = take(toy)
    state = run_reenter(
        toy,
        ("ask lock_acquire", mute(toy)),
        ("wait", toy.slept(meanwhile=lambda: given_back(toy, first))),
        ("ask lock_acquire", won(toy)),
    )
    assert toy.asked[-1].fresh
    assert toy.commands[-1].args[1] == 1
    assert state is not first
    assert list(toy.session.holds) == [state]


def test_reentry_of_a_hold_lost_while_it_paused_asks_no_more(toy):
    """Claims made after the loss would be nobody's: neither renewed nor undone."""
    state = take(toy)

    def lose():
        toy.now = state.valid_until
        with pytest.raises(LeaseLostError):
            toy.play(check(state, toy.now), "tell lock_abandon", "notify HoldLost")

    steps = acquire(toy.session, toy.demand(timeout=None), toy.now)
    with pytest.raises(LeaseLostError):
        toy.play(steps, ("ask lock_acquire", mute(toy)), ("wait", toy.slept(meanwhile=lose)))


def test_reentry_lost_meanwhile_is_not_won(toy):
    state = take(toy)

    def lose():
        with pytest.raises(LeaseLostError):
            toy.play(check(state, state.valid_until), "tell lock_abandon", "notify HoldLost")

    with pytest.raises(LeaseLostError):
        run_reenter(toy, ("ask lock_acquire", toy.answers(*[OURS] * 5, meanwhile=lose)))
    assert state.count == 1
    assert not state.valid(toy.now)


# Release.


def run_release(toy, state, *script, **options):
    return toy.play(release(toy.session, state, toy.now, **options), *script)


def test_release_gives_back_the_last_hold(toy):
    state = take(toy)
    run_release(toy, state, ("ask lock_release", toy.answers(*[HAD] * 5)))
    assert toy.commands[-1].keys == toy.keys.all
    assert toy.commands[-1].args == (toy.owner.wire, 0, b"redisson_lock__channel:{redsync:x}")
    assert (toy.asked[-1].owner, toy.asked[-1].lane) == (toy.owner, toy.owner.lane)
    assert len(toy.session.holds) == 0
    assert not state.live
    assert state.count == 0
    assert state.lost is None


def test_release_of_one_of_several_holds_sets_the_count(toy):
    state = take(toy, holds=3)
    run_release(toy, state, ("ask lock_release", toy.answers(*[HAD] * 5)))
    assert toy.commands[-1].args[1] == 2
    assert (state.count, state.live) == (2, True)
    assert list(toy.session.holds) == [state]


def test_release_gives_back_several_holds_with_one_command(toy):
    state = take(toy, holds=3)
    run_release(toy, state, ("ask lock_release", toy.answers(*[HAD] * 5)), holds=3)
    assert toy.commands[-1].args[1] == 0
    assert len(toy.session.holds) == 0


def test_release_ends_live_before_it_is_sent(toy):
    """So that a renewal which is composed later leaves it out: on one lane nothing is overtaken."""
    state = take(toy)
    effect = toy.start(release(toy.session, state, toy.now))
    assert isinstance(effect, Broadcast)
    assert not state.live
    assert len(toy.session.holds) == 0


def test_release_is_owed_to_all_nodes_that_may_keep_the_claim(toy):
    state = run_acquire(toy, ("ask lock_acquire", toy.answers(NEW, NEW, NEW, "down", None, sent=0b10111)))
    run_release(toy, state, ("ask lock_release", toy.answers(HAD, HAD, HAD, "down", "down")))
    assert toy.asked[-1].owed_to == 0b10111
    assert toy.asked[-1].owed_until == pytest.approx(1000.0 + LEASE)


def test_release_is_owed_until_the_nodes_forget_a_claim_that_max_hold_ended_early(toy):
    state = take(toy, max_hold=5.0)
    run_release(toy, state, ("ask lock_release", toy.answers(*[HAD] * 5)))
    assert toy.asked[-1].owed_until >= 1000.0 + LEASE - 0.001


def test_loss_by_max_hold_is_owed_until_the_nodes_forget_the_claim(toy):
    state = take(toy, max_hold=5.0)
    toy.now = 1005.0
    with pytest.raises(LeaseLostError):
        run_release(toy, state, "tell lock_abandon", "notify HoldLost")
    assert toy.told[-1].owed_until >= 1000.0 + LEASE - 0.001


def test_release_is_owed_until_the_nodes_forget_a_claim_lengthened_by_reentry(toy):
    state = take(toy, lease=2.0)
    began = toy.now
    run_reenter(toy, ("ask lock_acquire", toy.answers(*[OURS] * 5)), lease=3600.0)
    run_release(toy, state, ("ask lock_release", toy.answers(*[HAD] * 5)), holds=2)
    assert toy.asked[-1].owed_until >= began + 3600.0 - 0.001


def test_release_is_fine_when_a_quorum_had_us(toy):
    state = take(toy)
    run_release(toy, state, ("ask lock_release", toy.answers(HAD, HAD_NOT, HAD, HAD_NOT, HAD)))


def test_release_tells_the_loss_when_no_quorum_had_us(toy):
    state = take(toy)
    with pytest.raises(LeaseLostError, match="3 of 5 nodes"):
        run_release(toy, state, ("ask lock_release", toy.answers(HAD_NOT, HAD, HAD_NOT, HAD, HAD_NOT)))
    assert state.lost
    assert len(toy.session.holds) == 0


@pytest.mark.parametrize("order", ["silence first", "refusals first", "mixed"])
def test_release_takes_no_silence_for_a_refusal_in_whatever_order_nodes_answer(make_toy, order):
    """Three that refuse are a loss and two are none, also if the other nodes failed before they answered."""
    for refusing, lost in [(3, True), (2, False)]:
        toy = make_toy()
        state = take(toy)
        answers = ["down", "down", *[HAD_NOT] * refusing, *[HAD] * (3 - refusing)]
        if order == "refusals first":
            answers.reverse()
        elif order == "mixed":
            answers = [answers[i] for i in (2, 0, 3, 1, 4)]
        script = ("ask lock_release", toy.answers(*answers))
        if lost:
            with pytest.raises(LeaseLostError, match="3 of 5 nodes"):
                run_release(toy, state, script)
        else:
            run_release(toy, state, script)


def test_reentry_takes_no_silence_for_a_refusal(toy):
    state = take(toy)
    answers = toy.answers("down", "down", NEW, held(), FOREIGN)
    with pytest.raises(LeaseLostError):
        run_reenter(toy, ("ask lock_acquire", answers), "tell lock_abandon", "notify HoldLost", timeout=0.0)
    assert state.lost


def test_release_of_one_of_several_holds_tells_the_loss_to_all(toy):
    state = take(toy, holds=2)
    with pytest.raises(LeaseLostError):
        run_release(
            toy, state, ("ask lock_release", toy.answers(*[HAD_NOT] * 5)), "tell lock_abandon", "notify HoldLost"
        )
    assert (state.count, len(toy.session.holds)) == (1, 1)
    with pytest.raises(LeaseLostError):
        run_release(toy, state)
    assert (state.count, len(toy.session.holds)) == (0, 0)


@pytest.mark.parametrize(
    "answers",
    [
        ("down", "down", "down", "down", "down"),
        (HAD, HAD, "down", "down", "down"),
        (HAD, HAD_NOT, HAD_NOT, None, None),
    ],
)
def test_release_with_too_few_nodes_is_fine_while_it_is_still_valid(toy, answers):
    state = take(toy)
    run_release(toy, state, ("ask lock_release", toy.answers(*answers)))
    assert state.lost is None
    assert toy.asked[-1].owed_to == ALL
    assert len(toy.session.holds) == 0


def test_release_with_too_few_nodes_beyond_the_validity_is_a_loss(toy):
    state = take(toy)
    toy.now = state.valid_until - 0.1
    with pytest.raises(LeaseLostError):
        run_release(toy, state, ("ask lock_release", toy.answers(*["down"] * 5, takes=0.1)))


def test_release_of_an_expired_hold_drops_it_and_tells_the_loss(toy):
    state = take(toy)
    toy.now = state.valid_until
    with pytest.raises(LeaseLostError, match="ended without a renewal"):
        run_release(toy, state, "tell lock_abandon", "notify HoldLost")
    assert len(toy.session.holds) == 0
    assert not state.live


def test_release_of_a_lost_hold_asks_nobody_and_tells_each_of_its_holds(toy):
    state = take(toy, holds=2)
    state.lost = "an earlier reason"
    for left in (1, 0):
        with pytest.raises(LeaseLostError, match="an earlier reason"):
            run_release(toy, state)
        assert state.count == left
    assert len(toy.session.holds) == 0


def test_release_waits_for_nodes_no_longer_than_a_round(toy):
    state = take(toy, lease=2.0)
    run_release(toy, state, ("ask lock_release", toy.answers(*[HAD] * 5)))
    assert toy.asked[-1].timeout == pytest.approx(0.1)


def test_release_interrupted_is_told_all_the_same(toy):
    state = take(toy)
    script = [("ask lock_release", toy.answers(*[HAD] * 5))]
    cleanup = toy.interrupt(release(toy.session, state, toy.now), script, 0)
    assert cleanup[0] == "tell lock_abandon, leave", "passes the wake-up on that the release would have been"
    assert toy.told[-1].owed_to == ALL
    assert toy.told[-1].owed_until == pytest.approx(1000.0 + LEASE)
    assert len(toy.session.holds) == 0
    assert not state.live


def test_release_of_one_of_several_holds_interrupted_keeps_the_others(toy):
    state = take(toy, holds=2)
    cleanup = toy.interrupt(release(toy.session, state, toy.now), [("ask lock_release", won(toy))], 0)
    assert cleanup == []
    assert (state.count, state.live, state.lost) == (1, True, None)
    assert list(toy.session.holds) == [state]


def watch(toy, state, timeout=None):
    """Begin to sleep until the hold ends, in another thread as it were."""
    return toy.start(wait_end(state, lambda: False, toy.now, timeout))


def test_release_wakes_who_sleeps_until_the_end(toy):
    state = take(toy)
    watch(toy, state)
    run_release(toy, state, ("ask lock_release", toy.answers(*[HAD] * 5)), "signal")
    assert toy.effects[-1].key == state.end_key
    assert toy.effects[-1].lane == toy.owner.lane


def test_release_of_one_of_several_holds_lets_sleepers_look_again(toy):
    """One of them may wait for the end of this very acquisition."""
    state = take(toy, holds=2)
    watch(toy, state)
    run_release(toy, state, ("ask lock_release", toy.answers(*[HAD] * 5)), "signal")


def test_release_interrupted_wakes_who_sleeps_until_the_end(toy):
    state = take(toy)
    watch(toy, state)
    cleanup = toy.interrupt(release(toy.session, state, toy.now), [("ask lock_release", won(toy))], 0)
    assert cleanup == ["tell lock_abandon, leave", "signal"]


# Check and extend.


def test_check_of_a_valid_hold_does_nothing(toy):
    state = take(toy)
    toy.play(check(state, state.valid_until - 0.001))
    assert state.lost is None


def test_check_tells_an_expired_hold_lost_once(toy):
    state = take(toy)
    with pytest.raises(LeaseLostError) as caught:
        toy.play(check(state, state.valid_until), "tell lock_abandon", "notify HoldLost")
    assert caught.value.name == "x"
    assert "'x'" in str(caught.value)
    with pytest.raises(LeaseLostError):
        toy.play(check(state, 1000.0))


def test_extend_lengthens_now_on_a_quorum(toy):
    state = take(toy, lease=2.0)
    toy.now = 1001.0
    toy.play(extend(toy.session, state, 60.0, toy.now), ("ask lock_renew", toy.answers([2], [2], [2], "down", "down")))
    assert toy.commands[-1].args == (toy.owner.wire, 1, 60_000)
    assert state.valid_until == pytest.approx(1001.0 + 60.0 - 0.602)
    assert not state.renewed, "an extension is no renewal"
    assert state.lease == 2.0


def test_extend_without_a_lease_takes_the_holds_own(toy):
    state = take(toy, lease=2.0)
    toy.now = 1001.0
    toy.play(extend(toy.session, state, None, toy.now), ("ask lock_renew", toy.answers(*[[2]] * 5)))
    assert toy.commands[-1].args[2] == 2_000
    assert state.valid_until == pytest.approx(1001.0 + 2.0 - 0.022)


def test_extend_never_shortens(toy):
    state = take(toy)
    before = state.valid_until
    toy.play(extend(toy.session, state, 1.0, toy.now), ("ask lock_renew", toy.answers(*[[2]] * 5)))
    assert state.valid_until == before


def test_extend_without_a_quorum_leaves_the_hold_as_it_was(toy):
    state = take(toy)
    before = state.valid_until
    with pytest.raises(QuorumError) as caught:
        toy.play(
            extend(toy.session, state, 60.0, toy.now), ("ask lock_renew", toy.answers([2], [2], "down", "down", "down"))
        )
    assert len(caught.value.votes) == 5
    assert state.valid_until == before
    assert state.lost is None


def test_extend_of_a_hold_that_nodes_no_longer_keep_is_a_loss(toy):
    state = take(toy)
    with pytest.raises(LeaseLostError):
        toy.play(
            extend(toy.session, state, 60.0, toy.now),
            ("ask lock_renew", toy.answers([0], [1], [-1], [2], [2])),
            "tell lock_abandon",
            "notify HoldLost",
        )
    assert not state.valid(toy.now)


@pytest.mark.parametrize("answer", [[2], [0], "down"])
def test_extend_of_a_hold_given_back_meanwhile_says_so(toy, answer):
    """By another thread, through its Hold: that is no outage, and no loss."""
    state = take(toy)
    answers = toy.answers(*[answer] * 5, meanwhile=lambda: given_back(toy, state))
    with pytest.raises(NotOwnedError):
        toy.play(extend(toy.session, state, 60.0, toy.now), ("ask lock_renew", answers))
    assert state.lost is None


def test_extend_of_an_expired_hold_asks_nobody(toy):
    state = take(toy)
    with pytest.raises(LeaseLostError):
        toy.play(extend(toy.session, state, 60.0, state.valid_until), "tell lock_abandon", "notify HoldLost")


def test_extend_wakes_the_watchdog_when_its_look_is_due_earlier(toy):
    state = take(toy)
    toy.session.holds.watched_until = 1010.0
    alarms = toy.alarms
    toy.play(extend(toy.session, state, 3.0, toy.now), ("ask lock_renew", toy.answers(*[[2]] * 5)))
    assert state.due < 1010.0
    assert toy.alarms == alarms + 1


# Farewell.


def test_farewell_gives_back_what_every_owner_holds(toy):
    states = [take(toy), take(toy, owner=toy.new_owner(), holds=3)]
    toy.play(farewell(toy.session), "tell lock_release", "tell lock_release")
    assert [tell.command.args for tell in toy.told] == [(state.owner.wire, 0, toy.keys.channel) for state in states]
    assert [tell.lane for tell in toy.told] == [state.owner.lane for state in states]
    assert all(tell.owed_to == ALL for tell in toy.told)
    assert len(toy.session.holds) == 0
    assert not any(state.live for state in states)


def test_farewell_says_nothing_of_what_was_lost(toy):
    state = take(toy)
    state.lost = "reason"
    toy.play(farewell(toy.session))
    assert len(toy.session.holds) == 0


def test_farewell_wakes_who_sleeps_until_the_end(toy):
    state = take(toy)
    watch(toy, state)
    toy.play(farewell(toy.session), "tell lock_release", "signal")


# Replies of no known shape.

GARBAGE = [
    b"OK",
    b"",
    [],
    [b"1"],
    [[]],
    {},
    1.5,
    [None],
    [1, 2, 3],
    True,
    ["x", "y"],
    b"\x02",
    {1: 2},
    [5, 7],
    [5, [1]],
]


@pytest.mark.parametrize("what", ["acquire", "reenter", "release", "renew"])
def test_garbage_is_a_failed_vote_and_no_answer(make_toy, what):
    """An answer that no script of ours gives tells nothing: neither that we hold it nor that we don't."""
    believed = []
    for garbage in GARBAGE:
        toy = make_toy()
        state = None if what == "acquire" else take(toy)
        steps = {
            "acquire": lambda toy, state: acquire(toy.session, toy.demand(timeout=0.0), toy.now),
            "reenter": lambda toy, state: acquire(toy.session, toy.demand(timeout=0.0), toy.now),
            "release": lambda toy, state: release(toy.session, state, toy.now),
            "renew": lambda toy, state: extend(toy.session, state, None, toy.now),
        }[what](toy, state)
        tally = toy.perform(toy.start(steps), toy.answers(*[garbage] * 5))
        if not tally.without_quorum:
            believed.append((garbage, tally.choices[0]))
    assert believed == []
