"""Drivers and their parts, on real nodes or scripted ones."""

import hashlib
import logging
import shutil
import subprocess
import sys

import pytest
import redis

from redsync._core.effects import Broadcast, broadcast
from redsync._core.scripts import Command, Script
from redsync.testing import LocalNodes
from tests.support.locks import connect_set
from tests.support.scripted import Desk
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
def make_lasting(make_client):
    """Make clients; their lease is a minute, so any leftover is a bug."""
    return lambda **options: make_client(**{"lease": 60.0, **options})


@pytest.fixture
def lasting(make_lasting):
    """Such a client, with a set of connections for threads that ask."""
    client = make_lasting()
    connect_set(client)
    return client


@pytest.fixture
def desk():
    """Sets of links to scripted nodes, on the test's own clock."""
    desk = Desk()
    yield desk
    desk.close()


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


def stand_by(owner):
    """Ask repeatedly, listening; return how many more objects redsync's running functions refer to at the end."""
    sizes, command = [], Command(script("echo", "return ARGV[1]"), (b"k",), (b"1",))
    for _ in range(LOOKS):
        yield from broadcast(Broadcast(command, owner, bool, 1.0, subscribe=b"wake"))
        size, frame = 0, sys._getframe().f_back
        while frame is not None:
            if frame.f_globals["__name__"].startswith("redsync."):
                kept = [getattr(each, "subscribed", each) for each in frame.f_locals.values()]
                size += sum(len(each) for each in kept if isinstance(each, (list, set, dict)))
            frame = frame.f_back
        sizes.append(size)
    assert sizes[1] > 0
    return sizes[-1] - sizes[1]


class Password(redis.CredentialProvider):
    """An application's provider, which exits the first times that it is asked."""

    def __init__(self, exits):
        self.asked = 0
        self._exits = exits

    def get_credentials(self):
        self.asked += 1
        if self.asked <= self._exits:
            raise SystemExit("no password")
        return ("default", "")


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
