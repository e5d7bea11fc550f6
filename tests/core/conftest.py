"""One real node, and what tests of scripts need of it."""

import contextlib

import pytest
import redis

from redsync._core.scripts import Script
from redsync.testing import LocalNodes


class Node:
    """A server and a plain connection to it."""

    def __init__(self, port):
        self.port = port
        self.redis = redis.Redis(port=port, socket_timeout=10)

    def run(self, name, keys, *args):
        """Run a shipped script, by its digest as the drivers do."""
        script = Script.load(name)
        try:
            return self.redis.evalsha(script.sha.decode(), len(keys), *keys, *args)
        except redis.exceptions.NoScriptError:
            self.redis.script_load(script.source)
            return self.redis.evalsha(script.sha.decode(), len(keys), *keys, *args)

    @contextlib.contextmanager
    def listening(self, *channels):
        """Return a subscription that has begun; `messages` reads what it got."""
        with self.redis.pubsub() as subscription:
            subscription.subscribe(*channels)
            for _ in channels:
                assert subscription.get_message(timeout=5)["type"] == "subscribe"
            yield subscription

    def messages(self, subscription):
        """Return all that was published to a subscription so far: a server hands out in order."""
        self.redis.publish(next(iter(subscription.channels)), b"the end")
        found = []
        while True:
            message = subscription.get_message(timeout=5)
            assert message is not None, "a message that was published did not arrive"
            if message["data"] == b"the end":
                return found
            found.append((message["channel"], message["data"]))

    @contextlib.contextmanager
    def out_of_memory(self):
        """Let the server refuse all that needs memory."""
        self.redis.config_set("maxmemory", 1)
        try:
            with pytest.raises(redis.exceptions.OutOfMemoryError):
                self.redis.set("any", "thing")
            yield
        finally:
            self.redis.config_set("maxmemory", 0)

    def dump(self):
        """Return all keys with their values, ready to be compared."""
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
