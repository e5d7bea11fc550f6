"""Two interruptions of one thread, the second while it cleans up after the first: at each pair of points.

The thread runs on the transport of `rig`, so a thread that sleeps forever is a deadlock, found at once. The points are
those of `injection`, and each wait for a lock or a descriptor. The checks look only at effects that others notice.
"""

import itertools
import random
from collections.abc import Callable, Mapping
from contextlib import suppress
from types import MappingProxyType
from typing import Any, NamedTuple

from redsync._core.effects import Broadcast, Command, Tell
from redsync._drivers.interruptions import INTERRUPTED
from redsync._drivers.requests import Request
from tests.support.injection import Interruption, Strikes
from tests.support.interleaving.rig import SCRIPT, TIMEOUT, Rig, everybody
from tests.support.interleaving.search import Chance, Search
from tests.support.interleaving.system import ROOM
from tests.support.interleaving.world import Fault, World

__all__ = ["Scenario", "Scene", "interrupt_at_all_pairs", "interrupt_by_chance"]

_ALL_NODES = 0b111


class _StruckWorld(World):
    """A world in which the trace of a thread decides where a signal comes, and the thread's waits are points too."""

    def __init__(self, policy, strikes):
        super().__init__(policy)
        self._strikes = strikes
        self.victim = None

    def signal(self):
        """Do nothing: the trace has a point after each call."""

    def _is_struck(self, me):
        return me is self.victim and self._strikes.is_due(f"asleep: {me.what}")

    def _strike(self, me):
        self.log.append((me.name, "is interrupted"))
        raise Interruption(me.what)


class Scene:
    """Threads on a transport, one of which, `a`, is interrupted.

    Attributes:
        rig: The transport and its nodes.
        struck: True once the interruptions may come.
    """

    def __init__(self, world, strikes, *, nodes=1, numbers=False, usual=False, absent=(), room=ROOM):
        """Connect a transport.

        Args:
            world: Runs the threads.
            strikes: Interrupts one of them.
            nodes: The number of nodes.
            numbers: The nodes answer with numbers, which need no parser.
            usual: All commands get the same number, and a quorum decides: so rounds know the reply that grants.
            absent: The indices of nodes that have lost their connections.
            room: The bytes that a connection takes before its node reads.
        """
        self.world = world
        self.rig = Rig(world, nodes, room=room)
        self.struck = False
        self._numbers = numbers
        self._packing = _Packing() if usual else None
        for server in self.rig.servers:
            server.numbers, server.usual = numbers, usual
        self._strikes = strikes
        self._owners = {}
        self._sent = []
        self._absent = frozenset(absent)
        for index in absent:
            self.rig.servers[index].connections[0].lose(reset=True)
        self.rig.transport.tend()
        self.rig.broken.clear()
        self._links = [*self.rig.transport.links]
        self._ended = set()

    def thread(self, name, program, after=()):
        """Add a thread that begins after others have ended; `a` is the one to interrupt."""

        def run():
            if after:
                self.world.wait_for(lambda: self._ended.issuperset(after))
            program()
            self._ended.add(name)

        thread = self.rig.thread(name, run)
        if name == "a":
            self.world.victim = thread

    def interrupt(self, *calls):
        """Make calls with the interruptions; a call that is interrupted ends, and the next one follows."""
        self.struck = True

        def run():
            for call in calls[:-1]:
                with suppress(Interruption):
                    call()
            calls[-1]()

        self._strikes.run(run)

    # Requests.

    def request(self, name, *, owed=False, struck=False):
        """Make the next command of an owner.

        Args:
            name: The owner's.
            owed: The nodes must get it in any case.
            struck: Its own thread may be interrupted before it is sent.
        """
        owner = self._owners.get(name) or self._owners.setdefault(name, self.rig.owner())
        what = b"%s%d" % (name.encode(), len(self._sent) + 1)
        command = Command(SCRIPT, (b"key",), (b"claim", what), self._packing)
        if owed:
            request = Request(Tell(command, owner, _ALL_NODES, 1e9), None)
        else:
            effect = Broadcast(command, owner, bool, TIMEOUT, decide=None if self._packing else everybody)
            request = Request(effect, effect.tally([node.address for node in self.rig.nodes]))
            request.tally.sent_at = self.world.clock()
        self._sent.append(_Sent(name, what, request, owed, struck))
        return request

    def carry(self, request):
        self.rig._do(self.rig.transport.carry, request, TIMEOUT)

    def wait(self, request):
        self.rig.wait(request, TIMEOUT)

    def ask(self, name):
        """Send a command and wait for it; it must get its own replies."""
        request = self.request(name)
        self.carry(request)
        self._judge_replies(self._sent_as(request))

    def tell(self, name):
        """Send a command that the nodes must get."""
        self.rig.transport.send(self.request(name, owed=True))

    def has_sent(self, name):
        return name in self._owners

    def let_nodes_answer(self):
        """Let the nodes answer all that was sent."""
        for event in self.world.events:
            while event.name.startswith("node") and event.is_ready():
                event.step()

    # The outcome.

    def judge(self):
        """Check the outcome; after all threads have ended."""
        rig, interruptions = self.rig, len(self._strikes.where)
        assert self.world.now <= 0.0, f"they waited for {self.world.now:g} s"
        self._recover()
        lost, links = self._lost(), [*rig.transport.links]
        assert len(lost) <= interruptions, f"nodes {lost} lost their connections"
        # A second interruption may come right before the report.
        assert len(lost) - len(rig.broken) < max(interruptions, 1), f"only {rig.broken} reported"
        assert {reason for _, reason in rig.broken} <= INTERRUPTED, f"reported {rig.broken}"
        for name in [*self._owners]:
            self.tell(name)
        last = self.request("z")
        rig.transport.send(last)
        self._recover()
        assert rig.transport.links == links, "a connection was lost later"
        self._judge_replies(self._sent_as(last))
        for sent in self._sent:
            self._judge_request(sent, lost)
        for server in rig.servers:
            for name in self._owners:
                names = [sent.what for sent in self._sent if sent.name == name]
                of_one = [what for what in server.executed if what in names]
                assert of_one[-1] == names[-1], f"executed {server.executed}"

    def _lost(self):
        """Return the indices of the nodes that have lost their first connection."""
        pairs = zip(self.rig.transport.links, self._links, strict=True)
        return [
            index
            for index, (link, first) in enumerate(pairs)
            if first is not None and (link is not first or link.broken is not None)
        ]

    def _recover(self):
        """Act as the maintenance: tend the transport until it is owed nothing, and connect the nodes again."""
        for _ in range(100):
            self.let_nodes_answer()
            if not self.rig.transport.tend():
                break
        else:
            raise AssertionError("nodes owe replies forever")
        for index, link in enumerate(self.rig.transport.links):
            if link is None:
                self.rig.connect(index)
        self.let_nodes_answer()
        self.rig.transport.tend()

    def _judge_request(self, sent, lost):
        """Check that it was sent once to each node, or to none because its thread was interrupted before."""
        times = [server.executed.count(sent.what) for server in self.rig.servers]
        tally = sent.request.tally
        if sent.struck and not any(times):
            assert tally is None or not tally.grants, f"{sent.what} got {tally.replies}"
            return
        for index, count in enumerate(times):
            least = sent.owed or index not in self._absent.union(lost)
            most = 1 + (sent.owed and index in lost)
            assert least <= count <= most, f"node {index + 1} executed {sent.what} {count} times"
        if tally is not None:
            self._judge_replies(sent)
        assert not sent.request.leads, f"{sent.what} leads"
        assert sent.request.gate is None, f"{sent.what} sleeps"

    def _judge_replies(self, sent):
        """Check that each node has answered this command, or has lost its connection."""
        lost, replies = self._lost(), sent.request.tally.replies
        assert sent.request.done, f"{sent.what} waits"
        for index, reply in enumerate(replies):
            failed = isinstance(reply, str) and index in self._absent.union(lost)
            right = reply == self._answer(sent) or failed or (reply is None and self._packing)
            assert right, f"{sent.what} got {replies}"

    def _answer(self, sent):
        if self._packing:
            return 1
        return int(sent.what[1:]) if self._numbers else sent.what

    def _sent_as(self, request):
        return next(sent for sent in self._sent if sent.request is request)


class _Packing:
    """Knows the usual reply of all commands of a scene, and none of their bytes."""

    usual = None

    def data(self, command, pack):
        return pack(command)


class _Sent(NamedTuple):
    """A command: its owner's name, its text, the request, and see `Scene.request`."""

    name: str
    what: bytes
    request: Request
    owed: bool
    struck: bool


def _run(scenario, policy, *points):
    """Run a scenario with interruptions at these points, see `Strikes`; return what came.

    Raises:
        Fault: The run failed.
    """
    strikes = Strikes(*points)
    world = _StruckWorld(policy, strikes)
    scene = Scene(world, strikes, **scenario.options)
    scenario.begin(scene)
    try:
        world.run()
        scene.judge()
    except AssertionError as error:
        raise Fault(f"interrupted at {strikes.where}, points {points}: {error}") from error
    return strikes


class Scenario(NamedTuple):
    """The actions of threads.

    Attributes:
        begin: Takes a scene, and adds threads to it.
        options: For the scene.
    """

    begin: Callable[[Scene], None]
    options: Mapping[str, Any] = MappingProxyType({})


def interrupt_at_all_pairs(scenario):
    """Run a scenario with each pair of interruptions; return how many there are."""
    pairs = 0
    for first in itertools.count(1):
        for second in itertools.count(1):
            where = _run(scenario, Search(0), first, second).where
            if len(where) < 2:
                break
            pairs += 1
        if not where:
            break
    return pairs


def interrupt_by_chance(scenario, seed, schedules, pairs):
    """Run a scenario under random schedules, each with some random pairs of interruptions; return how many came."""
    came = 0
    for each in range(seed, seed + schedules):
        dice = random.Random(each)
        points = _run(scenario, Chance(each)).passed
        for _ in range(pairs):
            first = dice.randint(1, points)
            second = dice.randint(1, max(_run(scenario, Chance(each), first).passed, 1))
            came += len(_run(scenario, Chance(each), first, second).where) == 2
    return came
