"""Sentinels that say what a test wants, about real servers."""

import contextlib

from tests.support.hostile import Hostile, bulk


class FakeSentinels:
    """Some Sentinels of one master, which answer as `say` last set, together or separately.

    Attributes:
        url: The URL of their node.
        ports: Their ports.
        questions: The number of questions that each has answered.
    """

    def __init__(self, count=3, replicas=0):
        self._words = [None] * count
        self.questions = [0] * count
        self._replicas = replicas
        self._stack = contextlib.ExitStack()
        self._servers = [
            self._stack.enter_context(Hostile(lambda words, index=index: [self._answer(index, words)]))
            for index in range(count)
        ]
        self.ports = [server.port for server in self._servers]
        hosts = ",".join(f"127.0.0.1:{port}" for port in self.ports)
        self.url = f"redis+sentinel://{hosts}/mymaster/0?replicas={replicas}"

    def say(self, port, epoch, *, only=None):
        """Let all of them, or one, say that the master of that epoch is at a port."""
        for index in range(len(self._words)) if only is None else [only]:
            self._words[index] = port, epoch

    def _answer(self, index, words):
        if words[0].upper() != b"SENTINEL":
            return b"+OK\r\n"
        self.questions[index] += 1
        if self._words[index] is None or words[2] != b"mymaster":
            return b"-ERR No such master with that name\r\n"
        port, epoch = self._words[index]
        question = words[1].upper()
        if question == b"GET-MASTER-ADDR-BY-NAME":
            return _array([b"127.0.0.1", b"%d" % port])
        fields = {
            "name": "mymaster",
            "ip": "127.0.0.1",
            "port": port,
            "flags": "master",
            "num-other-sentinels": len(self._words) - 1,
            "config-epoch": epoch,
            "num-slaves": self._replicas,
        }
        return _array([str(word).encode() for item in fields.items() for word in item])

    def close(self, index=None):
        """End one of them, or all."""
        if index is None:
            self._stack.close()
        else:
            self._servers[index].close()

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.close()


def _array(words):
    return b"*%d\r\n" % len(words) + b"".join(map(bulk, words))
