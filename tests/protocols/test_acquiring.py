"""A new claim: won, lost, or won too late; with a driver made of paper."""

import pytest

from redsync._core.quorum import Choice
from redsync.exceptions import QuorumError
from tests.support.toy_replies import NEW, WRONG_TYPE, A, B, busy, held, won

ALL = 0b11111
LEASE, DRIFT = 30.0, 0.302


# Won.


def test_acquire_asks_for_a_new_claim(toy):
    toy.take()
    (effect,) = toy.effects
    assert effect.command.script.name == "lock_acquire"
    assert effect.command.keys == (toy.keys.lock,)
    assert effect.command.args == (toy.owner.claim(1), 1, 30_000, 0)
    assert (effect.owner, effect.timeout) == (toy.owner, 0.25)


def test_acquire_is_won_by_a_quorum_of_granted(toy):
    state = toy.acquire(("ask lock_acquire", toy.answers(NEW, "down", NEW, held(), NEW)))
    assert state.valid_until == pytest.approx(1000.0 + LEASE - DRIFT)
    assert state.renew_at == pytest.approx(1000.5), "between one and two timeouts later"
    assert (state.count, state.lease, state.live, state.lost) == (1, LEASE, True, None)
    assert list(toy.session.holds) == [state]
    assert toy.owner.holds[toy.keys.lock] is state
    assert toy.alarms == 1


@pytest.mark.parametrize("n", range(1, 8))
def test_acquire_needs_more_than_half_of_any_number_of_nodes(make_toy, n):
    quorum = n // 2 + 1
    toy = make_toy(n)
    assert toy.acquire(("ask lock_acquire", toy.answers(*[NEW] * quorum, *[held()] * (n - quorum))))
    toy = make_toy(n)
    answers = toy.answers(*[NEW] * (quorum - 1), *[held()] * (n - quorum + 1))
    rollback = ["tell lock_abandon"] if quorum > 1 else []
    assert toy.acquire(("ask lock_acquire", answers), *rollback, timeout=0.0) is None
    assert len(toy.session.holds) == 0


def test_hold_that_acquire_returns_is_valid_at_that_instant(toy):
    """Even if max_hold is over before the nodes have answered."""
    late = toy.all_say(NEW, takes=0.2)
    script = [("ask lock_acquire", late), "tell lock_abandon"]
    with pytest.raises(QuorumError):
        toy.acquire(*script, max_hold=0.1, timeout=0.0)
    assert len(toy.session.holds) == 0


# Won too late.


@pytest.mark.parametrize("lateness", [0.0, 0.001, 60.0])
def test_acquire_won_too_late_is_rolled_back_and_not_returned(toy, lateness):
    late = toy.answers(NEW, NEW, NEW, None, None, takes=LEASE - DRIFT + lateness)
    with pytest.raises(QuorumError) as caught:
        toy.acquire(("ask lock_acquire", late), "tell lock_abandon", timeout=0.0)
    assert [vote.choice for vote in caught.value.votes].count(Choice.GRANTED) == 3
    assert "0 of 5 nodes failed" not in str(caught.value)
    assert len(toy.session.holds) == 0
    assert toy.requested.state is None
    assert toy.told[0].deliver_to == ALL


def test_acquire_won_too_late_does_not_blame_foreign_values_on_a_minority(toy):
    late = toy.answers(WRONG_TYPE, NEW, NEW, NEW, NEW, takes=LEASE)
    with pytest.raises(QuorumError):
        toy.acquire(("ask lock_acquire", late), "tell lock_abandon", timeout=0.0)


def test_acquire_won_in_the_last_instant_is_returned(toy):
    just = toy.all_say(NEW, takes=LEASE - DRIFT - 0.001)
    state = toy.acquire(("ask lock_acquire", just), timeout=0.0)
    assert state.valid(toy.now)


def test_acquire_won_too_late_is_tried_again_within_the_timeout(toy):
    state = toy.acquire(
        ("ask lock_acquire", toy.all_say(NEW, takes=LEASE)),
        "tell lock_abandon",
        ("wait", toy.slept()),
        ("ask lock_acquire", won(toy)),
        timeout=100.0,
    )
    assert state.valid_until == pytest.approx(toy.now - 0.001 + LEASE - DRIFT)


# Lost without waiting.


def test_busy_lock_is_none_at_once_without_blocking(toy):
    assert toy.acquire(("ask lock_acquire", busy(toy)), "tell lock_abandon", timeout=0.0) is None
    (rollback,) = toy.told
    assert rollback.command.keys == toy.keys.all
    assert rollback.command.args == (toy.owner.claim(1), 0)
    assert (rollback.owner, rollback.deliver_to) == (toy.owner, ALL)
    assert rollback.deliver_until >= toy.now + LEASE
    assert len(toy.session.holds) == 0


def test_no_quorum_is_an_error_at_once_without_blocking(toy):
    replies = ("connection refused", NEW, "no answer within 0.25 s", "quarantined for 12 s", held())
    with pytest.raises(QuorumError) as caught:
        toy.acquire(("ask lock_acquire", toy.answers(*replies)), "tell lock_abandon", timeout=0.0)
    error = caught.value
    assert error.name == "x"
    assert [vote.node for vote in error.votes] == ["node0", "node1", "node2", "node3", "node4"]
    assert [vote.choice.value for vote in error.votes] == ["failed", "granted", "failed", "failed", "refused"]
    assert "connection refused" in str(error)
    assert "quarantined for 12 s" in str(error)
    assert "'x'" in str(error)
    assert len(toy.session.holds) == 0


@pytest.mark.parametrize(
    "replies",
    [
        ("down", "down", held(), NEW, NEW),
        ("down", held(), held(), held(), "down"),
        (NEW, held(by=A), held(by=B), held(by=B), "down"),
    ],
)
def test_two_failures_of_five_and_split_votes_are_not_an_outage(toy, replies):
    assert toy.acquire(("ask lock_acquire", toy.answers(*replies)), "tell lock_abandon", timeout=0.0) is None
