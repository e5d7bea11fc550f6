"""A virtual node whose clock is set by hand, and simulations with connections to call their nodes."""

import hashlib

import pytest

from redsync._core.scripts import Script
from redsync._drivers.channels import pack
from redsync.testing.simulator import Simulation
from redsync.testing.simulator.network import CONNECT
from redsync.testing.simulator.scripting import run_script
from redsync.testing.simulator.store import Store


class Clock:
    """Seconds since the epoch."""

    def __init__(self):
        self.now = 1_700_000_000.0

    def __call__(self):
        return self.now

    def advance_ms(self, duration):
        # Whole milliseconds: sums of fractions would not be exact.
        self.now = (round(self.now * 1000) + duration) / 1000


@pytest.fixture
def clock():
    return Clock()


@pytest.fixture
def store(clock):
    """An empty node without subscribers."""
    return Store(clock)


@pytest.fixture
def do(store):
    """Execute a command given as text and numbers."""
    return lambda *words: store.execute(*(word if isinstance(word, bytes) else str(word).encode() for word in words))


@pytest.fixture
def run(store):
    """Run the source of a script on the store."""

    def run(source, keys=(), args=(), on=store):
        source = source.encode()
        return run_script(Script("ad_hoc", source, hashlib.sha1(source).hexdigest().encode()), on, keys, args)

    return run


@pytest.fixture
def sim(request):
    """A simulation with the options in the module's `SIMULATION`; it has run up to `begin`."""
    options = {"begin": 0.0, **request.module.SIMULATION}
    begin = options.pop("begin")
    with Simulation(**options) as sim:
        if begin:
            sim.run(until=begin)
        yield sim


@pytest.fixture
def machine(sim):
    return sim.machine("a")


@pytest.fixture
def runner(machine):
    return machine.client().runner


class Caller:
    """A connection's client side, with all received bytes."""

    def __init__(self, sim, machine, server=None):
        self.sim = sim
        self.messages = []
        self.connection = sim.network.dial(machine, self, server or sim.nodes[0])
        self.connection.there.send(CONNECT)
        self.ask()

    def receive(self, connection, message):
        self.messages.append(message)

    def ask(self, *parts):
        """Send that, each part at once, and return the answer: pieces, or the end."""
        before = len(self.messages)
        for part in parts:
            self.connection.there.send(part)
        self.sim.run(until=self.sim.now + 1.0)
        return self.messages[before:]

    def __call__(self, *words):
        return b"".join(self.ask(pack(*map(str, words))))


@pytest.fixture
def call(sim, machine):
    return Caller(sim, machine)


@pytest.fixture
def other(sim):
    return Caller(sim, sim.machine("b"))
