"""The maintenance of a client for threads: one turn after the other on scripted nodes, and its threads on real ones."""

import logging
import math
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from functools import partial

import pytest

from redsync import NodeChanged
from redsync._drivers import any_maintenance
from redsync._drivers import maintenance as maintenances
from redsync._drivers.link_sets import LinkSet
from redsync._drivers.maintenance import Maintenance
from redsync._drivers.nodes import Node
from redsync._drivers.pool import Pool
from tests.support.hostile import Hostile
from tests.support.locks import PATIENCE, connect_set
from tests.support.scripted import NODE_TIMEOUT, Desk

YES, OK = b":1\r\n", b"+OK\r\n"


class Tended:
    """A maintenance that a test runs turn by turn, on scripted nodes that are all connected.

    Attributes:
        fars: The far ends of its own links.
        told: The events so far.
    """

    def __init__(self):
        self.desk = Desk()
        self.told = self.desk.told
        self.maintenance = Maintenance(self.desk)
        self.desk.note_lag = self.maintenance.note_lag
        self.own = self.maintenance.own
        self.pool = self.maintenance.pool = Pool(self.desk, self._connect_set, self.maintenance.wake, 4)
        self.fars = [self.connect(index) for index in range(3)]
        self.turn()

    def connect(self, index):
        """Give it a new link to a node, like a thread that has connected it; return the far end."""
        link, far = self.desk.link(index, ("process", 10 + index))
        self.maintenance.take_connection(index, link)
        return far

    def post(self, request):
        """Let it send a request, as a thread does that found no set free."""
        self.maintenance.post(partial(self.own.send, request))

    def turn(self, later=0.0):
        self.desk.now += later
        self.maintenance.serve(self.desk.now)

    def lend(self):
        """Return a set of the pool with a link to each node, in use, and its far ends."""
        sets = []
        self.pool.borrow(sets)
        return sets, self.lent_fars

    def _connect_set(self, link_set, nodes):
        self.lent_fars = [self.desk.install(link_set, node.index, ("process", 70 + node.index)) for node in nodes]
        link_set.connecting.clear()

    def stop(self):
        """End it, on a clock that continues."""
        self.desk.step = 0.01
        self.maintenance.stop()

    def close(self):
        if not self.maintenance._ended.is_set():
            self.stop()
        self.desk.close()


@pytest.fixture
def tended():
    tended = Tended()
    yield tended
    tended.close()


def test_own_connections_carry_many_commands_of_callers_although_theirs_have_many_unanswered(tended):
    sets, _ = tended.lend()
    tended.desk.releases.others = tended.pool.sets
    for link_set in (sets[0], tended.own):
        assert [tended.desk.ask(link_set).tally.sent for _ in range(700)] == [0b111] * 700
    tended.pool.throw_away(sets)


# Sets that were thrown away.


def test_connections_of_a_torn_set_are_ended_before_anything_else_is_sent(tended):
    """A late command in them must not come behind the release that follows it."""
    sets, fars = tended.lend()
    request = tended.desk.ask(sets[0], b"claim")
    tended.desk.tell(sets[0], b"undo")
    tended.pool.throw_away(sets)
    tended.post(tended.desk.release(b"posted"))
    tended.turn()
    assert request.done
    assert all(far.ended() for far in fars)
    for index, far in enumerate(tended.fars):
        kill, *others = far.commands()
        assert kill == [b"CLIENT", b"KILL", b"ID", b"%d" % (70 + index)]
        assert sorted(words[-1] for words in others) == [b"posted", b"undo"]
        far.say(OK, YES, YES)
    tended.turn()
    assert len(tended.pool) == 0, "there is room for another"
    assert tended.desk.pending() == [0, 0, 0]
    assert not any(node.former for node in tended.desk.nodes)
    assert not tended.own.owes


def test_busy_node_is_told_again_to_end_a_connection(tended):
    tended.desk.nodes[1].former.add(("process", 6))
    tended.turn()
    assert tended.fars[1].last_words() == [b"6"]
    tended.maintenance._connecting[1] = None
    tended.fars[1].say(b"-BUSY a script runs\r\n")
    tended.turn()
    assert tended.own.links[1] is None
    assert tended.desk.nodes[1].former == {("process", 6), ("process", 11)}


# Requests of other threads.


@pytest.mark.parametrize("answered", [False, True])
def test_posted_round_that_its_thread_gives_up_is_done(tended, answered):
    """With the answers that came in time: the process may have been suspended."""
    request = tended.desk.request(b"release", deliver_to=0b111)
    tended.post(request)
    tended.turn()
    if answered:
        for far in tended.fars:
            far.say(YES)
    tended.maintenance.post(partial(tended.maintenance.give_up, request))
    tended.turn()
    assert request.done
    assert request.tally.won == answered
    assert request.tally.without_quorum != answered


def test_alarm_during_a_round_does_not_keep_the_maintenance_busy(tended):
    """The watchdog looks when the round is over; until then there is nothing to do."""
    tended.maintenance.alarm()
    assert next(tended.maintenance.turn(tended.desk.now + 60)) > tended.desk.now


def test_posted_round_that_no_node_gets_ends_at_once(tended):
    for link in list(tended.own.links):
        tended.own.discard(link, "gone")
    request = tended.desk.request(b"release", deliver_to=0b111)
    tended.post(request)
    tended.turn()
    assert request.done
    assert tended.desk.pending() == [1, 1, 1]


def test_requests_of_a_closed_client_are_done(tended):
    """Their threads wait for that, without a limit."""
    under_way, late = tended.desk.request(b"release"), tended.desk.request(b"release")
    tended.post(under_way)
    tended.turn()
    tended.stop()
    tended.maintenance.post(partial(tended.maintenance.give_up, under_way))
    tended.post(late)
    assert (under_way.done, late.done) == (True, True)


# Idle sets.


def test_late_replies_in_idle_sets_are_read(tended):
    """Else the node would seem silent to the next borrower."""
    sets, fars = tended.lend()
    (link_set,) = sets
    tended.desk.ask(link_set)
    for far in fars[:2]:
        far.say(YES)
    link_set.read(0.0)
    tended.pool.take_back(sets)
    assert tended.maintenance._owes()
    assert tended.maintenance._next_at(math.inf) <= tended.desk.now + NODE_TIMEOUT / 2
    fars[2].say(YES)
    tended.turn(later=NODE_TIMEOUT / 2)
    assert not tended.maintenance._owes()


def test_silent_node_is_found_in_an_idle_set_and_asked_over_the_own_link(tended):
    """A set that no thread uses would not tell for how long its node is silent."""
    sets, fars = tended.lend()
    (link_set,) = sets
    tended.desk.ask(link_set)
    for far in fars[:2]:
        far.say(YES)
    link_set.read(0.0)
    tended.pool.take_back(sets)
    tended.turn(later=NODE_TIMEOUT * 1.1)
    tended.turn()
    assert link_set.links[2].suspect
    assert tended.fars[2].commands() == [[b"PING"]]
    tended.turn(later=NODE_TIMEOUT * 1.1)
    assert [event for event in tended.told if isinstance(event, NodeChanged)] == []
    tended.turn()
    (event,) = tended.told
    assert (event.node, event.state) == (tended.desk.addresses[2], "suspect")
    tended.fars[2].say(b"+PONG\r\n")
    tended.turn()
    tended.turn()
    assert [event.state for event in tended.told] == ["suspect", "up"]


def test_sets_that_rest_for_long_are_closed_but_for_one(tended, monkeypatch):
    (first, first_fars), (second, second_fars) = tended.lend(), tended.lend()
    tended.pool.take_back(first)
    tended.pool.take_back(second)
    tended.turn(later=maintenances._KEPT_IDLE - 1.0)
    assert len(tended.pool) == 2
    tended.turn(later=2.0)
    tended.turn(later=2.0)
    assert len(tended.pool) == 1
    assert sorted([all(far.ended() for far in fars) for fars in (first_fars, second_fars)]) == [False, True]
    tended.turn(later=1000.0)
    assert len(tended.pool) == 1


# Pending releases.


def test_pending_releases_go_out_as_soon_as_the_node_is_connected(tended):
    tended.own.discard(tended.own.links[1], "gone")
    tended.maintenance._connecting[1] = math.inf
    first, second = tended.desk.release(b"first"), tended.desk.release(b"second")
    tended.desk.releases.add(1, [first, second])
    tended.turn()
    assert tended.desk.pending() == [0, 2, 0]
    far = tended.connect(1)
    tended.turn()
    assert far.last_words() == [b"11", b"first", b"second"], "the former connection ends first"
    far.say(OK, YES, YES)
    tended.turn()
    assert tended.desk.pending() == [0, 0, 0]


# Nodes.


def test_node_with_another_server_is_connected_anew(tended):
    node = tended.desk.nodes[1]
    tended.maintenance._connecting[1] = math.inf
    node.generation += 1
    tended.turn()
    assert tended.own.links[1] is None
    assert tended.fars[1].ended()
    assert not node.connected


def test_set_does_not_use_a_connection_that_was_begun_before_the_node_moved(lasting, monkeypatch, eventually):
    """It leads to the former server, which may be that of another node by now, and would have two votes."""
    node, opened = lasting.runner.nodes[0], Node.open

    def moved(self, timeout):
        connection = opened(self, timeout)
        if self is node:
            self.generation += 1
        return connection

    monkeypatch.setattr(Node, "open", moved)
    link_set = LinkSet(lasting.runner.life)
    lasting.runner.life.maintenance.connect(link_set, [node])
    eventually(lambda: link_set._arrivals)
    link_set.take_arrivals()
    assert link_set.links[0] is None or link_set.links[0].generation < node.generation
    link_set.end("the test is over", orderly=True)


def test_node_is_connected_later_if_its_connect_can_not_begin(tended, monkeypatch):
    """Memory has run out, say."""
    connected, outcomes = [], iter([MemoryError()])

    def connect(_, nodes):
        connected.extend(nodes)
        for error in outcomes:
            raise error

    monkeypatch.setattr(tended.maintenance, "connect", connect)
    tended.own.discard(tended.own.links[1], "gone")
    with pytest.raises(MemoryError):
        tended.turn(5.0)
    tended.turn(5.0)
    assert connected == [tended.desk.nodes[1]] * 2


def test_maintenance_waits_for_no_thread_that_connects(make_client, nodes, monkeypatch, eventually):
    """A finalizer may come first in such a thread, call the client, and wait for the maintenance."""
    client = make_client()
    with client.get_lock("x"):
        pass
    start, over = threading.Thread.start, threading.Event()

    def wait_long(thread):
        if threading.current_thread().name == "redsync-maintenance":
            over.wait(2 * PATIENCE)
        start(thread)

    monkeypatch.setattr(threading.Thread, "start", wait_long)
    nodes.kill(0)
    eventually(lambda: client.nodes()[0].state == "down")
    nodes.restart(0)
    try:
        eventually(lambda: client.nodes()[0].state == "up")
    finally:
        over.set()


def test_connection_that_came_twice_is_closed(tended):
    far = tended.connect(1)
    assert far.ended()
    assert not tended.fars[1].ended()


# Its thread.


@pytest.mark.parametrize("error", [KeyError("odd"), SystemExit(3)], ids=["fails", "exits"])
def test_maintenance_that_fails_says_so_and_starts_again(make_client, nodes, warnings, eventually, error):
    """An unrelated error must not cost a hold: not even `sys.exit()` in the application's handler of a log line."""
    client = make_client(lease=6.0)
    with client.get_lock("x") as hold:
        maintenance = client.runner.life.maintenance
        report_changes, failed = maintenance._registry.report_changes, []

        def fail():
            maintenance._registry.report_changes = report_changes
            failed.append(True)
            raise error

        maintenance._registry.report_changes = fail
        maintenance.wake()
        eventually(lambda: failed)
        eventually(lambda: all(status.state == "up" for status in client.nodes()))
        until = hold._state.valid_until
        eventually(lambda: hold._state.valid_until > until)
        hold.check()
    assert ("ERROR", "the maintenance failed and starts again; please report this") in warnings()
    assert maintenance.is_current() is False


class Trouble:
    """An application's own listener, callback, log handler or filter, which blocks and then raises."""

    level = logging.NOTSET

    def __init__(self):
        self.calls = 0
        self.over = threading.Event()

    def __call__(self, event):
        self.calls += 1
        self.over.wait(PATIENCE)
        raise KeyError("the application's own")

    handle = filter = __call__


@pytest.mark.parametrize("where", ["listener", "on_lost", "log handler", "log filter"])
def test_nothing_that_the_application_does_with_an_event_stops_renewals(make_lasting, nodes, raw, *, eventually, where):
    """`test_notifier` has errors."""
    trouble = Trouble()
    logs = [logging.getLogger("redsync.node"), logging.getLogger("redsync.watchdog")]
    client = make_lasting(lease=2.0, listeners=[trouble] if where == "listener" else [])
    for log in logs:
        if where == "log handler":
            log.addHandler(trouble)
        if where == "log filter":
            log.addFilter(trouble)
    try:
        with client.get_lock("kept") as hold:
            client.get_lock("lost", on_lost=trouble if where == "on_lost" else None).acquire()
            for node in raw:
                node.delete("redsync:lost")
            nodes.kill(0)
            eventually(lambda: trouble.calls)
            for _ in range(3):
                until = hold._state.valid_until
                eventually(lambda until=until: hold._state.valid_until > until)
            hold.check()
    finally:
        trouble.over.set()
        for log in logs:
            log.removeHandler(trouble)
            log.removeFilter(trouble)
        nodes.restart(0)


# The end.


def test_close_waits_briefly_for_the_last_replies(tended):
    """Closing a socket with unread replies resets the connection, and would lose what was sent."""
    tended.desk.tell(tended.own, b"undo")
    tended.post(tended.desk.release(b"posted"))
    for far in tended.fars:
        far.say(YES, YES)
    tended.stop()
    assert [far.last_words() for far in tended.fars] == [[b"undo", b"posted"]] * 3
    assert all(far.ended() for far in tended.fars)


def test_close_ends_the_sets_of_the_pool(tended):
    sets, fars = tended.lend()
    tended.pool.take_back(sets)
    tended.stop()
    assert all(far.ended() for far in fars)


def test_set_thrown_away_after_the_close_is_ended(make_client, eventually):
    """The frame that had it may live longer than the client."""
    client = make_client()
    connect_set(client)
    life, lent = client.runner.life, []
    life.pool.borrow(lent)
    (link_set,) = lent
    client.close()
    assert not link_set.closed
    life.pool.throw_away(lent)
    assert link_set.closed
    assert not any(link_set.links)


def test_closing_client_makes_no_connections(tended, monkeypatch):
    """A call that still waits for nodes keeps the maintenance at work."""
    connected = []
    monkeypatch.setattr(tended.maintenance, "connect", lambda _, nodes: connected.extend(nodes))
    tended.maintenance._stopping = True
    tended.own.discard(tended.own.links[0], "gone")
    for _ in range(3):
        tended.turn(5.0)
        assert tended.maintenance._next_at(math.inf) > tended.desk.now, "it waits, instead of polling in a loop"
    assert connected == []


def test_close_does_not_wait_for_a_silent_node(make_client, nodes):
    """Giving up on it takes twice the connect timeout, which is four times the node timeout."""
    make_client(n=2)
    with Hostile(lambda words: []) as silent:
        client = make_client([*nodes.urls[:2], silent.url], node_timeout=60.0)
        with ThreadPoolExecutor(1) as pool:
            pool.submit(client.close).result(20)


def test_client_that_has_heard_of_all_nodes_waits_for_no_stragglers(nodes, make_client, monkeypatch):
    for name in ("STRAGGLERS", "_TICK"):
        monkeypatch.setattr(any_maintenance, name, PATIENCE)
    began = time.monotonic()
    assert make_client(node_timeout=PATIENCE).get_lock("x").acquire()
    assert time.monotonic() - began < PATIENCE / 2
