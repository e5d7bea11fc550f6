"""A server that speaks RESP and says whatever a test wants: errors, nonsense, silence."""

import contextlib
import socket
import threading
import time

__all__ = ["GARBAGE", "HELLO", "INFO", "LOADING", "ODD_ANSWERS", "FakeServer", "answering"]


class FakeServer:
    """Answers each command by what `answer` makes of its words; None closes the connection."""

    def __init__(self, answer):
        self._answer = answer
        self._listener = socket.create_server(("127.0.0.1", 0))
        self._connections = []
        self.port = self._listener.getsockname()[1]
        self._threads = [threading.Thread(target=self._accept)]
        self._threads[0].start()

    @property
    def url(self):
        return f"redis://127.0.0.1:{self.port}/0"

    def _accept(self):
        while True:
            try:
                connection, _ = self._listener.accept()
            except OSError:
                return
            self._connections.append(connection)
            self._threads.append(threading.Thread(target=self._serve, args=(connection,)))
            self._threads[-1].start()

    def _serve(self, connection):
        with contextlib.suppress(OSError, ValueError), connection, connection.makefile("rb") as incoming:
            while line := incoming.readline():
                words = []
                for _ in range(int(line[1:])):
                    size = int(incoming.readline()[1:])
                    words.append(incoming.read(size + 2)[:-2])
                reply = self._answer(words)
                if reply is None:
                    return
                connection.sendall(reply)

    def close(self):
        with contextlib.suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        for connection in list(self._connections):
            with contextlib.suppress(OSError):
                connection.shutdown(socket.SHUT_RDWR)
        for thread in self._threads:
            thread.join()


HELLO = b"%3\r\n+server\r\n+redis\r\n+version\r\n+7.0.0\r\n+proto\r\n:3\r\n"
INFO = b"run_id:%b\r\nredis_version:7.0.0\r\nuptime_in_seconds:1000\r\n"
LOADING = b"-LOADING Redis is loading the dataset in memory\r\n"


def answering(**answers):
    """Return an `answer` that greets as a node does, and says to each command what it is told here, or OK."""
    answers = {"hello": HELLO, "subscribe": b"", "ping": b"+PONG\r\n", **answers}

    def answer(words):
        command = words[0].decode().lower()
        if command in answers:
            return answers[command]
        if command == "info":
            text = INFO % str(time.time_ns()).encode()
            return b"$%d\r\n%b\r\n" % (len(text), text)
        return b"+OK\r\n"

    return answer


GARBAGE = b"\x00garbage\r\n"

# Not the commands that redis-py sends at a connect: it deals with these replies itself.
ODD_ANSWERS = {
    "loading": answering(script=LOADING, subscribe=LOADING, ping=LOADING, evalsha=LOADING),
    "silent": lambda words: b"",
    "silent_on_evalsha": answering(evalsha=b""),
    "closing": lambda words: None,
    "closing_on_info": answering(info=None),
    "closing_on_evalsha": answering(evalsha=None),
    "no_resp": lambda words: b"HTTP/1.1 400 Bad Request\r\n\r\n",
    "ok_to_all": lambda words: b"+OK\r\n",
    "null_to_all": lambda words: b"_\r\n",
    "empty_info": answering(info=b"$0\r\n\r\n"),
    "number_for_info": answering(info=b":1\r\n"),
    "garbage_for_info": answering(info=GARBAGE),
    "garbage_for_scripts": answering(script=GARBAGE),
    "garbage_for_subscribe": answering(subscribe=GARBAGE),
    "garbage_for_evalsha": answering(evalsha=GARBAGE),
    "text_for_evalsha": answering(evalsha=b"+OK\r\n"),
    "too_much_for_evalsha": answering(evalsha=b"_\r\n" * 3),
    "list_for_evalsha": answering(evalsha=b"*3\r\n:1\r\n:2\r\n_\r\n"),
}
