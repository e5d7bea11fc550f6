"""The mutex: one request's claim, possessed by an object, never entered twice."""

import pytest

from redsync._protocols.holding import lose, release
from redsync._protocols.mutex import MUTEX, Possession, acquire
from redsync.exceptions import LeaseLostError
from tests.support.toy_replies import LOSS

NEW = 1


@pytest.fixture
def possession():
    return Possession()


def acquiring(toy, possession, *, acquirer=None, **fields):
    """Return the steps of an acquire: each request has its own owner, as from the facade."""
    request = toy.request(**{"kind": MUTEX, "owner": toy.new_owner(), **fields})
    return acquire(toy.session, request, toy.now, possession, acquirer or toy.owner)


def take(toy, possession, **fields):
    return toy.play(acquiring(toy, possession, **fields), ("ask lock_acquire", toy.all_say(NEW)))


def busy(toy, by=b"285475da-9152-4c83-822a-67ee2f116a79:1:1"):
    return toy.all_say([20_000, by, 0])


# Possession.


def test_possession_outlasts_a_loss_until_the_release(toy, possession):
    """The caller of the release has to learn of the loss."""
    state = take(toy, possession)
    toy.play(lose(state, "a reason"), *LOSS)
    with pytest.raises(LeaseLostError, match="a reason"):
        toy.play(acquiring(toy, possession))
    assert possession.state is state, "it has yet to be released"
    with pytest.raises(LeaseLostError):
        toy.play(release(toy.session, state, toy.now))
    assert not possession.is_held
    assert take(toy, possession).valid(toy.now)


# Not reentrant.


def test_second_acquire_makes_a_new_ask_and_is_refused_by_the_first(toy, possession):
    state = take(toy, possession)
    steps = acquiring(toy, possession, timeout=0.0)
    assert toy.play(steps, ("ask lock_acquire", busy(toy)), "tell lock_release") is None
    first, second = toy.commands[0], toy.commands[1]
    assert first.args[0] != second.args[0]
    assert second.args[1] == b"", "there is no count"
    assert toy.told[-1].command.args[0] == second.args[0], "the first claim is not rolled back"
    assert possession.state is state
    assert (state.count, state.live) == (1, True)


def waiting_while(toy, possession, meanwhile=None, *, handed=0, **fields):
    """Return the steps of an acquire of the same object by another thread until it wins or gets it by hand-over."""
    return (
        acquiring(toy, possession, **fields),
        ("ask lock_acquire", busy(toy)),
        ("ask lock_acquire for a place", busy(toy)),
        ("wait for wake-up", toy.slept(0.9, handed=handed, meanwhile=meanwhile)),
        *([] if handed else [("ask lock_acquire for a place", toy.all_say(NEW))]),
    )


@pytest.mark.parametrize("handed", [0, 0b00111])
def test_second_acquire_waits_until_another_thread_has_released_the_first(toy, possession, handed):
    first, acquirer = take(toy, possession), toy.new_owner()
    second = toy.play(
        *waiting_while(toy, possession, lambda: toy.give_back(first), handed=handed, acquirer=acquirer),
    )
    assert (possession.state, possession.acquired_by) == (second, acquirer)
    assert second.owner is not acquirer
    assert list(toy.session.holds) == [second]


# Lost and not released.


def test_acquire_after_an_unnoticed_loss_raises_it(toy, possession):
    state = take(toy, possession)
    toy.now = state.valid_until
    with pytest.raises(LeaseLostError, match="ended without a renewal"):
        toy.play(acquiring(toy, possession), *LOSS)
    assert state.lost
    assert toy.events[-1].state is state


@pytest.mark.parametrize("handed", [0, 0b11111])
def test_acquire_that_waited_while_the_object_lost_it_releases_the_new_claim(toy, possession, handed):
    """Else the holder of the lost one would release the claim that another thread of the same object now has."""
    first = take(toy, possession)
    lost = lambda: toy.play(lose(first, "a reason"), *LOSS)  # noqa: E731
    with pytest.raises(LeaseLostError, match="a reason"):
        toy.play(*waiting_while(toy, possession, lost, handed=handed), "tell lock_release")
    assert toy.requested.state is None
    assert possession.state is first
    assert list(toy.session.holds) == [first], "it has yet to be released"


def test_acquire_that_waited_during_an_unnoticed_loss_raises_it(toy, possession):
    first = take(toy, possession, lease=0.8)
    with pytest.raises(LeaseLostError):
        toy.play(*waiting_while(toy, possession), "tell lock_release", *LOSS)
    assert first.lost
    assert toy.events[-1].state is first


def test_acquire_interrupted_while_it_releases_the_new_claim_leaves_nothing(toy, possession):
    first = take(toy, possession)
    lost = lambda: toy.play(lose(first, "a reason"), *LOSS)  # noqa: E731
    steps, *script = waiting_while(toy, possession, lost)
    assert toy.interrupt(steps, [*script, "tell lock_release"], len(script)) == ["tell lock_release"]
    assert list(toy.session.holds) == [first]
