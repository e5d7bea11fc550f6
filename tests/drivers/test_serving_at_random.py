"""Serving, at random: whatever nodes send, in whatever pieces it is read and wherever the reader is interrupted, a vote
is what that node has answered to that request, and no round stays undecided.
"""

import asyncio
import random
import socket
from contextlib import closing, contextmanager
from functools import partial

import pytest
import redis
import redis.asyncio

from redsync._core.effects import Broadcast, Command, Packed
from redsync._core.ownership import Owner
from redsync._core.quorum import Choice, Verdict
from redsync._drivers import aio_transport
from redsync._drivers.aio_links import StreamLink
from redsync._drivers.aio_transport import AioTransport
from redsync._drivers.given_nodes import make_nodes
from redsync._drivers.interruptions import HALF_READ, INTERRUPTED
from redsync._drivers.links import QuietSocket
from redsync._drivers.pollers import READ
from redsync._drivers.reentry import Doing
from redsync._drivers.requests import Request, Sleeper
from redsync._drivers.transport import Transport
from tests.support.injection import Interruption, Strikes
from tests.support.rigs import LATER, Wire
from tests.support.sweeps import swept

NODES = 5
ALL = (1 << NODES) - 1
FIRST_FD = 1000
PASS = 1e-6
"""Seconds of the world's clock between two polls."""

MESSAGE = b">3\r\n$7\r\nmessage\r\n$4\r\nwake\r\n$1\r\nx\r\n"
ANSWERS = {
    b":1\r\n": 1,
    b":0\r\n": 0,
    b":2\r\n": 2,
    b"$1\r\n7\r\n": b"7",
    b"-ERR no\r\n": None,
    b"-NOSCRIPT no\r\n": None,
}


class Alarm(Interruption, TimeoutError):
    """Looks like an error of a socket."""


class Odd:
    """Says whether something odd happens: often in some rounds, rarely in others, most of which take the short way."""

    def __init__(self, luck):
        self.luck = luck
        self.factor = 1.0

    def __call__(self, chance):
        return self.luck.random() < chance * self.factor


class NodeWire(Wire):
    """A link to a node that answers when the test says so, and is read in pieces."""

    def __init__(self, node, odd):
        super().__init__(node)
        self.fileno = FIRST_FD + node.index
        self.odd = odd
        self.answered = 0
        """The number of its pending requests that the node has answered, while their replies are not read."""
        self.ended = False

    def receive(self):
        if self.odd(0.05):
            return None
        if not self.come:
            return b"" if self.ended else None
        size = self.odd.luck.randrange(1, len(self.come) + 1) if self.odd(0.15) else len(self.come)
        data, self.come = self.come[:size], self.come[size:]
        return data


class Poller:
    """Polls what the world says."""

    def register(self, *_):
        pass

    modify = unregister = register

    def close(self):
        pass


class Waker:
    fileno = -1

    def wake(self):
        pass

    drain = close = wake


def unanimous(tally):
    if tally.granted == NODES:
        return Verdict.WON
    return Verdict.PENDING if None in tally.cast else Verdict.LOST


def majority(tally):
    """Decide as without a rule."""
    if tally.granted >= tally.quorum:
        return Verdict.WON
    return Verdict.PENDING if tally.refused + tally.failed <= NODES - tally.quorum else Verdict.LOST


class World:
    """Nodes without a network, and a driver that reads them."""

    def __init__(self, luck, script, kind, *settings, **more):
        self.luck, self.odd = luck, Odd(luck)
        self.now = 0.0
        self.broken = []
        super().__init__(
            make_nodes([f"redis://{name}" for name in "abcde"], kind),
            lambda: self.now,
            60.0,
            *settings,
            on_broken=lambda node, reason: self.broken.append(reason),
            on_change=lambda: None,
            **more,
        )
        self._poller.poll = self.poll
        self.nodes = self._table._nodes
        self._blocked = QuietSocket(type=socket.SOCK_DGRAM)
        self._blocked.setblocking(False)
        self.blocked = partial(self._blocked.recv, 1)
        self.open = []
        self.abandoned = set()
        """Requests whose thread was interrupted."""
        self.decided = {}
        self.said = {}
        """The answers of each node to each request, several if it was sent again; None for an error."""
        self.lost = set()
        """Each request and node that had no link, or lost it before the reply was read."""
        self.struck = []
        judges = bool, lambda reply: int(reply) == 1
        self.forms = [(Command(script, (key,), (), Packed()), judge) for key in (b"j", b"k") for judge in judges]
        # Two judges of one command: what one has learned must not count for the other.
        self.forms.append((self.forms[0][0], judges[1]))
        for node in self.nodes:
            if luck.random() < 0.8:
                self.connect(node)

    def connect(self, node):
        self._table.install(NodeWire(node, self.odd))

    def reconnect(self, chance):
        for node in self.nodes:
            if self.links[node.index] is None and self.luck.random() < chance:
                self.connect(node)

    def ask(self, owner):
        command, judge = self.luck.choice(self.forms)
        decide = self.luck.choice((None, None, None, unanimous, majority))
        late, owed_to = self.luck.random() < 0.2, self.luck.choice((0, ALL, ALL))
        effect = Broadcast(command, owner, judge, 60.0, decide=decide, late=late, owed_to=owed_to, owed_until=LATER)
        request = Request(effect, effect.tally([node.address for node in self.nodes]))
        request.tally.sent_at = self.now
        self.open.append(request)
        with self.noting_losses():
            self.transmit(request)
        self.lost.update((request, node) for node, link in enumerate(self.links) if link is None or link.broken)
        return request

    @contextmanager
    def noting_losses(self):
        before = {link: [*link.pending, *link.healing] for link in self.links if link is not None}
        yield
        for link, requests in before.items():
            if link.broken is not None:
                self.lost.update((each, link.index) for each in (*requests, *link.pending))

    def answer(self, link):
        """Let a node answer some of what it was sent, in order, and send a wake-up now and then."""
        if self.odd(0.2):
            return
        if self.odd(0.1):
            link.come += MESSAGE
        for request in list(link.pending)[link.answered :][: self.luck.choice((1, 2, 3))]:
            if self.odd(0.1):
                link.come += MESSAGE
            if request.command is None:
                piece = b"+loaded\r\n"
            else:
                piece = self.luck.choice(list(ANSWERS)) if self.odd(0.3) else b":1\r\n"
                self.said.setdefault((request, link.index), []).append(ANSWERS[piece])
            link.come += piece
            link.answered += 1
        if self.odd(0.05):
            link.ended = True

    def poll(self, timeout):
        self.now += PASS
        links = [link for link in self.links if link is not None and link.fileno > 0 and not self.odd(0.3)]
        self.luck.shuffle(links)
        for link in links:
            link.read = self.blocked if self.odd(0.05) else link.receive
        return [(link.fileno, READ) for link in links]

    def read(self, points):
        """Let the driver read once, in one of its ways; it is interrupted at these points, counted from each other.

        Return True if now everything that was read must have been handed out.
        """
        before = {link: [*link.pending] for link in self.links if link is not None}
        read, tends, request = self.way()
        strikes = Strikes(*points, error=self.luck.choice((Interruption, Alarm)))
        with self.noting_losses():
            if points:
                strikes.run(read)
            else:
                read()
        if strikes.where:
            self.struck.append(strikes.where)
            self.abandon(request)
        for link, was in before.items():
            if link.broken is None:
                pending = [*link.pending]
                link.answered -= next(k for k in range(len(was) + 1) if pending[: len(was) - k] == was[k:])
        return tends and not strikes.where

    def check(self, request, settled):
        tally = request.tally
        for node, vote in enumerate(tally.all_votes.cast):
            if vote is None:
                continue
            said = self.said.get((request, node), ())
            if vote[0] is Choice.FAILED:
                assert (request, node) in self.lost or None in said, f"node {node} said {said}, and {vote}"
                continue
            choice, answer, reply = vote
            assert reply in said, f"node {node} said {said}, and {vote}"
            assert (choice, answer) == (Choice.GRANTED if tally.judge(reply) else Choice.REFUSED, tally.judge(reply))
        choices = tally.choices
        assert (tally.granted, tally.refused, tally.failed) == tuple(map(choices.count, Choice))
        if tally.verdict is Verdict.WON:
            assert tally.granted >= tally.quorum
        if settled:
            assert request.done == (tally.verdict is not Verdict.PENDING)
            assert request.done or self.is_under_way(request), "every node has answered or lost its link"
        if request.done:
            # A protocol may be reading it.
            kept = self.decided.setdefault(request, (tally.cast[:], tally.granted))
            assert (tally.cast, tally.granted) == kept

    def is_under_way(self, request):
        return any(link is not None and request in (*link.pending, *link.healing) for link in self.links)

    def check_all(self, settled):
        for request in {**dict.fromkeys(self.open), **self.decided}:
            self.check(request, settled)
        if settled:
            for link in self.links:
                assert link is None or link.broken is None
                assert link is None or link.come or not link.answered, "a reply was read that answers no request"
        self.open = [request for request in self.open if not (request.done and self.is_over(request))]


class ThreadWorld(World, Transport):
    """A driver for threads."""

    make_poller, make_waker = Poller, Waker

    def __init__(self, luck, script, loop):
        super().__init__(luck, script, redis.Redis, doing=Doing())

    def transmit(self, request):
        self.send(request)

    def way(self):
        """Return a call that reads, whether it tends the transport, and what its thread waits for."""
        waiting = [request for request in self.open if not request.done and request not in self.abandoned]
        if self.luck.random() < (0.15 if waiting else 0.5):
            return self.tend, True, None
        sleeper = self.luck.choice(waiting) if waiting and not self.odd(0.1) else Sleeper()
        return partial(self.wait, sleeper, self.now + PASS / 2), False, sleeper

    def abandon(self, request):
        self.abandoned.add(request)
        assert not self._leadership.leading

    def is_over(self, request):
        return True


class AioWorld(World, AioTransport):
    """A driver for asyncio; its loop never runs, and the test makes the callbacks."""

    def __init__(self, luck, script, loop):
        self.futures = {}
        super().__init__(luck, script, redis.asyncio.Redis, loop)

    def connect(self, node):
        link = NodeWire(node, self.odd)
        link.is_heard = self.luck.random() < 0.3
        if link.is_heard:
            # As over TLS.
            link.fileno = -1
            link._receiver = self._receiver
        self._table.install(link)

    def transmit(self, request):
        self.send(request)
        self._flush()
        self.futures[request] = self.lie_down(request, LATER)

    def way(self):
        if self.luck.random() < 0.15:
            return self.tend_at_once, True, None
        heard = [link for link in self.links if link is not None and link.is_heard and (link.come or link.ended)]
        if heard and self.luck.random() < 0.5:
            link = self.luck.choice(heard)
            data = link.receive()
            if data:
                return partial(StreamLink.data_received, link, data), False, None
            if data is not None:
                return partial(self._table.discard, link, "closed the connection"), False, None
        return self._read, False, None

    def tend_at_once(self):
        with closing(self.tend()) as tending:
            for _ in iter(lambda: next(tending.__await__(), self), self):
                self._read()

    def abandon(self, request):
        pass

    def is_over(self, request):
        if not self.futures[request].done():
            return False
        self.get_up(request)
        return True


@pytest.fixture
def make_world(make_script, monkeypatch):
    monkeypatch.setattr(aio_transport, "make_poller", Poller)
    script = make_script("ask", "return 1")
    with closing(asyncio.new_event_loop()) as loop:
        yield lambda driver, luck: driver(luck, script, loop)


# An interruption came as Python ended a coroutine that an earlier one had left.
@pytest.mark.filterwarnings("ignore:Exception ignored in. <coroutine object:pytest.PytestUnraisableExceptionWarning")
# An interruption came right before the `await`.
@pytest.mark.filterwarnings("ignore:coroutine .* was never awaited:RuntimeWarning")
@pytest.mark.parametrize("number", [*range(10), *swept(*range(10, 60))])
@pytest.mark.parametrize("share", [0.0, 0.2])
@pytest.mark.parametrize("driver", [ThreadWorld, AioWorld])
def test_votes_are_what_nodes_answered(driver, share, number, seed, make_world):
    luck = random.Random(f"{seed} {number}")
    world = make_world(driver, luck)
    owners = Owner("one", 1), Owner("two", 2)
    won = 0
    for _ in range(120):
        world.odd.factor = luck.choice((1.0, 0.1))
        world.reconnect(luck.choice((0.0, 1.0)))
        request = world.ask(owners[0])
        if world.odd(0.2):
            world.ask(owners[1])
        for _ in range(200):
            for link in filter(None, world.links):
                world.answer(link)
            points = ()
            if luck.random() < (share if world.odd.factor == 1.0 else 3 * share):
                points = [luck.randrange(1, 60) for _ in range(luck.choice((1, 1, 1, 2)))]
            try:
                world.check_all(world.read(points))
            except AssertionError as error:
                error.add_note(f"interrupted: {world.struck[-3:]}")
                raise
            if request not in world.open:
                break
            world.reconnect(0.1 + share)
        assert set(world.broken) <= {"closed the connection", *(INTERRUPTED if share else ())}
        assert request not in world.open, [(link and (link.answered, link.pending, link.come)) for link in world.links]
        won += request.tally.verdict is Verdict.WON
    assert 0 < won < 120
    assert bool(world.struck) == bool(share)


def test_tending_discards_broken_link_although_no_node_owes_a_reply(make_world):
    """Two interruptions in a row may leave one."""
    world = make_world(AioWorld, random.Random(1))
    world.links[0].broken = HALF_READ
    world.tend_at_once()
    assert world.links[0] is None
