"""Having a hold: releasing it, checking it, losing it, and sleeping until its end."""

import contextlib

import pytest

from redsync._core.observing import HoldLost
from redsync._core.timing import milliseconds
from redsync._protocols.holding import check, give_back, lose, release, wait_end
from redsync._protocols.lock import acquire
from redsync._protocols.renewal import extend, renew
from redsync.exceptions import LeaseLostError, NotOwnedError
from tests.support.injection import Interruption
from tests.support.toy_replies import LOSS

NEW = 1
HAD, HAD_NOT = 1, 0
OURS = 2
ALL = 0b11111
LEASE = 30.0


@pytest.fixture
def state(toy):
    """A hold, which all nodes keep."""
    return toy.take()


# Release.


def run_release(toy, state, *script, **options):
    return toy.play(release(toy.session, state, toy.now, **options), *script)


@pytest.mark.parametrize(("given_back", "left"), [(1, 2), (2, 1), (3, 0)])
def test_release_of_several_acquisitions_tells_nodes_once_and_waits_for_them_if_none_is_left(toy, given_back, left):
    state = toy.take(holds=3)
    run_release(toy, state, "tell lock_release" if left else ("ask lock_release", toy.all_say(HAD)), holds=given_back)
    assert toy.commands[-1].keys == toy.keys.all
    assert toy.commands[-1].args == (toy.owner.claim(1), left, b"redisson_lock__channel:{redsync:x}")
    assert toy.effects[-1].owner == toy.owner
    assert (state.count, state.live, state.lost) == (left, left > 0, None)
    assert list(toy.session.holds) == ([state] if left else [])


def test_release_is_pending_for_all_nodes_that_may_keep_the_claim(toy):
    state = toy.acquire(("ask lock_acquire", toy.answers(NEW, NEW, NEW, "down", None, sent=0b10111)))
    run_release(toy, state, ("ask lock_release", toy.answers(HAD, HAD, HAD, "down", "down")))
    assert toy.asked[-1].deliver_to == 0b10111


@pytest.mark.parametrize(("held", "given_back"), [(1, 2), (2, 3)])
def test_release_of_more_than_is_held_changes_nothing(toy, held, given_back):
    state = toy.take(holds=held)
    with pytest.raises(NotOwnedError, match="released already") as caught:
        run_release(toy, state, holds=given_back)
    assert caught.value.name == "x"
    assert (state.count, state.live, state.lost) == (held, True, None)
    assert list(toy.session.holds) == [state]


def test_release_that_finds_the_claim_dropped_by_a_renewal_that_was_under_way_is_no_loss(toy, state):
    """Both go out over different connections, and the renewal ends first: it drops what it may have made again."""
    renewing = renew(toy.session, {state: state.lease})
    renewed = toy.perform(toy.start(renewing), toy.codes(*[OURS] * 5))

    def end_renewal():
        assert toy.begin(renewing.send(renewed)) == "tell lock_release"
        with pytest.raises(StopIteration):
            renewing.send(None)

    run_release(toy, state, ("ask lock_release", toy.all_say(HAD_NOT, meanwhile=end_renewal)))
    assert (state.count, state.lost, toy.events) == (0, None, [])


def test_release_that_nodes_may_have_executed_in_an_interrupted_round_is_no_loss(toy, state):
    releasing = release(toy.session, state, toy.now)
    tally = toy.perform(toy.start(releasing), toy.all_say(HAD_NOT))
    tally.repeated = True
    with pytest.raises(StopIteration):
        releasing.send(tally)
    assert (state.count, state.lost, toy.events) == (0, None, [])


def test_release_of_one_of_several_holds_raises_the_loss_for_each(toy):
    state = toy.take(holds=2)
    toy.now = state.valid_until
    with pytest.raises(LeaseLostError):
        run_release(toy, state, *LOSS)
    assert (state.count, len(toy.session.holds)) == (1, 1)
    with pytest.raises(LeaseLostError, match=state.lost):
        run_release(toy, state)
    assert (state.count, len(toy.session.holds)) == (0, 0)


@pytest.mark.parametrize(
    ("answers", "lost"),
    [
        ((HAD_NOT, HAD, HAD_NOT, HAD, HAD_NOT), True),
        (("down", "down", HAD_NOT, HAD_NOT, HAD_NOT), True),
        ((HAD_NOT, HAD_NOT, HAD_NOT, "down", "down"), True),
        ((HAD_NOT, "down", HAD, "down", HAD_NOT), False),
        ((HAD, HAD_NOT, HAD_NOT, None, None), False),
        ((HAD, HAD, "down", "down", "down"), False),
        (("down", "down", "down", "down", "down"), False),
    ],
)
def test_release_is_a_loss_if_no_quorum_had_us_and_takes_silence_for_no_refusal(toy, state, answers, lost):
    with pytest.raises(LeaseLostError, match="3 of 5 nodes") if lost else contextlib.nullcontext():
        run_release(toy, state, ("ask lock_release", toy.answers(*answers)), *LOSS[1:] * lost)
    assert (state.lost is not None) == lost
    assert toy.events == [HoldLost("x", str(toy.owner), state.lost, state)] * lost
    assert toy.asked[-1].deliver_to == ALL
    assert len(toy.session.holds) == 0


@pytest.mark.parametrize(("early", "lost"), [(0.1, False), (-0.1, True)])
def test_release_with_too_few_nodes_is_a_loss_only_if_it_was_sent_after_the_validity(toy, state, early, lost):
    def answer(described, _):
        if described != "ask lock_release":
            return None
        toy.now = state.valid_until - early
        return toy.all_say("down", takes=0.2)

    with pytest.raises(LeaseLostError, match="before its release") if lost else contextlib.nullcontext():
        toy.drive(release(toy.session, state, toy.now), answer)
    assert (state.lost is not None) == lost


def test_release_waits_for_nodes_no_longer_than_a_round(toy):
    state = toy.take(lease=2.0)
    run_release(toy, state, ("ask lock_release", toy.all_say(HAD)))
    assert toy.asked[-1].timeout == pytest.approx(0.1)


def sleep(toy, state, timeout=None, released=lambda: False):
    """Sleep until the hold ends, like `Hold.wait_lost`, perhaps in another thread."""
    return wait_end(state, released, toy.now, timeout)


def test_interrupted_release_reaches_the_nodes_all_the_same_and_wakes_sleepers(toy, state):
    toy.start(sleep(toy, state))
    script = [("ask lock_release", toy.all_say(HAD))]
    cleanup = toy.interrupt(release(toy.session, state, toy.now), script, 0)
    assert cleanup == ["tell lock_release", "signal"], "a wake-up on the nodes too, as by the release"
    assert toy.told[-1].deliver_to == ALL
    assert len(toy.session.holds) == 0
    assert not state.live


def test_sleeper_wakes_after_the_loss_that_a_release_finds(toy, state):
    """Else it would not know of it yet."""
    toy.start(sleep(toy, state))
    with pytest.raises(LeaseLostError):
        run_release(toy, state, ("ask lock_release", toy.all_say(HAD_NOT)), LOSS[1], "signal")


def test_release_interrupted_while_it_reports_a_loss_ends_the_hold(toy, state):
    toy.now = state.valid_until
    toy.interrupt(release(toy.session, state, toy.now), [LOSS[0]], 0)
    assert list(toy.session.holds) == []


def test_release_that_is_interrupted_late_does_not_touch_a_hold_that_its_owner_acquired_since(toy):
    """Another task releases, and some nodes are slow to answer."""
    old = toy.take()

    def acquire_again():
        new.append(toy.take())
        raise Interruption

    new, script = [], ("ask lock_release", toy.all_say(HAD, meanwhile=acquire_again))
    with pytest.raises(Interruption):
        run_release(toy, old, script, "tell lock_release")
    assert toy.told[-1].command.args[0] == old.claim
    assert toy.owner.holds == {toy.keys.hold: new[0]}
    toy.give_back(new[0])
    assert toy.owner.holds == {}


@pytest.mark.parametrize("holds", [1, 2])
def test_release_wakes_sleepers_that_wait_for_the_end(toy, holds):
    """Of this acquisition, even if it is one of several."""
    state = toy.take(holds=holds)
    toy.start(sleep(toy, state))
    run_release(toy, state, ("ask lock_release", toy.all_say(HAD)) if holds == 1 else "tell lock_release", "signal")
    assert toy.effects[-1].key == state.end_key


# The minimum time of a hold.


def keep(toy, seconds, **fields):
    """Take a hold that is to last for that long at least."""
    state = toy.take(**fields)
    state.keep_until = toy.now + seconds
    return state


def test_last_release_waits_until_the_shortest_time_is_over(toy):
    state = keep(toy, 5.0, holds=2)
    run_release(toy, state, "tell lock_release")
    began = toy.now
    run_release(toy, state, ("wait for end", toy.slept()), ("ask lock_release", toy.all_say(HAD)))
    assert toy.now == pytest.approx(began + 5.0, abs=0.01)
    assert state.count == 0
    assert not state.left


def test_wait_that_could_outlast_the_claim_lengthens_it_first(toy):
    state = keep(toy, 60.0)
    state.may_keep = 0b111
    lengthen = "tell lock_renew"
    toy.interrupt(release(toy.session, state, toy.now), [lengthen, ("wait for end", toy.slept())], 1)
    assert toy.told[0].command.args == (state.claim, 1, milliseconds(state.keep_until - 1000.001))
    assert (state.left, state.count, state.live, state.lost) == (True, 0, False, None)
    assert state.may_keep == ALL
    assert list(toy.session.holds) == []


@pytest.mark.parametrize("hurried", [False, True])
def test_release_that_waits_ends_only_its_own_acquisition_if_the_owner_acquires_again(toy, hurried):
    """Another task releases. Interrupted or hurried, it does not leave what the owner has since."""
    state = keep(toy, 60.0 if hurried else 5.0, on_lost=str)
    state.hurried = hurried

    def answer(_, effect):
        if effect is toy.effects[1]:
            toy.play(acquire(toy.session, toy.request(on_lost=repr), toy.now), "tell lock_release")
            if not hurried:
                raise Interruption

    with contextlib.nullcontext() if hurried else pytest.raises(Interruption):
        toy.drive(release(toy.session, state, toy.now, on_lost=str), answer)
    assert (state.count, state.live, state.left, state.on_lost) == (1, True, False, [repr])
    assert toy.commands[-1].args[:2] == (state.claim, 1)


def test_loss_ends_the_wait(toy):
    state = keep(toy, 5.0)
    taken = (
        "wait for end",
        toy.slept(1.0, meanwhile=lambda: toy.play(lose(state, "taken"), LOSS[0], "signal", LOSS[1])),
    )
    with pytest.raises(LeaseLostError, match="taken"):
        run_release(toy, state, taken)


def test_second_release_during_the_wait_releases_nothing_else(toy):
    state = keep(toy, 5.0)

    def released():
        state.keep_until = toy.now
        toy.play(release(toy.session, state, toy.now), ("ask lock_release", toy.all_say(HAD)), "signal")

    with pytest.raises(NotOwnedError):
        run_release(toy, state, ("wait for end", toy.slept(1.0, meanwhile=released)))


@pytest.mark.parametrize(("now", "left"), [(1004.0, True), (1006.0, False)])
def test_hold_that_is_given_back_early_is_left(toy, now, left):
    state = keep(toy, 5.0)
    toy.play(give_back(toy.session, state, now), *([] if left else ["tell lock_release"]))
    assert (state.left, list(toy.session.holds)) == (left, [])


def test_renewal_under_way_does_not_drop_a_claim_that_is_left(toy):
    state = keep(toy, 5.0)
    state.hurried = True
    leave = toy.codes(*[OURS] * 5, meanwhile=lambda: run_release(toy, state))
    toy.play(renew(toy.session, {state: state.lease}), ("ask lock_renew", leave))
    assert (state.left, state.count, list(toy.session.holds)) == (True, 0, [])


# Check.


@pytest.mark.parametrize(
    ("options", "reason"), [({"max_hold": 5.0}, "max_hold"), ({"lease": 5.0, "max_hold": 5.5}, "without a renewal")]
)
@pytest.mark.parametrize("notice", ["watchdog", "check", "release", "extend", "wait_end"])
def test_reason_for_the_end_does_not_depend_on_who_notices_it(toy, notice, options, reason):
    state = toy.take(**options)
    toy.now = 1006.0
    notices = {
        "watchdog": toy.run_watchdog,
        "check": lambda: toy.play(check(state, toy.now), *LOSS),
        "release": lambda: run_release(toy, state, *LOSS),
        "extend": lambda: toy.play(extend(toy.session, state, 60.0, toy.now), *LOSS),
        "wait_end": lambda: toy.play(wait_end(state, lambda: False, toy.now, None), *LOSS),
    }
    with contextlib.suppress(LeaseLostError):
        notices[notice]()
    assert reason in state.lost


# Losing.


def test_loss_is_reported_even_after_an_interruption(make_toy):
    """A loss is loud: once `lost` is set, nothing else would report it."""
    for at, cleanup in [(0, ["signal", "notify HoldLost"]), (1, ["notify HoldLost"])]:
        toy = make_toy()
        state = toy.take()
        toy.start(sleep(toy, state))
        script = ["tell lock_release", "signal", "notify HoldLost"]
        done = toy.interrupt(lose(state, "a reason"), script, at)
        assert [step for step in done if not step.startswith("tell")] == cleanup


# Waiting for the end.


def test_wait_end_sleeps_until_the_validity_is_over_and_reports_the_loss(toy):
    state = toy.take(lease=2.0)
    end = state.valid_until
    toy.play(sleep(toy, state), ("wait for end", toy.slept()), *LOSS)
    assert toy.waits[0].until == end
    assert toy.waits[0].key == state.end_key
    assert state.lost
    assert state.end_waiters == 0


def test_wait_end_goes_on_while_the_hold_is_renewed(toy, state):
    slept = toy.slept(meanwhile=lambda: setattr(state, "valid_until", 2000.0))
    toy.play(sleep(toy, state, 60.0), ("wait for end", slept), ("wait for end", toy.slept()))
    assert toy.now == pytest.approx(1060.001)


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
        toy.play(sleep(toy, state))
    assert toy.waits == []


def test_wait_end_looks_again_once_the_driver_listens(toy, state):
    """A signal before that instant is not heard."""
    effect = toy.start(sleep(toy, state))
    assert effect.unless() is False
    state.lost = "a reason"
    assert effect.unless() is True
    state.lost, state.live = None, False
    assert effect.unless() is True


def test_one_that_sleeps_until_the_end_is_woken_after_another_gave_up(toy, state):
    patient, hasty = sleep(toy, state), sleep(toy, state, 1.0)
    toy.start(patient)
    toy.play(hasty, ("wait for end", toy.slept()))
    run_release(toy, state, ("ask lock_release", toy.all_say(HAD)), "signal")


def test_wait_end_interrupted_leaves_no_watcher(toy, state):
    toy.interrupt(sleep(toy, state), [("wait for end", toy.slept())], 0)
    assert state.end_waiters == 0
    toy.give_back(state)


# On the wire.


@pytest.mark.parametrize(("seconds", "expected"), [(30.0, 30_000), (0.0001, 1), (1.0001, 1_001), (0.0, 0), (2, 2_000)])
def test_milliseconds_are_whole_and_rounded_up(seconds, expected):
    result = milliseconds(seconds)
    assert (result, type(result)) == (expected, int)
