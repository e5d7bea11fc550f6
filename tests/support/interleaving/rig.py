"""The production transport on a scheduler, and what must hold of it at each point and after each schedule."""

import hashlib
from functools import partial
from types import SimpleNamespace

from redsync._core.effects import Broadcast, Command, Tell
from redsync._core.ownership import Owner
from redsync._core.quorum import Verdict
from redsync._core.replies import ReplyReader
from redsync._core.scripts import Script
from redsync._drivers.links import SocketLink
from redsync._drivers.nodes import Node
from redsync._drivers.reentry import BUSY, Doing
from redsync._drivers.requests import Request
from redsync._drivers.transport import Transport
from tests.support.interleaving.nodes import Connection, FakeNode
from tests.support.interleaving.system import ROOM, Lock, Poller, Socket, Waker

__all__ = ["SCRIPT", "TIMEOUT", "Rig"]

_SOURCE = b"return ARGV[2]"
SCRIPT = Script("echo", _SOURCE, hashlib.sha1(_SOURCE).hexdigest().encode())
TIMEOUT = 5.0


def everybody(tally):
    """Decide when all nodes have voted."""
    return Verdict.PENDING if None in tally.choices else Verdict.WON


class ScheduledTransport(Transport):
    """A transport whose locks, poller and waker are the scheduler's."""

    def __init__(self, world, files, nodes, on_broken, doing):
        self.make_lock = partial(Lock, world)
        self.make_poller = partial(Poller, world, files)
        self.make_waker = partial(Waker, world, files)
        super().__init__(nodes, world.clock, 60.0, on_broken, lambda: None, doing)


class Rig:
    """A transport connected to nodes that know the script.

    Attributes:
        requests: All sent requests, by their text.
        given_up: Those that no thread waits for any more, because an interruption came.
        broken: The abandoned links: node and reason.
    """

    def __init__(self, world, nodes=2, *, room=ROOM):
        self.world = world
        self.files = []
        self.doing = Doing()
        self.nodes = [Node(index, None, f"node-{index + 1}", None) for index in range(nodes)]
        self.servers = [FakeNode() for _ in self.nodes]
        self.broken = []
        self.requests = {}
        self.given_up = set()
        self._room = room
        self._waiting = {}  # thread -> what it waits for, the innermost last
        self._serials = 0
        self.transport = ScheduledTransport(world, self.files, self.nodes, self._on_broken, self.doing)
        for index, server in enumerate(self.servers):
            server.scripts.add(SCRIPT.sha)
            self.connect(index)
        world.checks.append(self._check_leaders)

    def _on_broken(self, node, reason):
        self.broken.append((node.index, reason))

    def connect(self, index):
        """Give a node a new connection, as the maintenance does."""
        node, server = self.nodes[index], self.servers[index]
        sock = Socket(self.world, self.files, self._room)
        connection = Connection(server, sock)
        server.connections.append(connection)
        self.world.event(f"node {index + 1}", connection.has_work, connection.work)
        reader = ReplyReader()
        link = SocketLink(node, SimpleNamespace(connection=SimpleNamespace(_sock=sock), sock=sock, reader=reader))
        link._lock = Lock(self.world)
        self.transport.install(link)

    def owner(self):
        self._serials += 1
        return Owner("rig", self._serials)

    # Actions of threads.

    def thread(self, name, program, *arguments):
        """Add a thread that calls `program`, counted as a client's call in progress."""

        def run():
            self.doing.what = BUSY
            program(*arguments)

        return self.world.thread(name, run)

    def broadcast(self, owner, what, timeout=TIMEOUT, **options):
        """Send a command to all nodes and wait for all, as the runner does; return its tally."""
        effect = Broadcast(self._command(what), owner, bool, timeout, **{"decide": everybody, **options})
        request = self._note(what, Request(effect, effect.tally([node.address for node in self.nodes])))
        request.tally.sent_at = sent_at = self.world.clock()
        self._do(self.transport.carry, request, sent_at + timeout)
        if not request.done:
            self.transport.end_round(request, "no answer in time")
        return request.tally

    def tell(self, owner, what, owed_to=0, owed_until=1e9):
        self.transport.send(self._note(what, Request(Tell(self._command(what), owner, owed_to, owed_until), None)))

    def _command(self, what):
        return Command(SCRIPT, (b"key",), (b"claim", what))

    def _note(self, what, request):
        assert what not in self.requests
        self.requests[what] = request
        return request

    def wait(self, sleeper, deadline):
        """Wait for a sleeper, and record that for the checks."""
        self._do(self.transport.wait, sleeper, deadline)

    def _do(self, step, sleeper, deadline):
        waiting = self._waiting.setdefault(self.world.running, [])
        waiting.append(sleeper)
        try:
            step(sleeper, deadline)
        finally:
            waiting.pop()

    def wait_for_bell(self, key, until, unless):
        """Sleep until the bell is rung, like a protocol that waits for another of this process."""
        waits = self.transport.wakeups.wait_for_bell(key, until, unless)
        return self.transport.wait_for_wakeup(waits)

    # Invariants.

    def _check_leaders(self):
        """At each point: at most one thread leads, and it waits."""
        leadership = self.transport._leadership
        if self.transport._mutex.locked():
            return
        leaders = [
            (thread, sleeper) for thread, sleepers in self._waiting.items() for sleeper in sleepers if sleeper.leads
        ]
        assert len(leaders) <= 1, f"{[thread.name for thread, _ in leaders]} lead"
        assert leadership.leading or not leaders, "a thread leads, and the record says none"

    def judge(self):
        """After a schedule: nothing is left behind, and every answered request got its own answer."""
        self.settle()
        transport, outbox = self.transport, self.transport._outbox
        assert not transport._leadership.followers, "a follower is left without a thread"
        assert not transport._mutex.locked(), "the mutex is held"
        assert not [*outbox.items, *outbox.batch], "some requests were not sent"
        assert outbox._left is outbox._case is outbox._doubtful is None, "the outbox is in the middle of something"
        assert not outbox.flushing, "a sender is left without a thread"
        assert not transport.wakeups._bells, "a bell was left"
        for link in filter(None, transport.links):
            assert not link.pending, f"node {link.index + 1} owes replies to {[*link.pending]}"
            assert not any((link.healing, link.again.under_way, link.backlog, link._lock.locked())), (
                "a link is left with work"
            )
        for what, request in self.requests.items():
            assert request.gate is None, f"{what} has a gate"
            assert not request.leads, f"{what} leads"
            self._judge_replies(what, request)

    def _judge_replies(self, what, request):
        if request.tally is None:
            return
        assert request.done or what in self.given_up, f"{what} was given up"
        for reply in request.tally.replies:
            assert reply is None or reply == what or isinstance(reply, str), f"{what} got {reply!r}"

    def settle(self):
        """Let nodes answer what is under way."""
        assert not self.transport._leadership.leading, "a leader is left without a thread"
        for _ in range(100):
            for event in self.world.events:
                while event.name.startswith("node") and event.is_ready():
                    event.step()
            if not self.transport.tend():
                return
        raise AssertionError("nodes owe replies forever")

    def judge_executed(self, *whats):
        """Each node has executed exactly these, each once, and those of one owner (one letter) in their order."""
        for server in self.servers:
            assert sorted(server.executed) == sorted(whats), f"executed {server.executed}"
            for letter in {what[:1] for what in whats}:
                of_one = [what for what in server.executed if what[:1] == letter]
                assert of_one == sorted(of_one), f"executed in the wrong order: {server.executed}"
