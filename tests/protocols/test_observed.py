"""Reports to observers about acquires, holds, renewals and rate limiters, made around protocols and nowhere else."""

from collections import deque

import pytest

from redsync import HoldLost, HoldOrphaned, NodeChanged, QuorumError
from redsync._core.observing import (
    LONG,
    AcquireEnded,
    HoldEnded,
    HoldsRenewed,
    Observer,
    ObserverSubscription,
    RetryAfterTold,
    WatchdogWoke,
)
from redsync._protocols.answers import EXISTING
from redsync._protocols.holding import give_back, release
from redsync._protocols.lock import acquire
from redsync._protocols.observed import observed
from tests.support.locks import SHORT, connect_set, flush

NEW = 1


class Recorder(Observer):
    """Keeps all reports."""

    def __init__(self):
        self.events = []
        self.clients = []
        self.subscription = None

    def listen(self, nodes, now):
        self.subscription = ObserverSubscription(nodes, self.events.append)
        return self.subscription

    def attach(self, client):
        self.clients.append(client.id)

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
    assert (ended.record.kind, ended.record.rounds, ended.record.wanted) == ("lock", 1, 1)
    assert toy.session.waiting == set()


def test_observed_acquire_that_fails_reports_it_and_raises(toy):
    steps = observed(toy.session, toy.request(timeout=0.0), toy.now, acquire, kind="lock")
    with pytest.raises(QuorumError):
        toy.play(steps, ("ask lock_acquire", toy.all_say(None)), "tell lock_abandon", "notify AcquireEnded")
    (ended,) = toy.events
    assert (ended.outcome, ended.hold, ended.error) == ("no_quorum", None, "QuorumError")


@pytest.mark.parametrize("how", ["released", "given back"])
def test_end_of_a_hold_is_reported_once_it_has_ended(toy, how):
    state = toy.take()
    if how == "released":
        steps, script = release(toy.session, state, toy.now), ("ask lock_release", toy.all_say(1))
    else:
        steps, script = give_back(toy.session, state), "tell lock_release"
    toy.play(steps, script, "notify HoldEnded")
    assert toy.events == [HoldEnded(state, how)]


def test_release_of_one_of_several_holds_is_not_an_end(toy):
    state = toy.take(holds=2)
    toy.play(release(toy.session, state, toy.now), ("ask lock_release", toy.all_say(1)))
    assert toy.events == []


def test_re_entry_is_an_acquire_without_a_round(toy):
    state = toy.take()
    steps = observed(toy.session, toy.request(), toy.now, acquire, kind="lock")
    toy.play(steps, ("ask lock_acquire", toy.all_say(EXISTING)), "notify AcquireEnded")
    (ended,) = toy.events
    assert (ended.outcome, ended.hold) == ("won", state)


@pytest.mark.parametrize("queued", [0, LONG])
def test_counted_successes_and_ends_are_entries_unless_those_are_many(toy, queued):
    entries = toy.session.entries = deque([None] * queued)
    began = toy.now
    steps = observed(toy.session, toy.request(), toy.now, acquire, kind="lock")
    state = toy.play(steps, ("ask lock_acquire", toy.all_say(NEW)), *["notify AcquireEnded"] * bool(queued))
    released = toy.now
    steps = release(toy.session, state, toy.now)
    toy.play(steps, ("ask lock_release", toy.all_say(1)), *["notify HoldEnded"] * bool(queued))
    if queued:
        assert set(entries) == {None}
        return
    (ended, at), end = entries
    assert (ended.outcome, ended.hold, ended.record.rounds, ended.record.steps) == ("won", state, 1, None)
    assert began <= at <= released
    assert end == (HoldEnded(state, "released"), released)


def test_observers_that_keep_a_released_hold_keep_no_callback_and_so_no_client(toy):
    toy.session.entries = deque()
    state = toy.take()
    state.on_lost.append(print)
    toy.play(release(toy.session, state, toy.now), ("ask lock_release", toy.all_say(1)))
    assert state.on_lost == []


def test_counted_re_entry_is_reported_with_the_drivers_instant(toy):
    """No round of its own tells how long it took."""
    entries = toy.session.entries = deque()
    toy.take()
    steps = observed(toy.session, toy.request(), toy.now, acquire, kind="lock")
    toy.play(steps, ("ask lock_acquire", toy.all_say(EXISTING)), "notify AcquireEnded")
    assert not entries


# On real nodes.


@pytest.mark.usefixtures("both_flavours", "all_nodes_met")
@pytest.mark.asyncio_too
def test_observer_learns_of_each_acquire_and_hold(make_client, other, recorder, eventually):
    lock = make_client(listeners=[recorder]).get_fair_lock("x")

    def hand_over():
        """Let the other thread wait for the lock and get it; return whether the nodes handed it over."""
        recorder.events.clear()
        with lock, lock:
            assert not other.do(lock.acquire, False)
            waiter = other.start(lock.acquire)
            (waiting,) = eventually(lambda: list(lock._runner.session.waiting))
            assert (waiting.kind, waiting.name) == ("fair_lock", "x")
        assert waiter.result(20)
        other.do(lock.release)
        return waiting if waiting.hand_overs else None

    # Where the nodes' messages come too far apart, on a busy machine, it asks once more instead.
    waiting = eventually(hand_over)
    first, second, busy, handed = recorder.of(AcquireEnded)
    assert [each.outcome for each in (first, second, busy, handed)] == ["won", "won", "busy", "won"]
    assert first.hold is second.hold is not handed.hold
    assert handed.record is waiting
    assert (handed.record.hand_overs, handed.record.rounds >= 1) == (1, True)
    assert [step.what for step in handed.record.steps][-2:] == ["woken", "handed over"]
    assert recorder.of(HoldEnded) == [HoldEnded(first.hold, "released"), HoldEnded(handed.hold, "released")]


@pytest.mark.usefixtures("both_flavours", "all_nodes_met")
@pytest.mark.asyncio_too
def test_observer_learns_how_long_nodes_took_and_whose_votes_failed(make_client, nodes, recorder, eventually, flavour):
    client = make_client(listeners=[recorder], n=3)
    assert recorder.clients == [client.id]
    with client.get_lock("x"):
        pass
    # On a busy machine a node may be connected later than the others.
    eventually(lambda: all(status.state == "up" for status in client.nodes()))
    if flavour == "threads":
        connect_set(client)  # else the acquire and its release may go over two sets
    recorder.subscription.failed.clear()
    with client.get_lock("x"):
        pass
    assert sum(map(len, recorder.subscription.took)) >= 4, "at least two rounds, with a quorum of two each"
    assert all(0 <= seconds < 20 for took in recorder.subscription.took for seconds in took)
    assert list(recorder.subscription.failed) == []
    nodes.kill(0)
    eventually(lambda: recorder.of(NodeChanged))
    with client.get_lock("x"):
        pass
    assert client.nodes()[0].address in {node for node, _ in recorder.subscription.failed}


@pytest.mark.usefixtures("all_nodes_met")
def test_observer_learns_of_renewals_and_losses(make_client, raw, recorder, eventually):
    client = make_client(listeners=[recorder], lease=SHORT)
    lock = client.get_lock("x")
    lock.acquire()
    renewed = eventually(lambda: recorder.of(HoldsRenewed))[0]
    (acquired,) = recorder.of(AcquireEnded)
    assert renewed.confirmed == (acquired.hold,)
    assert all(0 < left < 1 for left in renewed.left)
    assert all(event.lag >= 0 for event in eventually(lambda: recorder.of(WatchdogWoke)))
    flush(raw)
    (lost,) = eventually(lambda: recorder.of(HoldLost))
    assert lost.state is acquired.hold


@pytest.mark.usefixtures("all_nodes_met")
def test_observer_learns_of_orphans_and_of_releases_at_the_end_of_the_client(make_client, other, recorder, eventually):
    client = make_client(listeners=[recorder])
    other.do(client.get_lock("x").acquire)
    other.end()
    eventually(lambda: recorder.of(HoldOrphaned))
    client.get_lock("y").acquire()
    client.close()
    assert [(event.hold.name, event.how) for event in recorder.of(HoldEnded)] == [
        ("x", "given back"),
        ("y", "given back"),
    ]


@pytest.mark.usefixtures("both_flavours", "all_nodes_met")
@pytest.mark.asyncio_too
def test_observer_learns_of_limiters_and_semaphores(make_client, recorder):
    client = make_client(listeners=[recorder])
    limiter = client.get_rate_limiter("api", 2, 60)
    assert limiter.acquire(n=2)
    assert not limiter.acquire(False)
    seconds = limiter.retry_after()
    with client.get_semaphore("s", 3):
        pass
    assert recorder.of(RetryAfterTold) == [RetryAfterTold("api", seconds)]
    told = [
        (e.record.kind, e.outcome, e.record.wanted, e.record.limit, e.hold is None) for e in recorder.of(AcquireEnded)
    ]
    assert told == [
        ("rate_limiter", "won", 2, None, True),
        ("rate_limiter", "busy", 1, None, True),
        ("semaphore", "won", 1, 3, False),
    ]


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
