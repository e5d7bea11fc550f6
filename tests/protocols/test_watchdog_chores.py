"""The watchdog's other work: repairs, releasing for ended owners, announcing; and the shutdown."""

import weakref

import pytest

from redsync._core.client_records import ClientRecord, told_claim
from redsync._core.holds import HoldTable
from redsync._core.observing import HoldOrphaned, HoldsRenewed, WatchdogWoke
from redsync._protocols.holding import lose, wait_end
from redsync._protocols.mutex import MUTEX
from redsync._protocols.watchdog import shutdown
from tests.support.toy_replies import LOSS

NEW = 1
OURS, REPAIRED = 2, 1
ALL = 0b11111
CLIENT = ClientRecord("host", 7, "program", 1.5)


def quiet(toy, *states):
    """Take it that these holds' first renewal, a moment after the grant, is over."""
    for state in states:
        state.renew_at = state.since + 10.0


# First renewals.


def test_first_renewal_repairs_a_hold_on_no_more_than_a_quorum_and_the_next_one_counts(toy):
    state = toy.acquire(("ask lock_acquire", toy.answers(NEW, NEW, NEW, "down", "down")))
    toy.run_watchdog(lambda command: toy.codes(OURS, OURS, OURS, REPAIRED, REPAIRED), sleeps=3)
    assert [tally.sent_at for tally in toy.tallies[1:]] == pytest.approx([1000.5, 1010.5], abs=0.02)
    assert state.valid(toy.now)


@pytest.mark.parametrize("lasts", [29.7, 3.0])
def test_first_renewal_tells_the_share_left_of_what_the_claim_lasts(toy, lasts):
    """A claim handed over lasts only as long as its place in the queue."""
    toy.session.observed = True
    state = toy.take()
    state.valid_until = state.since + lasts
    toy.run_watchdog(lambda command: toy.codes(*[OURS] * 5), sleeps=2)
    (left,) = [event.left[state] for event in toy.events if isinstance(event, HoldsRenewed)]
    assert left == pytest.approx(1 - 0.5 / lasts, abs=0.02)


# Owners that have ended.


@pytest.mark.parametrize("holds", [1, 3])
def test_hold_of_an_ended_owner_is_released_at_once(toy, holds):
    state = toy.take(holds=holds)
    alarms = toy.alarms
    toy.session.holds.orphan(toy.owner)
    assert toy.alarms == alarms + 1
    assert toy.run_watchdog() == ["tell lock_release", "notify HoldOrphaned", "wait"]
    (told,) = toy.told
    assert told.command.args == (toy.owner.claim(1), 0, toy.keys.channel)
    assert (told.owner, told.deliver_to) == (toy.owner, ALL)
    assert toy.events == [HoldOrphaned("x", str(toy.owner))]
    assert len(toy.session.holds) == 0
    assert (state.live, state.count) == (False, 0), "no thread that got the hold object believes in it"


def test_hold_of_an_ended_owner_stays_while_a_with_is_open(toy):
    state, manager = toy.take(holds=3), HoldTable(lambda: None)
    state.entered[object()] = weakref.ref(manager)
    toy.session.holds.orphan(toy.owner)
    assert toy.run_watchdog() == ["wait"]
    assert (state.live, state.count) == (True, 1), "what `acquire` took has ended"
    del manager
    toy.now = state.renew_at
    assert toy.run_watchdog() == ["tell lock_release", "notify HoldOrphaned", "wait"]


def test_all_holds_of_ended_owners_are_released_and_no_others(toy):
    other, third = toy.new_owner(), toy.new_owner()
    kept = toy.take("b", owner=other)
    for name, owner in ("a", toy.owner), ("b", toy.owner), ("c", third):
        toy.take(name, owner=owner)
    quiet(toy, kept)
    toy.session.holds.orphan(toy.owner)
    toy.session.holds.orphan(third)
    toy.run_watchdog()
    ended = {(event.name, event.owner) for event in toy.events}
    assert ended == {("a", str(toy.owner)), ("b", str(toy.owner)), ("c", str(third))}
    assert list(toy.session.holds) == [kept]
    assert kept.live


def test_lost_hold_of_an_ended_owner_is_dropped_silently(toy):
    """Its loss was reported, and its claims dropped, when it was lost."""
    state = toy.take()
    toy.play(lose(state, "a reason"), *LOSS)
    toy.session.holds.orphan(toy.owner)
    assert toy.run_watchdog() == ["wait"]
    assert len(toy.session.holds) == 0
    assert not state.live


def test_hold_of_an_ended_owner_is_released_before_any_loss_or_renewal(toy):
    state = toy.take()
    toy.now = state.valid_until
    toy.session.holds.orphan(toy.owner)
    assert toy.run_watchdog() == ["tell lock_release", "notify HoldOrphaned", "wait"]


# Announcing the client.


def test_client_is_announced_at_once_and_every_20_seconds(make_toy):
    toy = make_toy(client=CLIENT)
    assert toy.run_watchdog(sleeps=4) == ["tell client_announce", "wait"] * 4
    assert [wait.until for wait in toy.waits] == [1020.0, 1040.0, 1060.0, 1080.0]
    told = toy.told[0]
    assert told.command[1:] == ((b"redsync:client:toy",), (CLIENT.pack(), 65_000))
    assert told.deliver_to == 0, "a node out of reach would count it among its pending releases, and get every one"


def test_watchdog_with_more_than_one_command_to_send_is_not_late(toy):
    toy.session.observed = True
    toy.take("a")
    toy.take("b", kind=MUTEX)
    assert toy.run_watchdog(sleeps=2)[-1] == "wait"
    lags = [event.lag for event in toy.events if isinstance(event, WatchdogWoke)]
    assert lags == [0.0], "it slept once"


def test_announcement_tells_since_when_the_oldest_holds_last(make_toy):
    toy = make_toy(client=CLIENT)
    toy.session.epoch = 4000.0
    first, second = toy.take("a"), toy.take("b")
    toy.now += 1.5
    toy.take("young")
    lost = toy.take("lost")
    lost.lost = "in a test"
    for state in (first, second):
        quiet(toy, state)
    toy.run_watchdog()
    told = ClientRecord.unpack(toy.told[0].command.args[0])
    assert told.held == tuple((told_claim(each.claim), round(4000.0 + each.since, 3)) for each in (first, second))
    assert first.since == 1000.0
    assert told._replace(held=()) == CLIENT


def test_client_is_not_announced_again_when_the_watchdog_is_called_in_between(make_toy):
    toy = make_toy(client=CLIENT)
    state = toy.take()
    quiet(toy, state)
    began = toy.now
    steps = toy.run_watchdog(sleeps=3)
    announcement, renewal = "tell client_announce", "ask lock_renew"
    assert steps == [announcement, "wait", renewal, "wait", renewal, announcement, "wait"]
    assert toy.waits[1].until == pytest.approx(began + 20.0, abs=0.1)


def test_client_that_was_suspended_is_announced_once_and_not_for_each_missed_time(make_toy):
    toy = make_toy(client=CLIENT)
    waits = []

    def answer(described, effect):
        if described != "wait":
            return None
        waits.append(effect.until)
        if len(waits) == 1:
            toy.now += 1000.0
        return toy.slept() if len(waits) < 3 else KeyboardInterrupt()

    with pytest.raises(KeyboardInterrupt):
        toy.drive(toy.watchdog(), answer)
    assert len(toy.told) == 3
    assert waits == [1020.0, 2020.0, 2040.0]


# The shutdown.


def test_shutdown_releases_the_holds_of_all_owners_and_withdraws_the_announcement_last(make_toy):
    """As long as there are holds, people can see whose they are."""
    toy = make_toy(client=CLIENT)
    states = [toy.take(), toy.take(owner=toy.new_owner(), holds=3)]
    toy.take("lost").lost = "a reason"
    toy.play(shutdown(toy.session, 0.0), "tell lock_release", "tell lock_release", "tell client_announce")
    *released, withdrawn = toy.told
    assert [tell.command.args for tell in released] == [(state.claim, 0, toy.keys.channel) for state in states]
    assert [tell.owner for tell in released] == [state.owner for state in states]
    assert all(tell.deliver_to == ALL for tell in released)
    assert (withdrawn.command.keys, withdrawn.command.args) == ((b"redsync:client:toy",), (b"", 0))
    assert withdrawn.deliver_to == 0, "it expires on an absent node"
    assert len(toy.session.holds) == 0
    assert not any(state.live for state in states)


@pytest.mark.parametrize("at", range(4))
def test_interrupted_shutdown_releases_the_rest_and_withdraws(make_toy, at):
    """No later call does it. The command under way at the interruption may not have been sent."""
    toy = make_toy(client=CLIENT)
    states = [toy.take(name) for name in ("a", "b", "c")]
    script = [*["tell lock_release"] * 3, "tell client_announce"]
    interrupted = ["tell lock_release"] if at < 3 else []
    steps = toy.interrupt(shutdown(toy.session, 0.0), script, at)
    assert steps == [*interrupted, *script[at + 1 : 3], "tell client_announce"]
    dropped = [told.command.keys[0] for told in toy.told[at + 1 : -1]]
    assert dropped == [state.keys.lock for state in states[at:]]
    assert len(toy.session.holds) == 0
    assert not any(state.live for state in states)


def test_interrupted_shutdown_wakes_sleepers_that_wait_for_the_end(toy):
    for name in ("a", "b"):
        toy.start(wait_end(toy.take(name), lambda: False, toy.now, None))
    script = ["tell lock_release", "signal", "tell lock_release", "signal"]
    after = ["tell lock_release", "signal", "tell lock_release", "signal"]
    assert toy.interrupt(shutdown(toy.session, 0.0), script, at=0) == after
