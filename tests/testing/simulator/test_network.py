"""The virtual network: order within a connection, and what partitions, loss and broken connections do to it."""

import random

import pytest

from redsync.testing.simulator.loop import Host
from redsync.testing.simulator.network import CLOSED, Network
from redsync.testing.simulator.timeline import Clock, Timeline


class Inbox:
    def __init__(self):
        self.messages = []

    def receive(self, connection, message):
        self.messages.append(message)


class Wire:
    """One connection, with all that is scheduled performed at once, in order."""

    def __init__(self, seed=1):
        self.timeline = Timeline()
        self.luck = random.Random(seed)
        self.network = Network(self.timeline, self.luck.random)
        self.machine, self.node = Inbox(), Inbox()
        self.host = Host("a", Clock(self.timeline))
        self.connection = self.network.dial(self.host, self.machine, self.node, "a")
        self.route = self.network.route(self.host, self.node)

    def settle(self, until=100.0):
        while self.timeline.entries and min(self.timeline.entries)[0] <= until:
            entry = min(self.timeline.entries)
            self.timeline.entries.remove(entry)
            self.timeline.now = entry[0]
            entry[3](*entry[4])


@pytest.fixture
def wire():
    return Wire()


def test_messages_arrive_in_order(wire):
    wire.route.there.delay = 2.0
    for i in range(100):
        wire.connection.there.send(i)
    wire.settle()
    assert wire.node.messages == list(range(100))


def test_partition_of_one_direction_holds_that_one_only(wire):
    wire.route.there.blocked = True
    wire.connection.there.send("request")
    wire.connection.back.send("reply")
    wire.settle()
    assert (wire.node.messages, wire.machine.messages) == ([], ["reply"])


def test_held_messages_arrive_late_or_the_connection_breaks():
    ends = set()
    for seed in range(20):
        wire = Wire(seed)
        wire.route.there.blocked = wire.route.back.blocked = True
        wire.connection.there.send(1)
        wire.connection.there.send(2)
        wire.network.heal(wire.route)
        wire.settle()
        ends.add((tuple(wire.node.messages), tuple(wire.machine.messages)))
    assert ends == {((1, 2), ()), ((CLOSED,), (CLOSED,))}


def test_held_messages_wait_for_the_next_retransmission_where_the_network_retransmits():
    arrivals = []
    for seed in range(40):
        wire = Wire(seed)
        wire.network.retransmits = wire.route.there.blocked = True
        wire.connection.there.send("request")
        wire.timeline.now = 30.0
        wire.network.heal(wire.route)
        wire.settle(until=100.0)
        if wire.connection.open:
            assert wire.node.messages == ["request"]
            arrivals.append(wire.timeline.now)
    assert 30.0 < min(arrivals) < 40.0
    assert 50.0 < max(arrivals) < 60.1


def test_lost_request_is_never_executed_and_ends_the_connection(wire):
    wire.route.there.loss = 1.0
    wire.connection.there.send("lost")
    wire.route.there.loss = 0.0
    wire.connection.there.send("behind it")
    wire.settle()
    assert wire.node.messages == [CLOSED]
    assert wire.machine.messages == [CLOSED]


def test_lost_reply_ends_the_connection_after_the_request_arrived(wire):
    wire.connection.there.send("request")
    wire.route.back.loss = 1.0
    wire.connection.back.send("reply")
    wire.settle()
    assert wire.node.messages == ["request", CLOSED]
    assert wire.machine.messages == [CLOSED]


def test_hanging_up_lets_what_was_sent_arrive(wire):
    wire.connection.there.send("request")
    wire.connection.hang_up()
    wire.settle()
    assert wire.node.messages == ["request", CLOSED]


def test_whoever_sends_over_broken_connection_is_told_again(wire):
    wire.route.back.blocked = True
    wire.connection.reset()
    wire.settle()
    assert wire.machine.messages == []
    wire.network.heal(wire.route)
    wire.connection.there.send("request")
    wire.settle()
    assert wire.machine.messages == [CLOSED]
    assert wire.node.messages == [CLOSED]


def test_silent_end_is_told_when_somebody_is_there_again(wire):
    wire.connection.reset(silently=True)
    wire.connection.there.send("request")
    wire.settle()
    assert wire.machine.messages == []
    wire.connection.lighten()
    wire.settle()
    assert wire.machine.messages == [CLOSED]


def test_connection_that_is_given_up_drops_what_was_held(wire):
    wire.connection.there.send("under way")
    wire.route.there.blocked = True
    wire.connection.there.send("held")
    wire.connection.abort()
    wire.network.heal(wire.route)
    wire.settle()
    assert "held" not in wire.node.messages
    assert wire.node.messages[0] == "under way"


def test_machine_may_go_on_sending_what_was_given_up(wire):
    wire.network.kept = 1.0
    wire.connection.there.send("under way")
    wire.connection.abort()
    wire.settle()
    assert wire.node.messages == ["under way", CLOSED]


def test_reset_that_a_partition_swallowed_is_noticed_when_the_node_sends(wire):
    wire.route.there.blocked = True
    wire.connection.abort()
    wire.route.there.mend()
    wire.settle()
    assert wire.node.messages == []
    wire.connection.back.send("wake-up")
    wire.settle()
    assert wire.machine.messages == [CLOSED]
    assert wire.node.messages == [CLOSED]
