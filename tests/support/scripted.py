"""Sets of links whose far ends are in the test's hands: it sees each command, and says what each node replies."""

import socket
from contextlib import suppress
from types import SimpleNamespace

import hiredis
import redis

from redsync._core.effects import Broadcast, Tell
from redsync._core.holds import Owner
from redsync._core.memory import Processes
from redsync._core.scripts import Command, Script
from redsync._core.timing import Timing
from redsync._drivers.handshake_connections import HandshakeConnection
from redsync._drivers.link_sets import LinkSet, Shared
from redsync._drivers.links import Link
from redsync._drivers.nodes import NodeInfo, make_nodes
from redsync._drivers.requests import Request

NODE_TIMEOUT = 0.25
ANNA = Owner("desk", 1)
SCRIPT = Script("ask", b"return 1", b"0" * 40)


def is_one(reply):
    """Judge a reply: 1 grants, 0 refuses, anything else has an unknown shape."""
    if reply not in (0, 1):
        raise ValueError
    return reply == 1


def take(releases, index, now, unanswered=0):
    """Return what a node gets, as if it had been sent."""
    due = releases.due(index, now, unanswered)
    for request in due:
        releases.resolve(index, request)
    return due


def choices(tally):
    """Return each node's vote as text; None if it has not voted."""
    return [choice and choice.value for choice in tally.choices]


def message(text, channel=b"wake"):
    """Return the bytes of a push message."""
    return b">3\r\n+message\r\n+%b\r\n$%d\r\n%b\r\n" % (channel, len(text), text)


def ask(*commands):
    """Return a handshake that is one question."""
    return (yield list(commands))


def words_of(data):
    """Return the commands in these bytes, each as a list of words."""
    reader = hiredis.Reader()
    reader.feed(data)
    commands = []
    while (words := reader.gets()) is not False:
        commands.append(words)
    return commands


class Far:
    """The far end of a link: a node whose replies the test chooses."""

    def __init__(self, sock):
        self.sock = sock
        sock.setblocking(False)

    def take(self):
        """Return the bytes that have arrived."""
        parts = []
        with suppress(BlockingIOError, ConnectionError):
            while part := self.sock.recv(1 << 20):
                parts.append(part)
        return b"".join(parts)

    def commands(self):
        """Return the commands that have arrived, each as a list of words."""
        return words_of(self.take())

    def last_words(self):
        """Return the last word of each command that has arrived."""
        return [words[-1] for words in self.commands()]

    def say(self, *data):
        for each in data:
            self.sock.sendall(each)

    def ended(self):
        """Return True if the client has ended the connection; drops what it has sent before."""
        try:
            while self.sock.recv(1 << 20):
                pass
        except BlockingIOError:
            return False
        except ConnectionError:
            return True
        return True


class StandIn(Shared):
    """The parts of a client's life that its sets and its maintenance use.

    Attributes:
        changes: The number of times that the maintenance learned to look.
        lagging: The indexes of the nodes that were reported to lag.
        told: The events so far.
    """

    client_id = "client"

    def __init__(self, nodes, clock, node_timeout=NODE_TIMEOUT, *, lease=30.0, restart_guard=0.0):
        timing = Timing(lease, node_timeout, 0.01, restart_guard)
        super().__init__(nodes, clock, timing)
        self.session = SimpleNamespace(processes=Processes(), timing=timing, random=lambda: 0.5, holds=[])
        self.told = []
        self.on_event = self.told.append
        self.changes = 0
        self.lagging = []

    def wake(self):
        self.changes += 1

    def note_lag(self, node):
        self.lagging.append(node.index)


class Desk(StandIn):
    """A client's life on the test's own clock, and links to scripted nodes.

    Attributes:
        now: The instant that the clock shows.
        step: The time that passes with each look at the clock.
    """

    def __init__(self, nodes=3, urls=(), **timing):
        self.now = 100.0
        self.step = 0.0
        made = make_nodes(urls or [f"redis://node{index}" for index in range(nodes)], redis.Redis)
        super().__init__(made, self.look_at_clock, **timing)
        for node in self.nodes:
            node.connected = True
            node.info = NodeInfo("process", "redis 7.0.0", 1e6)
        self._ends, self._sets = [], []

    def look_at_clock(self):
        self.now += self.step
        return self.now

    @property
    def addresses(self):
        return [node.address for node in self.nodes]

    def make_set(self):
        """Return a set without links; the desk ends it."""
        self._sets.append(LinkSet(self))
        return self._sets[-1]

    def link(self, index, connection_id=None):
        """Return a new link to a node, and its far end."""
        near, far = socket.socketpair()
        self._ends.append(far)
        connection = HandshakeConnection(near, 5.0)
        return Link(self.nodes[index], connection, connection_id), Far(far)

    def install(self, link_set, index, connection_id=None):
        """Connect a set to a node; return the far end."""
        link, far = self.link(index, connection_id)
        link_set.install(link)
        return far

    def connected(self):
        """Return a set with a link to each node, and the far ends."""
        link_set = self.make_set()
        return link_set, [self.install(link_set, index) for index in range(len(self.nodes))]

    def request(self, word=b"word", parse=is_one, *, script=SCRIPT, owner=ANNA, key=b"key", **options):
        """Return a request that asks for votes."""
        effect = Broadcast(Command(script, (key,), (word,)), owner, parse, 1.0, **options)
        request = Request(effect, effect.tally(self.addresses))
        request.tally.sent_at = self.now
        return request

    def ask(self, link_set, *args, **options):
        """Ask over a set; return the request."""
        request = self.request(*args, **options)
        link_set.send(request)
        return request

    def release(self, word=b"release", *, deliver_to=0b111):
        """Return a request that these nodes must get."""
        request = Request(Tell(Command(SCRIPT, (b"key",), (word,)), ANNA, deliver_to), None)
        request.number = self.next_number()
        return request

    def tell(self, link_set, word=b"release", **options):
        """Send something over a set that nodes must get; return the request."""
        request = self.release(word, **options)
        link_set.send(request)
        return request

    def pending(self):
        """Return how many releases each node has yet to get."""
        return [self.releases.count(index) for index in range(len(self.nodes))]

    def close(self):
        for link_set in self._sets:
            if not link_set.closed:
                link_set.end("the test is over", orderly=True)
        for end in self._ends:
            end.close()
