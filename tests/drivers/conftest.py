"""One transport or one runner on real nodes, without the layers above it."""

import hashlib
import itertools
import logging
import shutil
import socket
import subprocess
import sys
import time
from collections import Counter

import pytest
import redis

from redsync import Client
from redsync._core.effects import Broadcast, Command, Tell, broadcast
from redsync._core.ownership import Owner
from redsync._core.quorum import Verdict
from redsync._core.scripts import Script
from redsync._drivers.channels import pack
from redsync._drivers.dialects import PLAIN
from redsync._drivers.given_nodes import make_nodes
from redsync._drivers.greetings import greet, subscribe
from redsync._drivers.links import make_link
from redsync._drivers.process import clock
from redsync._drivers.reentry import Doing
from redsync._drivers.requests import Request
from redsync._drivers.transport import Transport
from redsync.exceptions import QuorumError
from redsync.testing import LocalNodes
from tests.support import injection
from tests.support.leftovers import claims
from tests.support.locks import PATIENCE
from tests.support.sentinels import FakeSentinels

NODES = 3
LOOKS = 50


def script(name, source):
    source = source.encode()
    return Script(name, source, hashlib.sha1(source).hexdigest().encode())


@pytest.fixture(scope="module")
def shared_nodes():
    with LocalNodes(NODES) as nodes:
        yield nodes


@pytest.fixture
def nodes(shared_nodes):
    shared_nodes.reset()
    return shared_nodes


@pytest.fixture
def raw(nodes):
    """Plain connections for inspecting the nodes."""
    connections = [redis.Redis(port=port, decode_responses=True) for port in nodes.ports]
    yield connections
    for connection in connections:
        connection.close()


@pytest.fixture
def make_lasting(nodes):
    """Make clients; their lease is a minute, so any leftover is a bug."""
    clients = []

    def make(**options):
        clients.append(Client(nodes.urls, **{"lease": 60.0, "restart_guard": 0.0, **options}))
        return clients[-1]

    yield make
    for client in clients:
        client.close()


def everybody(tally):
    """Decide when all nodes have voted."""
    return Verdict.PENDING if None in tally.choices else Verdict.WON


def words(args):
    return tuple(arg.encode() if isinstance(arg, str) else arg for arg in args)


class Rig:
    """A transport with a client's arguments, but without maintenance: a test connects and tends it itself."""

    append = script("append", "redis.call('rpush', KEYS[1], ARGV[1]) return 1")
    echo = script("echo", "return ARGV[1]")
    number = script("number", "return tonumber(ARGV[1])")

    def __init__(self, urls, node_timeout=0.25):
        self.nodes = make_nodes(urls, redis.Redis)
        self.broken = []
        self.changes = Counter()
        self.transport = Transport(self.nodes, clock, node_timeout, self._on_broken, self._on_change, Doing())
        self._serials = 0

    def _on_broken(self, node, reason):
        self.broken.append((node.index, reason))

    def _on_change(self):
        self.changes["suspect"] += 1

    def connect(self, *indices, load=True):
        for i in indices or range(len(self.nodes)):
            channel = self.nodes[i].open(2.0)
            channel.talk(greet(self.nodes[i], 1.0, raw=channel.raw))
            channel.talk(subscribe(PLAIN, b"wake", raw=channel.raw))
            if load:
                channel.ask(*(pack(b"SCRIPT", b"LOAD", each.source) for each in (self.append, self.echo, self.number)))
            self.transport.install(make_link(self.nodes[i], channel))
        return self

    def owner(self):
        self._serials += 1
        return Owner("rig", self._serials)

    def send(self, script, owner, *args, key=b"list", judge=lambda reply: True, decide=None, timeout=60.0, **options):
        """Send a command without waiting for it; return its request."""
        command = Command(script, (key,), words(args))
        effect = Broadcast(command, owner, judge, timeout, decide=decide, **options)
        request = Request(effect, effect.tally([node.address for node in self.nodes]))
        request.tally.sent_at = clock()
        self.transport.send(request)
        return request

    def finish(self, request):
        """Wait for a request like the runner; return its tally."""
        self.transport.wait(request, request.tally.sent_at + request.effect.timeout)
        if not request.done:
            self.transport.end_round(request, "no answer in time")
        if request.tally.open:
            self.transport.linger(request, request.tally, clock() + request.effect.timeout)
        return request.tally

    def ask(self, *args, **options):
        return self.finish(self.send(*args, **options))

    def tell(self, script, owner, *args, key=b"list", owed_to=0, owed_until=0.0):
        command = Command(script, (key,), words(args))
        self.transport.send(Request(Tell(command, owner, owed_to, owed_until), None))

    def settle(self, within=PATIENCE):
        """Tend the transport until no node owes replies."""
        deadline = time.monotonic() + within
        while self.transport.tend():
            assert time.monotonic() < deadline, "nodes still owe replies"
            time.sleep(0.001)


@pytest.fixture
def make_rig(nodes):
    rigs = []

    def make_rig(urls=None, **options):
        rigs.append(Rig(nodes.urls if urls is None else urls, **options))
        return rigs[-1]

    yield make_rig
    for rig in rigs:
        rig.transport.close()
        rig.transport.dispose()


@pytest.fixture
def rig(make_rig):
    """A transport connected to all nodes."""
    return make_rig().connect()


@pytest.fixture
def narrow(make_rig):
    """A transport to nodes, one of which accepts few bytes at once."""
    rig = make_rig(node_timeout=60.0).connect()
    rig.transport.links[1]._sock.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 65536)
    return rig


@pytest.fixture
def all_votes():
    """Decides a round only once all nodes have voted."""
    return everybody


@pytest.fixture
def make_script():
    return script


@pytest.fixture(scope="module")
def certificate(tmp_path_factory):
    """A self-signed certificate for 127.0.0.1, and its key."""
    if shutil.which("openssl") is None:
        pytest.skip("no openssl to make a certificate")
    folder = tmp_path_factory.mktemp("tls")
    made, key = folder / "certificate.pem", folder / "key.pem"
    command = ["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "2", "-subj", "/CN=127.0.0.1"]
    names = ["-addext", "subjectAltName=IP:127.0.0.1", "-keyout", str(key), "-out", str(made)]
    subprocess.run(command + names, check=True, capture_output=True)
    return made, key


@pytest.fixture(params=[pytest.param(12, id="few points"), pytest.param(1, id="all points", marks=pytest.mark.sweep)])
def points(request, seed):
    """Return a function that returns the points of interruption: each `stride`-th, or a few of them, by the seed."""

    def points(stride=1):
        stride *= request.param
        return itertools.count(1 + seed % stride, stride)

    return points


def stand_by(owner, script):
    """Ask repeatedly, listening; return how many more objects redsync's running functions refer to at the end."""
    sizes = []
    for _ in range(LOOKS):
        yield from broadcast(Broadcast(Command(script, (b"k",), (b"1",)), owner, bool, 1.0, subscribe=b"wake"))
        size, frame = 0, sys._getframe().f_back
        while frame is not None:
            if frame.f_globals["__name__"].startswith("redsync."):
                size += sum(len(each) for each in frame.f_locals.values() if isinstance(each, (list, set, dict)))
            frame = frame.f_back
        sizes.append(size)
    assert sizes[1] > 0
    return sizes[-1] - sizes[1]


@pytest.fixture
def warnings(caplog):
    """Return a function that returns the watchdog's warnings."""
    caplog.set_level(logging.DEBUG, "redsync.watchdog")
    return lambda: [
        (record.levelname, record.getMessage()) for record in caplog.records if record.name == "redsync.watchdog"
    ]


@pytest.fixture(scope="module")
def servers():
    """Two servers: of one node, or a master and its replica."""
    # The replica of a server that waits for others, 5 s by default, would have its data later.
    with LocalNodes(2, config={"repl-diskless-sync-delay": "0"}) as servers:
        yield servers


@pytest.fixture
def sentinels(servers):
    """Sentinels that name the first server."""
    servers.reset()
    with FakeSentinels() as sentinels:
        sentinels.say(servers.ports[0], 1)
        yield sentinels


def become(raw, expected):
    """Wait until each node has these claims and places and no others; return what they have if they never do."""
    # A discarded connection takes a moment to come back; then its node gets what it is owed.
    deadline = time.monotonic() + PATIENCE
    while True:
        found = [[key for key in claims(node) if not key.startswith("redsync_limit:")] for node in raw]
        if found == [sorted(expected)] * len(raw):
            return None
        if time.monotonic() > deadline:
            return found
        time.sleep(0.002)


@pytest.fixture
def interrupt_at_points(raw, inject, points):
    """Return a function that interrupts an action at each point, and checks each time that nothing is left.

    The clients' lease is a minute, so any leftover is a bug, and would be renewed for as long as it is in a table.
    """

    def interrupt(clients, stride, prepare, do, check=lambda prepared: None, *, keys=(), holds=0):
        """Interrupt `do(prepare(point))`; `check` follows, and `keys` and `holds` are of other acquisitions."""
        tables = [client.runner.session.holds for client in clients]
        wrong = []
        for point in points(stride):
            prepared = prepare(point)
            where = inject(point, lambda prepared=prepared: do(prepared))
            if where is None:
                break
            problem = check(prepared)
            if problem:
                wrong.append(f"{where}: {problem}")
            if sum(map(len, tables)) != holds:
                wrong.append(f"{where}: holds {[state.name for table in tables for state in table]}")
            rest = become(raw, keys)
            if rest is not None:
                wrong.append(f"{where}: left {rest}")
                break
            try:
                for client in clients:
                    # Repeatedly discarded connections come back after growing pauses.
                    with client.get_lock("next", timeout=PATIENCE):
                        pass
            except QuorumError as error:
                wrong.append(f"{where}: {error}")
                break
        print(f"{point} points")
        assert wrong == []
        assert point > 50

    return interrupt


@pytest.fixture
def boom():
    """The interruption that a test raises."""
    return injection.Interruption


@pytest.fixture
def inject():
    """Interrupts a function at its n-th point."""
    return injection.inject
