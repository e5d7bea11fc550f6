"""Code that all synchronizers with leases share: rolling back, losing, and sleeping until the end."""

import pytest

from redsync._core.events import HoldLost
from redsync._core.timing import milliseconds
from redsync._protocols.holding import release
from redsync._protocols.lease import lose, rollback, rollback_of, tell_end, wait_end
from redsync._protocols.lock import LOCK
from redsync._protocols.mutex import MUTEX

ALL = 0b11111
LEASE = 30.0
LOSS = ("tell lock_abandon, leave", "notify HoldLost")


def sleep(toy, state, timeout=None, released=lambda: False):
    """Sleep until the hold ends, like `Hold.wait_lost`."""
    return wait_end(state, released, toy.now, timeout)


# Helpers.


@pytest.mark.parametrize(("seconds", "expected"), [(30.0, 30_000), (0.0001, 1), (1.0001, 1_001), (0.0, 0), (2, 2_000)])
def test_milliseconds_are_whole_and_rounded_up(seconds, expected):
    result = milliseconds(seconds)
    assert result == expected
    assert type(result) is int


@pytest.mark.parametrize("kind", [LOCK, MUTEX])
@pytest.mark.parametrize("leave", [False, True])
def test_rollback_is_for_the_owner_and_all_keys(toy, kind, leave):
    effect = rollback(kind, toy.keys, toy.owner, toy.owner.claim(1), leave=leave, owed_to=0b101, owed_until=7.0)
    assert effect.command.script is kind.abandon
    assert effect.command.keys == toy.keys.all
    assert effect.command.args == (toy.owner.claim(1), int(leave))
    assert (effect.owner, effect.owed_to, effect.owed_until) == (toy.owner, 0b101, 7.0)


@pytest.mark.parametrize("leave", [False, True])
def test_rollback_of_a_hold_reaches_all_nodes_that_may_keep_the_claim(toy, leave):
    state = toy.take(kind=MUTEX)
    state.note_sent(ALL, 1044.0)
    expected = rollback(MUTEX, toy.keys, toy.owner, toy.owner.claim(1), leave=leave, owed_to=ALL, owed_until=1044.0)
    assert rollback_of(state, leave=leave) == expected


def test_tell_end_signals_only_if_a_caller_sleeps(toy):
    state = toy.take()
    toy.play(tell_end(state))
    toy.start(sleep(toy, state))
    toy.play(tell_end(state), "signal")
    assert toy.effects[-1].key == state.end_key


# Losing.


def test_lose_ends_a_hold_once_on_all_nodes_and_reports_it(toy):
    state = toy.take()
    toy.play(lose(state, "a reason"), *LOSS)
    assert state.lost == "a reason"
    assert not state.valid(0.0)
    (undo,) = toy.told
    assert undo.command.args == (toy.owner.claim(1), 1)
    assert undo.owed_to == ALL
    assert undo.owed_until == pytest.approx(1000.0 + LEASE)
    assert toy.events == [HoldLost("x", str(toy.owner), "a reason", state)]
    assert list(toy.session.holds) == [state], "its owner does not know yet"
    toy.play(lose(state, "another reason"))
    assert state.lost == "a reason"


def test_lose_leaves_a_released_hold_alone(toy):
    state = toy.take()
    toy.give_back(state)
    toy.play(lose(state, "a reason"))
    assert state.lost is None


def test_loss_is_reported_even_after_an_interruption(make_toy):
    """A loss is loud: once `lost` is set, nothing else would report it."""
    for at, cleanup in [(0, ["signal", "notify HoldLost"]), (1, ["notify HoldLost"])]:
        toy = make_toy()
        state = toy.take()
        toy.start(sleep(toy, state, None))
        script = ["tell lock_abandon, leave", "signal", "notify HoldLost"]
        done = toy.interrupt(lose(state, "a reason"), script, at)
        assert [step for step in done if not step.startswith("tell")] == cleanup


# Waiting for the end.


def test_wait_end_sleeps_until_the_validity_is_over_and_reports_the_loss(toy):
    state = toy.take(lease=2.0)
    end = state.valid_until
    toy.play(sleep(toy, state, None), ("wait for end", toy.slept()), *LOSS)
    assert toy.waits[0].until == end
    assert toy.waits[0].key == state.end_key
    assert state.lost
    assert state.watchers == 0


def test_wait_end_returns_at_its_timeout(toy):
    state = toy.take()
    toy.play(sleep(toy, state, 0.5), ("wait for end", toy.slept()))
    assert toy.now == pytest.approx(1000.501)
    assert state.lost is None
    assert state.watchers == 0


def test_wait_end_goes_on_while_the_hold_is_renewed(toy):
    state = toy.take()

    def renewed():
        state.lengthen(2000.0)

    toy.play(sleep(toy, state, 60.0), ("wait for end", toy.slept(meanwhile=renewed)), ("wait for end", toy.slept()))
    assert toy.now == pytest.approx(1060.001)


def test_wait_end_returns_when_the_hold_is_released(toy):
    state = toy.take()

    def released():
        toy.play(release(toy.session, state, toy.now), ("ask lock_release", toy.all_say(1)), "signal")

    toy.play(sleep(toy, state, None), ("wait for end", toy.slept(0.1, meanwhile=released)))
    assert state.lost is None


def test_wait_end_returns_when_this_acquisition_is_released_although_others_are_not(toy):
    state, done = toy.take(holds=2), []

    def released():
        done.append(True)
        toy.play(release(toy.session, state, toy.now), ("ask lock_release", toy.all_say(1)), "signal")

    steps = sleep(toy, state, released=lambda: bool(done))
    toy.play(steps, ("wait for end", toy.slept(0.1, meanwhile=released)))
    assert state.valid(toy.now)
    assert state.lost is None


def test_wait_end_goes_on_when_another_acquisition_is_released(toy):
    state = toy.take(holds=2)

    def released():
        toy.play(release(toy.session, state, toy.now), ("ask lock_release", toy.all_say(1)), "signal")

    steps = sleep(toy, state, 0.5)
    toy.play(steps, ("wait for end", toy.slept(0.1, meanwhile=released)), ("wait for end", toy.slept()))
    assert state.watchers == 0


def test_wait_end_of_a_released_acquisition_does_not_report_the_others_loss(toy):
    """Their holders learn of it from the watchdog, or when they use them."""
    state = toy.take(holds=2, lease=2.0)
    toy.now = state.valid_until
    toy.play(sleep(toy, state, released=lambda: True))
    assert state.lost is None


def test_wait_end_of_an_ended_hold_does_not_sleep(toy):
    lost, released = toy.take("a"), toy.take("b")
    toy.play(lose(lost, "a reason"), *LOSS)
    toy.give_back(released)
    for state in (lost, released):
        toy.play(sleep(toy, state, None))
    assert toy.waits == []


def test_wait_end_looks_again_once_the_driver_listens(toy):
    """A signal before that instant is not heard."""
    state = toy.take()
    effect = toy.start(sleep(toy, state, None))
    assert effect.unless() is False
    state.lost = "a reason"
    assert effect.unless() is True
    state.lost, state.live = None, False
    assert effect.unless() is True


def test_wait_end_interrupted_leaves_no_watcher(toy):
    state = toy.take()
    toy.interrupt(sleep(toy, state, None), [("wait for end", toy.slept())], 0)
    assert state.watchers == 0
    toy.give_back(state)


def test_all_sleepers_are_woken_by_one_signal(toy):
    state = toy.take()
    for _ in range(3):
        toy.start(sleep(toy, state, None))
    assert state.watchers == 3
    toy.play(lose(state, "a reason"), "tell lock_abandon, leave", "signal", "notify HoldLost")
