"""`redsync bench`: the cost of a lock on these nodes, next to the lower bound: bare sockets and a majority."""

from __future__ import annotations

import contextlib
import select
import socket
import time
import uuid
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from statistics import median, quantiles
from typing import Any, Final

from redsync.cli.asking import Node, Nodes, spelling_of
from redsync.cli.exits import FINE, UNAVAILABLE, UNCONFIGURED, SetupError, status_of
from redsync.cli.output import put, write_json
from redsync.cli.writing import complain, table

__all__ = ["bench"]

PINGS: Final = 11
WARM_UP: Final = 20
LEASE: Final = 10.0


def bench(options: Any) -> int:
    """Time pairs of acquire and release, in turn with pairs on bare sockets."""
    with Nodes.chosen(options) as nodes:
        if any(spelling_of(node.redis).tag for node in nodes.nodes):
            # The bare sockets do not know which server has a slot.
            raise SetupError("bench can't measure a cluster: give it plain nodes", UNCONFIGURED)
        answers = nodes.ask(lambda client: median(_spent(client.ping) for _ in range(PINGS)))
        complain(answers)
        if status := nodes.status(answers):
            return status
        floors, locks = _measure(nodes, options.seconds)
        found = {"floor": _figures(floors), "redsync": _figures(locks)}
        ratio = found["redsync"]["p50"] / found["floor"]["p50"]
        if options.json:
            pings = [{"node": answer.node, "error": answer.error, "latency": answer.value} for answer in answers]
            write_json({"pairs": len(locks), **found, "ratio": ratio, "nodes": pings})
            return FINE
        rows = [(answer.node, _ms(answer.value)) for answer in answers]
        put(*table(("NODE", "ROUND TRIP"), rows), "")
        named = (("bare sockets", found["floor"]), ("redsync", found["redsync"]))
        rows_of_pairs = [(name, _ms(figures["p50"]), _ms(figures["p99"])) for name, figures in named]
        put(*table(("ACQUIRE + RELEASE", "MEDIAN", "99 %"), rows_of_pairs), "")
        put(f"{len(locks):,} pairs of each, in turn: redsync takes {ratio:.2f} x as long as bare sockets")
        return FINE


def _measure(nodes: Nodes, seconds: float) -> tuple[list[float], list[float]]:
    from redsync.client import Client
    from redsync.exceptions import RedsyncError

    name = f"bench:{uuid.uuid4()}"
    floors: list[float] = []
    locks: list[float] = []
    try:
        with (
            Client(nodes.urls, prefix=nodes.prefix.decode(), restart_guard=0.0) as client,
            _Floor(nodes.nodes, nodes.quorum, nodes.timeout, nodes.prefix + name.encode() + b":floor") as floor,
        ):
            lock = client.get_lock(name)

            def pair() -> None:
                # `with` would wait forever if too few nodes answer.
                if not lock.acquire(timeout=nodes.timeout):
                    raise SetupError("another program holds the lock, although its name is random", UNAVAILABLE)
                lock.release()

            until = 0.0
            while not until or time.perf_counter() < until or len(locks) < 2:
                floors.append(_spent(floor.pair))
                locks.append(_spent(pair))
                if not until and len(locks) == WARM_UP:
                    floors, locks, until = [], [], time.perf_counter() + seconds
    except RedsyncError as error:
        raise SetupError(str(error), status_of(error)) from error
    return floors, locks


def _spent(function: Callable[[], object]) -> float:
    begun = time.perf_counter()
    function()
    return time.perf_counter() - begun


def _figures(spent: Sequence[float]) -> dict[str, float]:
    return {"p50": median(spent), "p99": quantiles(spent, n=100, method="inclusive")[-1]}


def _ms(seconds: float | None) -> str:
    return "-" if seconds is None else f"{seconds * 1000:.3f} ms"


@dataclass
class _Link:
    connection: Any
    sock: socket.socket
    reader: Any
    owed: int = field(default=0)


class _Floor:
    """The cheapest possible lock: each round writes to all sockets, and ends once a majority has answered."""

    def __init__(self, nodes: Sequence[Node], quorum: int, timeout: float, key: bytes) -> None:
        self._quorum, self._timeout = quorum, timeout
        self._links = [link for node in nodes if (link := _connect(node)) is not None]
        lease_ms = b"%d" % (LEASE * 1000)
        self._acquire = _packed(b"SET", key, b"bench", b"NX", b"PX", lease_ms)
        self._release = _packed(b"DEL", key)

    def pair(self) -> None:
        """Acquire and release the lock.

        Raises:
            SetupError: Too few nodes answered.
        """
        self._round(self._acquire)
        self._round(self._release)

    def _round(self, command: bytes) -> None:
        for link in self._links:
            link.sock.sendall(command)
            link.owed += 1
        answered, waited_for = 0, {link.sock: link for link in self._links}
        while answered < self._quorum:
            ready = select.select(list(waited_for), [], [], self._timeout)[0]
            if not ready:
                raise SetupError("too few nodes answered the bare sockets", UNAVAILABLE)
            for sock in ready:
                link = waited_for[sock]
                data = sock.recv(65536)
                if not data:
                    raise SetupError("a node closed its connection", UNAVAILABLE)
                link.reader.feed(data)
                # hiredis returns False until a reply is complete; no reply to SET or DEL is False.
                while link.reader.gets() is not False:
                    link.owed -= 1
                if link.owed == 0:
                    answered += 1
                    del waited_for[sock]

    def __enter__(self) -> _Floor:
        return self

    def __exit__(self, *_: object) -> None:
        for link in self._links:
            link.connection.disconnect()


def _connect(node: Node) -> _Link | None:
    import hiredis
    from redis.exceptions import RedisError

    with contextlib.suppress(OSError, RedisError):
        connection: Any = node.redis.connection_pool.make_connection()
        connection.connect()
        return _Link(connection, connection._sock, hiredis.Reader())
    return None


def _packed(*words: bytes) -> bytes:
    return b"*%d\r\n" % len(words) + b"".join(b"$%d\r\n%s\r\n" % (len(word), word) for word in words)
