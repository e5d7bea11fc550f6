"""Reports to observers about acquires, holds, renewals and rate limiters, made around protocols and nowhere else."""

from collections import deque

import pytest

from redsync import HoldOrphaned, LeaseLostError, NodeChanged, QuorumError
from redsync._core.observing import AcquireEnded, HoldEnded, Observer, ObserverSubscription
from redsync._protocols.holding import give_back, lose, release
from redsync._protocols.lock import acquire
from redsync._protocols.observed import observed
from tests.support.toy_replies import LOSS, SPLIT, busy

NEW = 1


class Recorder(Observer):
    """Keeps all reports."""

    def __init__(self):
        self.events = []

    def listen(self, now):
        return ObserverSubscription(self.events.append, deque())

    def of(self, kind):
        return [event for event in self.events if isinstance(event, kind)]


@pytest.fixture
def recorder():
    return Recorder()


@pytest.fixture
def toy(toy):
    """A client that is observed."""
    toy.session.observed = True
    return toy


def test_observed_acquire_reports_its_outcome_after_everything_else(toy):
    steps = observed(toy.session, toy.request(), toy.now, acquire, kind="lock")
    state = toy.play(steps, ("ask lock_acquire", toy.all_say(NEW)), "notify AcquireEnded")
    (ended,) = toy.events
    assert (ended.outcome, ended.hold, ended.error) == ("won", state, "")
    assert (ended.record.kind, ended.record.counts, ended.record.wanted) == ("lock", {"round": 1}, 1)
    assert toy.session.records == {}


def test_observed_acquire_that_fails_reports_it_and_raises(toy):
    steps = observed(toy.session, toy.request(timeout=0.0), toy.now, acquire, kind="lock")
    with pytest.raises(QuorumError):
        toy.play(steps, ("ask lock_acquire", toy.all_say(None)), "tell lock_release", "notify AcquireEnded")
    (ended,) = toy.events
    assert (ended.outcome, ended.hold, ended.error) == ("no_quorum", None, "QuorumError")


def test_record_of_a_wait_tells_what_happened_in_it(toy):
    steps = observed(toy.session, toy.request(), toy.now, acquire, kind="lock")
    toy.play(
        steps,
        ("ask lock_acquire", toy.answers(*SPLIT)),
        "tell lock_release, stay",
        ("wait", toy.slept()),
        ("ask lock_acquire for a place", busy(toy)),
        ("wait for wake-up", toy.slept(0.05, handed=0b11111)),
        "notify AcquireEnded",
    )
    (ended,) = toy.events
    happened = ["round", "split", "round", "queued", "woken", "handed over"]
    assert [step.what for step in ended.record.steps] == happened
    assert (ended.outcome, ended.record.counts["split"], ended.record.counts["handed over"]) == ("won", 1, 1)
    assert toy.session.records == {}


@pytest.mark.parametrize("how", ["by its owner", "by the client"])
def test_end_of_a_hold_is_reported_once_it_has_ended(toy, how):
    state = toy.take()
    if how == "by its owner":
        steps, script = release(toy.session, state, toy.now), ("ask lock_release", toy.all_say(1))
    else:
        steps, script = give_back(toy.session, state), "tell lock_release"
    toy.play(steps, script, "notify HoldEnded")
    assert toy.events == [HoldEnded(state)]


def test_release_of_one_of_several_holds_is_not_an_end(toy):
    state = toy.take(holds=2)
    toy.play(release(toy.session, state, toy.now), "tell lock_release")
    assert toy.events == []


def test_re_entry_is_an_acquire_without_a_round(toy):
    state = toy.take()
    steps = observed(toy.session, toy.request(), toy.now, acquire, kind="lock")
    toy.play(steps, "tell lock_release", "notify AcquireEnded")
    (ended,) = toy.events
    assert (ended.outcome, ended.hold) == ("won", state)


def test_observers_that_keep_a_released_hold_keep_no_callback_and_so_no_client(toy):
    state = toy.take()
    state.on_lost.append(print)
    toy.play(release(toy.session, state, toy.now), ("ask lock_release", toy.all_say(1)), "notify HoldEnded")
    assert state.on_lost == []
    lost = toy.take(on_lost=print)
    toy.play(lose(lost, "a reason"), *LOSS)
    with pytest.raises(LeaseLostError):
        toy.play(release(toy.session, lost, toy.now), "notify HoldEnded")
    assert lost.on_lost == [print], "it may have yet to be called"


# On real nodes; `metrics` has the reports of acquires, renewals, losses, nodes and limiters.


@pytest.mark.usefixtures("all_nodes_met")
def test_observer_learns_of_orphans_and_of_releases_at_the_end_of_the_client(make_client, other, recorder, eventually):
    client = make_client(listeners=[recorder])
    other.do(client.get_lock("x").acquire)
    other.end()
    eventually(lambda: recorder.of(HoldOrphaned))
    client.get_lock("y").acquire()
    client.close()
    assert [event.hold.name for event in recorder.of(HoldEnded)] == ["x", "y"]


@pytest.mark.usefixtures("all_nodes_met")
def test_parts_of_a_multi_lock_are_reported_one_by_one(make_client, recorder):
    client = make_client(listeners=[recorder])
    with client.get_multi_lock(client.get_lock("a"), client.get_mutex("b")):
        pass
    assert [(e.record.kind, e.record.name) for e in recorder.of(AcquireEnded)] == [("lock", "a"), ("mutex", "b")]
    assert len(recorder.of(HoldEnded)) == 2


def test_plain_listener_gets_no_details_and_causes_none(make_client):
    told = []
    client = make_client(listeners=[told.append])
    with client.get_lock("x"):
        pass
    assert not client.runner.session.observed
    assert [event for event in told if not isinstance(event, NodeChanged)] == []
