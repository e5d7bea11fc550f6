"""Threads and their sets of connections: the limit, which calls wait for a set, and order between sets."""

import asyncio
import threading
import time
from contextlib import contextmanager
from functools import partial

import pytest

from redsync import ClientClosedError, QuorumError, RedsyncError, ReentrantCallError
from redsync._core.effects import tell
from redsync._drivers import aio
from redsync._drivers.link_sets import LinkSet
from redsync._drivers.links import GIVE_UP
from redsync._drivers.threads import Call
from redsync._protocols.claims import AcquireRequest
from redsync._protocols.holding import rollback_of
from redsync._protocols.lock import LOCK, acquire
from tests.support.forks import in_child
from tests.support.injection import Interruption, alarm
from tests.support.leftovers import claims
from tests.support.locks import PATIENCE, connect_set, timed


@pytest.fixture
def narrow(make_lasting):
    """A client with one set of connections."""
    client = make_lasting(max_connections=1)
    connect_set(client)
    return client


@contextmanager
def all_sets_lent(client):
    """Have all free sets, as threads do that are inside a round; yields them."""
    life, calls = client.runner.life, []
    while not calls or calls[-1].sets:
        calls.append(Call(life))
        life.pool.borrow(calls[-1].sets)
    calls.pop()
    assert calls
    try:
        yield [call.sets[0] for call in calls]
    finally:
        for call in calls:
            call.return_set()


# The limit.


def test_call_that_finds_all_sets_in_use_goes_over_the_connections_of_the_maintenance(narrow, raw):
    with all_sets_lent(narrow):
        lock = narrow.get_lock("x")
        assert lock.acquire(False)
        assert narrow.inspect("x").holders
        lock.extend()
        lock.release()
    assert not any(claims(node) for node in raw)


def test_call_that_finds_all_sets_in_use_keeps_to_its_timeout_although_nodes_hang(narrow, nodes, raw, eventually):
    for index in range(2):
        nodes.pause(index)
    try:
        with all_sets_lent(narrow):
            error, seconds = timed(narrow.get_lock("x").acquire, timeout=0.5)
    finally:
        for index in range(2):
            nodes.resume(index)
    assert isinstance(error, QuorumError)
    assert 0.4 < seconds < PATIENCE
    eventually(lambda: not any(claims(node) for node in raw))


def test_connections_that_have_died_silently_cost_one_round(narrow, raw, eventually):
    """As in a router that forgets idle ones; those of the maintenance still work."""
    lock = narrow.get_lock("x")
    with all_sets_lent(narrow) as sets:
        for link in sets[0].links:
            link.write = lambda _: None
    with pytest.raises(QuorumError):
        lock.acquire(blocking=False)
    assert [len(link.pending) for link in sets[0].links] == [2] * 3  # The rollback stays behind its ask.
    assert lock.acquire(timeout=GIVE_UP / 2)
    lock.release()
    eventually(lambda: not any(claims(node) for node in raw))


def test_rollback_follows_a_command_that_the_maintenance_has_yet_to_send(narrow, raw, eventually):
    """Even if a set has become free meanwhile, over which it would be quicker."""
    life, blocked = narrow.runner.life, threading.Event()
    life.maintenance.post(partial(blocked.wait, PATIENCE))
    call = Call(life)
    life.pool.borrow(call.sets)

    def strike():
        call.return_set()
        raise Interruption

    with alarm(strike), pytest.raises(Interruption):
        narrow.get_lock("x").acquire(timeout=PATIENCE)
    blocked.set()
    with all_sets_lent(narrow):
        assert narrow.get_lock("y").acquire(timeout=PATIENCE)
    narrow.get_lock("y").release()
    eventually(lambda: not any(claims(node) for node in raw))


def test_look_over_the_connections_of_the_maintenance_waits_for_all_nodes(narrow, raw):
    """The first quorum may disagree, as here, where a node keeps something else under the name."""
    raw[0].rpush("redsync:x", 1)
    with narrow.get_lock("x"), all_sets_lent(narrow):
        assert [narrow.inspect("x").kind for _ in range(20)] == ["lock"] * 20


def test_finalizer_that_interrupts_the_maintenance_releases_though_no_set_is_free(narrow, raw, eventually, monkeypatch):
    """The maintenance can't wait for itself to carry the release; and while it waits for a lock, it renews none."""
    mutex, registry, errors = narrow.get_mutex("x"), narrow.runner.life.maintenance._registry, []
    assert mutex.acquire(timeout=PATIENCE)
    report_changes = registry.report_changes

    def interrupted():
        if not errors:
            errors.append(None)
            mutex.release()
            try:
                narrow.get_mutex("y").acquire()
            except RedsyncError as error:
                errors.append(type(error))
        report_changes()

    with all_sets_lent(narrow):
        monkeypatch.setattr(registry, "report_changes", interrupted)
        narrow.runner.life.wake()
        eventually(lambda: errors and not any(claims(node) for node in raw))
    assert errors == [None, ReentrantCallError]


def test_renewal_waits_for_no_set(make_lasting, eventually):
    client = make_lasting(max_connections=1, lease=3.0)
    connect_set(client)
    with client.get_lock("x") as hold, all_sets_lent(client):
        before = hold._state.valid_until
        eventually(lambda: hold._state.valid_until > before + 1.0)
        hold.check()


def test_wake_up_waits_for_no_set(narrow, make_lasting, other, eventually):
    """It comes over the connections of the maintenance."""
    holder = make_lasting().get_lock("x")
    assert holder.acquire(timeout=PATIENCE)
    waiter = other.start(narrow.get_lock("x").acquire, timeout=PATIENCE)
    eventually(lambda: narrow.runner.life._asleep)
    assert narrow.runner.life.pool.idle(), "it gave its set back before it slept"
    holder.release()
    assert waiter.result(PATIENCE)
    assert not narrow.runner.life.wakeups._mailboxes, "the call has ended its subscription"


# Order between sets.


def test_command_does_not_overtake_an_earlier_one_of_its_call_that_the_maintenance_has_yet_to_send(make_lasting):
    """Here the rollback of a claim that would refuse it; a set is free by then, over which it would be quicker."""
    client = make_lasting(max_connections=1, node_timeout=2.0)
    connect_set(client)
    lock, runner, blocked = client.get_lock("x"), client.runner, threading.Event()
    assert lock.acquire(timeout=PATIENCE)
    former, lent = lock._state(), Call(runner.life)
    other = AcquireRequest(name="x", kind=LOCK, keys=lock._keys, owner=runner.new_owner(), timeout=0.0)

    def steps():
        runner.life.pool.borrow(lent.sets)
        yield from tell(rollback_of(former, leave=True))
        lent.return_set()
        return (yield from acquire(runner.session, other, runner.now()))

    runner.life.maintenance.post(partial(blocked.wait, PATIENCE))
    threading.Timer(0.2, blocked.set).start()
    assert runner.run(steps()) is not None


def test_cancelled_success_does_not_come_back_by_a_message_that_the_maintenance_has_yet_to_send(
    make_lasting, monkeypatch, eventually
):
    """Nodes that got it behind the rollback would keep the success for its window."""
    client = make_lasting(node_timeout=2.0)
    connect_set(client)
    limiter, maintenance = client.get_rate_limiter("x", 1, 10_000), client.runner.life.maintenance

    def post_late(action):
        post(partial(time.sleep, 0.1))
        post(action)

    post = maintenance.post
    with monkeypatch.context() as patch, all_sets_lent(client):
        patch.setattr(maintenance, "post", post_late)
        permit = limiter.acquire_permit()
    permit.cancel()
    sent = threading.Event()
    post(sent.set)
    assert sent.wait(PATIENCE)
    eventually(lambda: not maintenance.own.owes)
    assert limiter.retry_after() == 0.0


def test_release_goes_out_again_behind_what_nodes_have_not_answered_over_another_set(lasting, nodes, raw, eventually):
    """A node that hangs may execute the claim after the release, which comes over another connection."""
    lock = lasting.get_lock("x")
    nodes.pause(2)
    try:
        assert lock.acquire(timeout=PATIENCE)
        with all_sets_lent(lasting):
            lock.release()
            assert lasting.nodes()[2].pending == 1
    finally:
        nodes.resume(2)
    eventually(lambda: not any(claims(node) for node in raw))


def test_release_returns_once_nodes_that_have_not_answered_a_renewal_have_executed_it(make_lasting, raw, eventually):
    """Else another client would find the lock held that has just been released."""
    client = make_lasting(node_timeout=5.0)
    connect_set(client)
    lock = client.get_lock("x")
    assert lock.acquire(timeout=PATIENCE)
    for node in raw:
        node.client_pause(2000, all=False)
    lock._state().renew_at = 0.0
    client.runner.session.holds.watch(lock._state())
    eventually(lambda: client.runner.life.maintenance.own.owes)
    lock.release()
    assert sum(bool(claims(node)) for node in raw) < 3


def test_renewal_is_made_and_sent_in_one_step(lasting, monkeypatch, eventually):
    """Else its thread could wait for the processor in between, and a release over another set would come first."""
    life, send, renewals = lasting.runner.life, lasting.runner.life.send, []

    def watched(request, link_set):
        if request.command.script.name == "lock_renew":
            renewals.append((link_set is life.maintenance.own, life.monitor.lock.locked()))
        send(request, link_set)

    monkeypatch.setattr(life, "send", watched)
    with lasting.get_lock("x") as hold:
        eventually(lambda: renewals)
        # Until it finds a free set: the maintenance sends later what it carries for others.
        eventually(lambda: hold.extend() or not all(is_own for is_own, _ in renewals))
    assert renewals[0] == (True, True), "the watchdog's"
    assert all(in_step for is_own, in_step in renewals if not is_own)


def test_renewal_that_a_release_of_some_permits_overtakes_is_no_loss(lasting, monkeypatch, eventually):
    """It goes out over another connection, on which a packet may get lost."""
    life, semaphore = lasting.runner.life, lasting.get_semaphore("x", 3)
    send, renewals = life.send, []

    def overtaken(request, link_set):
        if request.command.script.name == "semaphore_renew" and not renewals:
            renewals.append(partial(send, request, link_set))
        else:
            send(request, link_set)

    monkeypatch.setattr(life, "send", overtaken)
    permit = semaphore.acquire(n=3, timeout=PATIENCE)
    before = permit._state.valid_until
    eventually(lambda: renewals)
    semaphore.release()
    life.maintenance.post(renewals[0])
    eventually(lambda: permit._state.valid_until > before)
    assert len(permit.slots) == 2
    permit.release()


def test_rollback_after_an_interruption_is_left_to_the_maintenance(lasting, raw, monkeypatch, eventually):
    """Which first ends the connections that were in use: the claim may still be in one of them."""
    life, wait, struck, borrowed = lasting.runner.life, LinkSet.wait, [], []
    borrow = life.pool.borrow

    def strike(link_set, *args):
        if struck:
            return wait(link_set, *args)
        struck.append(link_set)
        raise Interruption

    monkeypatch.setattr(LinkSet, "wait", strike)
    monkeypatch.setattr(life.pool, "borrow", lambda into: borrowed.append(1) or borrow(into))
    with pytest.raises(Interruption):
        lasting.get_lock("x").acquire(timeout=PATIENCE)
    assert borrowed == [1], "before it was struck"
    eventually(lambda: struck[0].closed)
    eventually(lambda: not any(claims(node) for node in raw))
    eventually(lambda: not any(node.former for node in lasting.runner.nodes))


def test_call_is_under_way_until_it_has_returned_its_set(lasting, monkeypatch):
    """A closing client waits for it: else it would throw the set away, with what nodes have not received yet."""
    life, end, under_way = lasting.runner.life, Call.end, []

    def watched(call):
        end(call)
        under_way.append(call in life.active)

    monkeypatch.setattr(Call, "end", watched)
    with lasting.get_lock("x"):
        pass
    assert under_way == [True, True]
    assert not life.active


@pytest.mark.asyncio_too
@pytest.mark.usefixtures("both_flavours")
def test_closing_client_waits_for_calls_as_long_as_these_wait_for_nodes(
    make_client, raw, other, eventually, monkeypatch
):
    """Else one that was granted its lock after that could not give it up."""
    monkeypatch.setattr(aio, "_CLOSE_TIMEOUT", 0.1)
    client = make_client(lease=600.0, node_timeout=PATIENCE)
    with client.get_lock("y"):
        pass
    life = client.runner.life

    def owes():
        return any(link_set.owes for link_set in (life.pool.sets() if hasattr(life, "pool") else [life.links]))

    eventually(lambda: not owes())
    for node in raw:
        node.client_pause(500, all=False)
    acquiring = other.start(client.get_lock("x").acquire, timeout=PATIENCE)
    eventually(owes)
    client.close()
    assert not any(claims(node) for node in raw)
    assert isinstance(acquiring.exception(PATIENCE), ClientClosedError)


# Processes and clocks.


@pytest.mark.filterwarnings("ignore:This process:DeprecationWarning")
def test_child_of_a_fork_whose_hook_did_not_run_has_its_own_identity_too(make_lasting, monkeypatch):
    """Python swallows an exception that strikes inside such a hook."""
    client = make_lasting()
    lock = client.get_lock("x")
    assert lock.acquire(timeout=PATIENCE)
    parent = client.runner.client_id
    monkeypatch.setattr(client.runner, "close_copies", lambda: None)

    def use():
        held, granted = lock.owned(), lock.acquire(blocking=False)
        said = f"{held} {granted} {client.runner.client_id != parent}"
        client.close()
        return said

    assert in_child(use) == "False False True"
    assert lock.owned()
    lock.release()


@pytest.mark.asyncio_too
@pytest.mark.usefixtures("both_flavours")
def test_client_connects_while_time_stands_still_for_the_application(make_client, monkeypatch):
    """As under freezegun, with `real_asyncio` for a loop; every reading of time goes through one function."""
    monotonic = time.monotonic
    monkeypatch.setattr(asyncio.BaseEventLoop, "time", lambda loop: monotonic())
    for name in ("monotonic", "time", "perf_counter"):
        now = getattr(time, name)()
        monkeypatch.setattr(time, name, lambda now=now: now)
    client = make_client()
    assert client.get_lock("x").acquire(timeout=PATIENCE)
    client.get_lock("x").release()
    client.close()
