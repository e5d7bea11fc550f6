"""A virtual node whose clock is set by hand."""

import hashlib

import pytest

from redsync._core.scripts import Script
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
