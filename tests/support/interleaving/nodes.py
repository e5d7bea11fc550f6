"""The other ends of a transport's connections: nodes that record what they execute, and answer one command per step."""

import hashlib
from collections import deque

import hiredis

__all__ = ["Connection", "FakeNode"]


class Connection:
    """One connection, as the node sees it."""

    def __init__(self, node, sock):
        self._node = node
        self.sock = sock
        self._reader = hiredis.Reader()
        self._asked = deque()

    def has_work(self):
        return bool(self._asked or self.sock.outbound) and not (self.sock.gone or self._node.silent)

    def work(self):
        """Read all that was sent, answer one command."""
        sock = self.sock
        if sock.outbound:
            self._reader.feed(bytes(sock.outbound))
            sock.outbound.clear()
            while (words := self._reader.gets()) is not False:
                self._asked.append(words)
        if self._asked:
            reply = self._node.execute(self._asked.popleft())
            if not sock.shut:
                sock.inbound += reply

    def lose(self, *, reset):
        """Let the network, or the node, end it."""
        self.sock.gone, self.sock.reset = True, reset
        if reset:
            self.sock.inbound.clear()


class FakeNode:
    """Answers `EVALSHA` with its last argument.

    Attributes:
        numbers: True if it answers only with the number that follows the argument's first letter.
        usual: True if it answers only with 1.
        executed: The last argument of each executed command, in order.
        scripts: Digests of the scripts that it knows.
        silent: True if it executes nothing.
        signals: The messages that it also sends, by the last argument of a command: (command, key of a mailbox).
    """

    def __init__(self):
        self.executed = []
        self.scripts = set()
        self.numbers = self.usual = self.silent = False
        self.signals = {}
        self.connections = []

    def execute(self, words):
        if words[0] == b"SCRIPT":
            self.scripts.add(hashlib.sha1(words[2]).hexdigest().encode())
            return b"+OK\r\n"
        _, sha, *_, what = words
        if sha not in self.scripts:
            return b"-NOSCRIPT No matching script.\r\n"
        self.executed.append(what)
        if self.usual:
            return b":1\r\n"
        if self.numbers:
            return b":%d\r\n" % int(what[1:])
        return self._signal(what) + b"$%d\r\n%b\r\n" % (len(what), what)

    def _signal(self, what):
        key = self.signals.get(what)
        if key is None:
            return b""
        message = b"1 " + key
        return b">3\r\n$7\r\nmessage\r\n$1\r\nw\r\n$%d\r\n%b\r\n" % (len(message), message)
