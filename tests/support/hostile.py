"""A hostile server: greets as a node does, and then sends whatever a test makes up."""

import contextlib
import itertools
import socket
import threading
import time

from redsync._drivers.handshakes import INITIALIZE

HELLO = b"%3\r\n+server\r\n+redis\r\n+version\r\n+7.0.0\r\n+proto\r\n:3\r\n"
INFO = b"run_id:%b\r\nredis_version:7.0.0\r\nuptime_in_seconds:100000\r\n"


class Hostile:
    """Answers each command with the pieces that `answer` returns for its words, as long as it can.

    Attributes:
        url: Its URL.
    """

    def __init__(self, answer):
        self._answer = answer
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port = self._listener.getsockname()[1]
        self.url = f"redis://127.0.0.1:{self.port}/0"
        self._closed = threading.Event()
        self._connections = []
        self._threads = [threading.Thread(target=self._accept, daemon=True)]
        self._threads[0].start()

    def _accept(self):
        while True:
            try:
                connection, _ = self._listener.accept()
            except OSError:
                return
            self._connections.append(connection)
            self._threads.append(threading.Thread(target=self._serve, args=(connection,), daemon=True))
            self._threads[-1].start()

    def _serve(self, connection):
        with contextlib.suppress(OSError, ValueError), connection, connection.makefile("rb") as incoming:
            while line := incoming.readline():
                words = [line]
                if line.startswith(b"*"):
                    words = []
                    for _ in range(int(line[1:])):
                        size = int(incoming.readline()[1:])
                        words.append(incoming.read(size + 2)[:-2])
                for piece in self._answer(words):
                    if self._closed.is_set():
                        return
                    connection.sendall(piece)

    def close(self):
        self._closed.set()
        with contextlib.suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        for connection in list(self._connections):
            with contextlib.suppress(OSError):
                connection.shutdown(socket.SHUT_RDWR)
        for thread in self._threads:
            thread.join(10)

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.close()


def bulk(text):
    return b"$%d\r\n%b\r\n" % (len(text), text)


def information():
    """Return the reply to INFO of a node that was never asked before."""
    return bulk(INFO % str(time.time_ns()).encode())


def handshake(words):
    """Return the replies of a node to the commands of a handshake, None to all others."""
    match words[0].upper():
        case b"HELLO":
            return HELLO
        case b"INFO":
            return information()
        case b"EVALSHA" if words[1] == INITIALIZE.sha:
            return b"*3\r\n" + bulk(b"original 1000000000000 a") + b":%d\r\n" % (time.time() * 1000) + bulk(b"a")
        case b"SCRIPT":
            return bulk(b"a" * 40)
        case b"SUBSCRIBE":
            return b">3\r\n+subscribe\r\n" + bulk(words[1]) + b":1\r\n"
        case b"PING":
            return b"+PONG\r\n"
        case b"CLIENT" | b"SELECT":
            return b"+OK\r\n"
    return None


def dribble(first, then=b"x", every=0.05):
    """Begin with `first`, and never end."""
    yield first
    for _ in itertools.count():
        time.sleep(every)
        yield then


NUMBERS = (0, 1, 2, 3, -1, -2, 1000, 29_999, 10**9, 2**53, 2**63 - 1, -(2**63))
TEXTS = (
    b"",
    b"1",
    b"0 1",
    b"7 3",
    b"3,17",
    b"-5",
    b"nan",
    b"1e999",
    b"client:1",
    b"9" * 40,
    b"\xff\xfe",
    b"\x1b]0;x\x07",
    b"r:a:1",
)


def make_answer(rng, depth=0):
    """Return a random reply."""
    kind = rng.choice("::::$$$$****_,(#%~=+-" if depth < 4 else "::$$_")
    match kind:
        case ":":
            return b":%d\r\n" % rng.choice(NUMBERS)
        case "$":
            return bulk(rng.choice(TEXTS))
        case "=":
            return b"=%d\r\ntxt:%b\r\n" % (len(text := rng.choice(TEXTS)) + 4, text)
        case "_" | "#":
            return {"_": b"_\r\n", "#": b"#t\r\n"}[kind]
        case ",":
            return rng.choice([b",nan\r\n", b",inf\r\n", b",-inf\r\n", b",1.5\r\n"])
        case "(":
            return b"(" + b"9" * rng.choice([1, 20, 400, 5000]) + b"\r\n"
        case "%":
            n = rng.randint(0, 3)
            keys = [b"*0\r\n" if rng.random() < 0.1 else bulk(b"%d" % i) for i in range(n)]
            return b"%%%d\r\n" % n + b"".join(key + make_answer(rng, depth + 1) for key in keys)
        case "+" | "-":
            words = rng.choice(
                [
                    b"OK",
                    b"",
                    b"ERR \x1b[31m\xff",
                    b"FORGETFUL 5",
                    b"FORGETFUL -1",
                    b"NOSCRIPT",
                    b"BUSY x",
                    b"MOVED 1 a:1",
                ]
            )
            return kind.encode() + words + b"\r\n"
    n = rng.choice([0, 1, 2, 3, 4, 5, 6])
    return f"{kind}{n}\r\n".encode() + b"".join(make_answer(rng, depth + 1) for _ in range(n))
