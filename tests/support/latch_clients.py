"""Clients of one latch on virtual nodes, and the nodes' knowledge of it."""

from redsync._core.keys import LatchKeys
from redsync._core.latches import LatchState
from redsync._protocols.latch import Latch, count_down, count_left, set_count, wait_open
from tests.simulation.stores import execute

KEYS = LatchKeys.of(b"redsync:", b"x")


class LatchCaller:
    """A client with its own latch object; `reach`: the nodes that its first rounds reach."""

    def __init__(self, world, keep=86_400.0, **timing):
        self.world, (self.session, self.owner) = world, world.session(**timing)
        self.latch = Latch("x", KEYS, keep)

    def _run(self, function, *args, reach=(), **options):
        return self.world.run(function(self.session, self.latch, self.owner, *args, self.world.now, **options), *reach)

    def set(self, n, *reach):
        return self._run(set_count, n, reach=reach)

    def count(self, *reach):
        return self._run(count_left, reach=reach)

    def down(self, *reach, n=1, timeout=0.0):
        self._run(count_down, n=n, timeout=timeout, reach=reach)

    def wait(self, timeout, *reach):
        return self._run(wait_open, timeout, reach=reach)

    def delete(self, *reach):
        self._run(set_count, 0, reach=reach)


def advance(steps, effects):
    """Play that many effects of a protocol."""
    for _ in range(effects):
        next(steps)


def finish(steps):
    """Play a protocol to its end; return its result."""
    while True:
        try:
            next(steps)
        except StopIteration as stop:
            return stop.value


def told(world, *nodes):
    """Return the knowledge of these nodes."""
    return [LatchState.read(_look(world, node)) for node in nodes]


def _look(world, node):
    store = world.stores[node]
    fields = execute(store, b"HGETALL", KEYS.latch)
    words = dict(zip(fields[::2], fields[1::2], strict=True))
    generation, size = int(words.pop(b"generation", 0)), int(words.pop(b"size", 0))
    return [generation, size, *(word for client, total in words.items() for word in (client, int(total)))]
