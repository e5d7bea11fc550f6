"""Serving, at random: whatever nodes send and in whatever pieces it is read, a vote is what that node has answered."""

import random
import socket
import threading
from functools import partial
from types import SimpleNamespace

import pytest
import redis

from redsync._core.effects import Broadcast, Command, Packed
from redsync._core.ownership import Owner
from redsync._core.quorum import Choice, Verdict
from redsync._drivers.given_nodes import make_nodes
from redsync._drivers.links import QuietSocket
from redsync._drivers.pollers import READ
from redsync._drivers.process import clock
from redsync._drivers.requests import Request, Sleeper
from redsync._drivers.serving import Serving
from tests.support.rigs import Wire

NODES = 5
ALL = (1 << NODES) - 1
FIRST_FD = 1000

MESSAGE = b">3\r\n$7\r\nmessage\r\n$4\r\nwake\r\n$1\r\nx\r\n"
ANSWERS = {
    b":1\r\n": 1,
    b":0\r\n": 0,
    b":2\r\n": 2,
    b"$1\r\n7\r\n": b"7",
    b"-ERR no\r\n": None,
    b"-NOSCRIPT no\r\n": None,
}


class NodeWire(Wire):
    """A link to a node that answers when the test says so, and is read in pieces."""

    def __init__(self, node, luck):
        super().__init__(node)
        self.fileno = FIRST_FD + node.index
        self.luck = luck
        self.answered = 0
        """The number of its pending requests that the node has answered, while their replies are not read."""
        self.ended = False

    def receive(self):
        chance = self.luck.random()
        if chance < 0.05:
            return None
        if not self.come:
            return b"" if self.ended else None
        size = self.luck.randrange(1, len(self.come) + 1) if chance < 0.2 else len(self.come)
        data, self.come = self.come[:size], self.come[size:]
        return data


def unanimous(tally):
    if tally.granted == NODES:
        return Verdict.WON
    return Verdict.PENDING if None in tally.cast else Verdict.LOST


def majority(tally):
    """Decide as without a rule."""
    if tally.granted >= tally.quorum:
        return Verdict.WON
    return Verdict.PENDING if tally.refused + tally.failed <= NODES - tally.quorum else Verdict.LOST


class World(Serving):
    """Nodes without a network, and the thread that reads them all."""

    def __init__(self, luck, script):
        self.luck = luck
        self._leadership = SimpleNamespace(leading=True, followers=())
        self._waker = None
        self.broken = []
        poller = SimpleNamespace(register=lambda *_: None, modify=lambda *_: None, unregister=lambda *_: None)
        super().__init__(
            make_nodes([f"redis://{name}" for name in "abcde"], redis.Redis),
            clock,
            60.0,
            mutex=threading.Lock(),
            poller=poller,
            awaken=Sleeper.wake,
            receive_at_once=lambda *_: None,
            on_broken=lambda node, reason: self.broken.append((node.index, reason)),
            on_change=lambda: None,
        )
        self.nodes = self._table._nodes
        self.keeper = Sleeper()
        self._blocked = QuietSocket(type=socket.SOCK_DGRAM)
        self._blocked.setblocking(False)
        self.blocked = partial(self._blocked.recv, 1)
        self.decided = {}
        self.said = {}
        """The answer of each node to each request."""
        judges = bool, lambda reply: int(reply) == 1
        self.forms = [(Command(script, (key,), (), Packed()), judge) for key in (b"j", b"k") for judge in judges]
        # Two judges of one command: what one has learned must not count for the other.
        self.forms.append((self.forms[0][0], judges[1]))
        for node in self.nodes:
            if luck.random() < 0.8:
                self.connect(node)

    def connect(self, node):
        self._table.install(NodeWire(node, self.luck))

    def send(self, owner):
        command, judge = self.luck.choice(self.forms)
        decide = self.luck.choice((None, None, None, unanimous, majority))
        late, owed_to = self.luck.random() < 0.2, self.luck.choice((0, ALL, ALL))
        effect = Broadcast(
            command, owner, judge, 60.0, decide=decide, late=late, owed_to=owed_to, owed_until=clock() + 60.0
        )
        request = Request(effect, effect.tally([node.address for node in self.nodes]))
        request.tally.sent_at = clock()
        self._outbox.send(request)
        return request

    def answer(self, link):
        """Let a node answer some of what it was sent, in order, and send a wake-up now and then."""
        if self.luck.random() < 0.1:
            link.come += MESSAGE
        for request in list(link.pending)[link.answered :][: self.luck.choice((1, 1, 1, 2, 3))]:
            if self.luck.random() < 0.1:
                link.come += MESSAGE
            if request.command is None:
                piece = b"+loaded\r\n"
            else:
                piece = b":1\r\n" if self.luck.random() < 0.7 else self.luck.choice(list(ANSWERS))
                self.said[request, link.index] = ANSWERS[piece]
            link.come += piece
            link.answered += 1
        if self.luck.random() < 0.05:
            link.ended = True

    def read(self, request):
        """Serve some links, as a leader without followers for the request, or as any other thread."""
        links = [link for link in self.links if link is not None and self.luck.random() < 0.7]
        self.luck.shuffle(links)
        before = {link: list(link.pending) for link in links}
        ready = [(link.fileno, READ) for link in links]
        for link in links:
            link.read = link.receive if self.luck.random() < 0.95 else self.blocked
        if not request.done and self.luck.random() < 0.7:
            self._serve_alone(ready, clock(), request)
        else:
            self._serve(ready, clock(), self.keeper)
        for link in links:
            was, pending = before[link], list(link.pending)
            link.answered -= next(k for k in range(len(was) + 1) if pending[: len(was) - k] == was[k:])

    def check(self, request):
        tally = request.tally
        for node, vote in enumerate(tally.all_votes.cast):
            if vote is None or vote[0] is Choice.FAILED:
                continue
            said = self.said.get((request, node))
            assert said is not None, f"node {node} never answered, and {vote}"
            assert vote == (Choice.GRANTED if tally.judge(said) else Choice.REFUSED, tally.judge(said), said)
        choices = tally.choices
        assert (tally.granted, tally.refused, tally.failed) == tuple(map(choices.count, Choice))
        if tally.verdict is Verdict.WON:
            assert tally.granted >= tally.quorum
        assert request.done == (tally.verdict is not Verdict.PENDING)
        if request.done:
            # A protocol may be reading it.
            kept = self.decided.setdefault(request, (tally.cast[:], tally.granted))
            assert (tally.cast, tally.granted) == kept


@pytest.mark.parametrize("number", range(100))
def test_votes_are_what_nodes_answered(number, seed, make_script):
    luck = random.Random(f"{seed} {number}")
    world = World(luck, make_script("ask", "return 1"))
    owners = Owner("one", 1), Owner("two", 2)
    won = 0
    for _ in range(60):
        request, other = world.send(owners[0]), world.send(owners[1]) if luck.random() < 0.5 else None
        for _ in range(200):
            for link in filter(None, world.links):
                if luck.random() < 0.8:
                    world.answer(link)
            world.read(request)
            world.check(request)
            if other is not None:
                world.check(other)
            if request.done:
                break
            for former in list(world.decided):
                world.check(former)
            for node in world.nodes:
                if world.links[node.index] is None and luck.random() < 0.5:
                    world.connect(node)
        assert {reason for _, reason in world.broken} <= {"closed the connection"}
        assert request.done, [(link and (link.answered, len(link.pending), link.come)) for link in world.links]
        won += request.tally.verdict is Verdict.WON
    assert 0 < won < 60
