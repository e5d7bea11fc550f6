"""Sentinels that say what a test wants, about real servers."""

import contextlib

from tests.support.hostile import Hostile, bulk

COUNT = 3


class FakeSentinels:
    """The Sentinels of one master, which answer as `say` last set.

    Attributes:
        url: The URL of their node.
        ports: Their ports.
    """

    def __init__(self, replicas=0):
        self._said = None
        self._replicas = replicas
        self._stack = contextlib.ExitStack()
        servers = [self._stack.enter_context(Hostile(lambda words: [self._answer(words)])) for _ in range(COUNT)]
        self.ports = [server.port for server in servers]
        hosts = ",".join(f"127.0.0.1:{port}" for port in self.ports)
        self.url = f"redis+sentinel://{hosts}/mymaster/0?replicas={replicas}"

    def say(self, port, epoch):
        """Let them say that the master of that epoch is at a port."""
        self._said = port, epoch

    def _answer(self, words):
        if words[0].upper() != b"SENTINEL":
            return b"+OK\r\n"
        if self._said is None or words[2] != b"mymaster":
            return b"-ERR No such master with that name\r\n"
        port, epoch = self._said
        question = words[1].upper()
        if question == b"GET-MASTER-ADDR-BY-NAME":
            return _array([b"127.0.0.1", b"%d" % port])
        fields = {
            "name": "mymaster",
            "ip": "127.0.0.1",
            "port": port,
            "flags": "master",
            "num-other-sentinels": COUNT - 1,
            "config-epoch": epoch,
            "num-slaves": self._replicas,
        }
        return _array([str(word).encode() for item in fields.items() for word in item])

    def close(self):
        """End them."""
        self._stack.close()

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.close()


def _array(words):
    return b"*%d\r\n" % len(words) + b"".join(map(bulk, words))
