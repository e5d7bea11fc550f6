"""One real node, and helpers for tests of scripts: the scripts as functions of the arguments that vary."""

import contextlib

import pytest
import redis

from redsync._core.keys import LockKeys
from redsync._core.scripts import Script
from redsync.testing import LocalNodes


class Node:
    """A server and a plain connection to it."""

    def __init__(self, port):
        self.port = port
        self.redis = redis.Redis(port=port, socket_timeout=10)

    def run(self, name, keys, *args):
        """Run a shipped script by its digest, as the drivers do."""
        script = Script.load(name)
        try:
            return self.redis.evalsha(script.sha.decode(), len(keys), *keys, *args)
        except redis.exceptions.NoScriptError:
            self.redis.script_load(script.source)
            return self.redis.evalsha(script.sha.decode(), len(keys), *keys, *args)

    def now(self):
        """Return the server's time, ms."""
        seconds, micros = self.redis.time()
        return seconds * 1000 + micros // 1000

    @contextlib.contextmanager
    def listening(self, *channels):
        """Return a subscription that has begun; `messages` reads it."""
        with self.redis.pubsub() as subscription:
            subscription.subscribe(*channels)
            for _ in channels:
                assert subscription.get_message(timeout=5)["type"] == "subscribe"
            yield subscription

    def messages(self, subscription):
        """Return all messages of a subscription so far: a server delivers in order."""
        self.redis.publish(next(iter(subscription.channels)), b"the end")
        found = []
        while True:
            message = subscription.get_message(timeout=5)
            assert message is not None, "a published message did not arrive"
            if message["data"] == b"the end":
                return found
            found.append((message["channel"], message["data"]))

    @contextlib.contextmanager
    def out_of_memory(self):
        """Make the server refuse all commands that need memory."""
        self.redis.config_set("maxmemory", 1)
        try:
            with pytest.raises(redis.exceptions.OutOfMemoryError):
                self.redis.set("any", "thing")
            yield
        finally:
            self.redis.config_set("maxmemory", 0)

    @contextlib.contextmanager
    def refused_claims(self):
        """Make the server refuse to write claims, by any command, and accept everything else."""
        self.redis.acl_setuser("default", enabled=True, commands=["-hset", "-set"])
        try:
            yield
        finally:
            self.redis.acl_setuser("default", enabled=True, commands=["+hset", "+set"])

    def dump(self):
        """Return all keys with their values, ready for comparison."""
        readers = {
            b"hash": self.redis.hgetall,
            b"zset": lambda key: self.redis.zrange(key, 0, -1, withscores=True),
            b"string": self.redis.get,
            b"list": lambda key: self.redis.lrange(key, 0, -1),
            b"set": self.redis.smembers,
        }
        return {key: readers[self.redis.type(key)](key) for key in sorted(self.redis.keys("*"))}


@pytest.fixture(scope="session")
def _one_node():
    with LocalNodes(1) as nodes:
        yield nodes


@pytest.fixture
def node(_one_node):
    """A real and empty server."""
    _one_node.reset()
    node = Node(_one_node.ports[0])
    yield node
    node.redis.close()


def process_of(node):
    """Return the name of a server's process in birth records."""
    return node.info("server")["run_id"][:16]


def guard_of(ms, process="-"):
    """Return the guard as scripts get it: how long a node must have remembered everything, and under which process."""
    return b"%d,other,%s," % (ms, process.encode()) if ms else 0


NO_GUARD = -1
"""For `queue`: the guard argument of a fenced lock that guards no memory; its tokens depend on the node's memory."""


KEYS = LockKeys.of(b"redsync:", b"x")
ME, OTHER, THIRD, FOURTH = b"client-a:1", b"client-b:2", b"client-c:3", b"client-d:4"
EARLIER = b"client-a:0"
"""A claim of an earlier hold of ME's owner."""
LEASE, PLACE = 30_000, 5_000
NEW, EXISTING, WRONG_TYPE = 1, 2, 0
SLACK = 2_000
"""Milliseconds that a test on a busy machine may take."""


def wake_channel(claim):
    return b"redsync:wake:" + claim.replace(b":", b"-")


def waiter_of(claim):
    """Return the owner of a claim, as in queues."""
    return claim.rpartition(b":")[0]


class Claims:
    """The scripts of one kind of claim. All times in ms."""

    def __init__(self, node, noun):
        self.node, self.noun = node, noun
        self.redis = node.redis

    @property
    def value_type(self):
        return "string" if self.noun == "mutex" else "hash"

    @property
    def acquires(self):
        """The name of the script that claims it."""
        return "lock_acquire" if self.noun == "mutex" else f"{self.noun}_acquire"

    def count(self, count):
        """Return a hold count as an argument of scripts."""
        return b"" if self.noun == "mutex" else count

    def value(self, owner=ME, count=1):
        """Return the value that a node keeps for that owner: a mutex counts nothing."""
        return owner if self.noun == "mutex" else {owner: b"%d" % count}

    def acquire(self, owner=ME, count=1, lease=LEASE, *, guard=0, keys=KEYS):
        if self.noun == "fair_lock":
            return self.queue(owner, count, lease, guard=guard, place=0, ticket=0, keys=keys)
        return self.node.run(self.acquires, (keys.lock,), owner, self.count(count), lease, guard_of(guard))

    def queue(
        self,
        owner=ME,
        count=1,
        lease=LEASE,
        *,
        guard=0,
        place=PLACE,
        waited=0,
        ticket=None,
        ask_id=0,
        keys=KEYS,
        channel=None,
    ):
        """Ask for a place too; a fair lock gives the last one, whatever the time waited. Id 0: to be woken only."""
        rank = waited
        if self.noun == "fair_lock":
            rank = self._ticket(owner, keys) if ticket is None else ticket
        channel = channel or wake_channel(owner)
        told = b"0,other,-," if guard == NO_GUARD else guard_of(guard)
        words = owner, self.count(count), lease, told, place, rank, channel, ask_id
        return self.node.run(self.acquires, keys.all, *words)

    def _ticket(self, owner, keys):
        """Return the ticket that the owner has on this node, or else the next one."""
        ticket = self.redis.zscore(keys.queue, waiter_of(owner))
        highest = self.redis.zrange(keys.queue, -1, -1, withscores=True)
        return int(ticket or (highest[0][1] + 1 if highest else 1))

    def line_up(self, *owners, **options):
        """Queue several waiters, the first of them at the head."""
        for i, owner in enumerate(owners):
            self.queue(owner, waited=1_000 * (len(owners) - i), **options)

    def release(self, owner=ME, count=0, keys=KEYS):
        return self.node.run("lock_release", keys.all, owner, count, keys.channel)

    def abandon(self, owner=ME):
        """Roll an attempt back whose owner continues to wait."""
        return self.release(owner, -1)

    def renew(self, *claims, guarded=False):
        """Renew claims, each a tuple: name of the lock, owner, count, lease."""
        names = [b"redsync:" + claim[0] for claim in claims]
        words = [word for _, owner, count, lease in claims for word in (owner, self.count(count), lease)]
        return self.node.run("lock_renew", names, *words, *([1] if guarded else []))

    def inspect(self, keys=KEYS):
        return self.node.run("name_inspect", keys.everything, 100, 100, 1)

    def put(self, owner):
        """Write a claim without expiry, as none of our scripts does."""
        self.redis.set(KEYS.lock, owner) if self.noun == "mutex" else self.redis.hset(KEYS.lock, owner, 1)

    def said(self, owner, ask_id=0, keys=KEYS):
        """Return the message that hands over to that waiter; with id 0, the one that only wakes it."""
        return wake_channel(owner), b"%d %s %s" % (ask_id, waiter_of(owner), keys.lock)

    def holds(self, key=KEYS.lock):
        """Return a hash unchanged."""
        return self.redis.hgetall(key)

    def holder(self):
        """Return the claim that is there; None if there is none."""
        if self.noun == "mutex":
            return self.redis.get(KEYS.lock)
        owners = self.holds()
        assert len(owners) <= 1
        return next(iter(owners), None)

    def left(self, key=KEYS.lock):
        return self.redis.pttl(key)

    def waiters(self):
        """Return the claims of the waiters with a place, the head first; each has an entry in both keys or in none."""
        waiters, places = self.redis.zrange(KEYS.queue, 0, -1), self.holds(KEYS.places)
        assert set(places) == set(waiters)
        return [waiter + b":" + places[waiter].split()[1] for waiter in waiters]

    def place(self, claim):
        """Return the words of a place: its expiry, ask id, guard and channel."""
        expiry, number, ask_id, guard, channel = self.holds(KEYS.places)[waiter_of(claim)].split(b" ", 4)
        assert number == claim.rpartition(b":")[2]
        return int(expiry), int(ask_id), int(guard.partition(b",")[0]), channel

    def end_place(self, claim, after=0):
        """Make a place end that many ms from now, as if the time until then had passed."""
        waiter = waiter_of(claim)
        _, _, rest = self.holds(KEYS.places)[waiter].partition(b" ")
        self.redis.hset(KEYS.places, waiter, b"%d %s" % (self.now() + after, rest))

    def now(self):
        return self.node.now()


@pytest.fixture
def locks(node):
    """The reentrant lock's scripts."""
    return Claims(node, "lock")


@pytest.fixture
def mutexes(node):
    """The mutex's scripts."""
    return Claims(node, "mutex")


@pytest.fixture(params=["lock", "mutex"])
def claims(request, node):
    """The scripts of either kind, for the behaviour that both share."""
    return Claims(node, request.param)


@pytest.fixture(params=["lock", "mutex", "fair_lock"])
def each(request, node):
    """The scripts of each kind, for the behaviour that their waiters share."""
    return Claims(node, request.param)


@pytest.fixture
def heard(node):
    """Listen for all waiters; return a function that reads the messages since its last call."""
    with node.listening(*map(wake_channel, (ME, OTHER, THIRD, FOURTH))) as subscription:
        yield lambda: node.messages(subscription)


@pytest.fixture
def write_foreign(node):
    """Put a value of another type at the key of a claim."""

    def write(kind, key=KEYS.lock):
        {
            "string": lambda: node.redis.set(key, "a lock of the Redlock page"),
            "list": lambda: node.redis.rpush(key, "a", "b"),
            "set": lambda: node.redis.sadd(key, "a"),
            "zset": lambda: node.redis.zadd(key, {ME: 1}),
            "hash": lambda: node.redis.hset(key, OTHER, 1),
        }[kind]()

    return write


@pytest.fixture
def lasts():
    """Return whether a remaining time is as wanted, less the time in ms that a test on a busy machine may take."""
    return lambda actual, wanted, slack=2_000: wanted - slack < actual <= wanted
