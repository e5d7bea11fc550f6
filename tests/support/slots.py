"""A semaphore of a toy client, and its nodes' replies about slots."""

from redsync._core.permits import Limit, SlotKeys
from redsync._protocols.semaphore import SEMAPHORE, Pool, acquire

V1 = 1 << 32
ASK = "ask semaphore_acquire for a place"
ROLLBACK, LEAVE = "tell semaphore_abandon, stay", "tell semaphore_abandon"


def full(highest=0, ahead=0):
    return [20_000, b"full", highest, ahead, b""]


def other_limit(version, permits):
    return [-1, b"limit", 0, 0, b"%d %d" % (version, permits)]


def got(*mine, others=()):
    """A grant of the first slots; others have the second."""
    bits = bytearray(2)
    for slot in (*mine, *others):
        if slot < 16:
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
        return [c.args[9] for c in self.toy.commands if c.script is SEMAPHORE.acquire]
