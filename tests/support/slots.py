"""A semaphore of a toy client, and its nodes' replies about slots."""

from redsync._core.limits import Limit
from redsync._core.slots import SlotKeys
from redsync._protocols.semaphore import SEMAPHORE, Pool, acquire

__all__ = ["ASK", "NO_LIMIT", "ROLLBACK", "V1", "ToySemaphore", "full", "other_limit", "taken", "told"]

V1 = 1 << 32
ASK, ROLLBACK = "ask semaphore_acquire for a place", "tell semaphore_abandon"
NO_LIMIT = [-1, b"limit", 0, 0, b"", 4]


def full(highest=0, ahead=0):
    return [20_000, b"full", highest, ahead, b"", 4]


def taken(*slots, permits=4):
    bits = bytearray(-(-permits // 8))
    for slot in slots:
        bits[slot // 8] |= 1 << (7 - slot % 8)
    return [20_000, b"taken", 0, 0, bytes(bits), permits]


def other_limit(version, permits):
    return [-1, b"limit", 0, 0, b"%d %d" % (version, permits), permits]


def told(*mine, others=()):
    """A grant of the first slots that also names slots taken by others."""
    bits = bytearray(2)
    for slot in (*mine, *others):
        bits[slot // 8] |= 1 << (7 - slot % 8)
    return [b",".join(b"%d" % slot for slot in mine), bytes(bits)]


class ToySemaphore:
    """A toy client's semaphore, by default of 4 permits."""

    def __init__(self, toy, permits=4):
        self.toy = toy
        self.keys = SlotKeys.of(b"redsync:", b"x")
        self.limit = Limit(permits)
        self.pool = Pool("x", self.keys, self.limit)

    def steps(self, n=1, *, timeout=0.0, **fields):
        toy = self.toy
        owner = toy.new_owner()
        fields = {"kind": SEMAPHORE, "keys": self.keys, "owner": owner, "timeout": timeout, **fields}
        request = toy.request(holds=n, **fields)
        return acquire(toy.session, request, self.limit, toy.now)

    def play(self, *script, n=1, **fields):
        return self.toy.play(self.steps(n, **fields), *script)

    @property
    def exact(self):
        """The exact requests, round by round."""
        return [c.args[10] for c in self.toy.commands if c.script is SEMAPHORE.acquire]
