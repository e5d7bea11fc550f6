"""Handshakes: the first commands on a new connection, before any others."""

from __future__ import annotations

import functools
import re
from typing import Any, Final

import hiredis

from redsync._core.memory import BIRTH_KEY, GREET, Birth, elected
from redsync._core.replies import UNREADABLE
from redsync._core.scripts import Script
from redsync._core.text import outline, printable
from redsync._drivers.acknowledgements import reason_against, wait_commands
from redsync._drivers.handshake_connections import HandshakeSteps, pack
from redsync._drivers.nodes import ConnectionId, Node, NodeInfo
from redsync._drivers.requests import Codec
from redsync.exceptions import ConfigurationError

__all__ = ["INITIALIZE", "introduce", "join", "load_scripts", "shake_hands", "subscribe"]

INITIALIZE: Final = Script.load("node_initialize")

_HELLO: Final = pack("HELLO", "3")


def introduce(node: Node, timeout: float, channel: bytes) -> HandshakeSteps[tuple[NodeInfo, ConnectionId | None]]:
    """Begin the connection by which a node is up; return the node's description of itself, and what `join` returns.

    Args:
        node: The node at the other end.
        timeout: As for `shake_hands`.
        channel: The client's channel for wake-ups.
    """
    info = yield from shake_hands(node, timeout)
    (number,) = yield [pack("CLIENT", "ID")]
    connection_id = None if info.run_id is None else _connection_id(info.run_id, number)
    yield from load_scripts()
    yield from subscribe(node.codec, channel)
    return info, connection_id


def shake_hands(node: Node, timeout: float) -> HandshakeSteps[NodeInfo]:
    """Determine since when a node remembers, and return its description of itself.

    The connection by which a node is up begins with this: the server may be another process than before.

    If replicas must acknowledge votes, the node may wait `timeout` seconds for them.

    Raises:
        ConnectionError: The node is unusable in its current state.
        ConfigurationError: The node is unusable by its address alone.
    """
    hello, *replies = yield from _ask("a handshake", _HELLO, pack("INFO", "server"), pack("INFO", "replication"))
    _require_resp3(hello)
    text, fields = _fields(replies[0])
    replication = _fields(replies[1])[1]
    _require_master(replication)
    if "cluster" in (fields.get("redis_mode"), fields.get("server_mode")) and not node.has_slot:
        raise ConfigurationError(
            f"{node.address} is part of a cluster, which keeps most keys on other nodes: give the whole cluster, "
            f"redis+cluster://host:6379,host:6379?nodes=3"
        )
    server = fields.get("server_name", "redis")
    uptime = None
    if server != "fakeredis":  # An instance has no start.
        if not re.fullmatch("-?[0-9]{1,15}", fields.get("uptime_in_seconds", "")):
            raise ConnectionError(f"does not tell its uptime: it is not Redis or Valkey ({text!r:.60})")
        uptime = float(int(fields["uptime_in_seconds"]))
    number = fields.get(f"{server}_version") or fields.get("redis_version", "?")
    version = printable(f"{server} {number:.60}")
    run_id, history = fields.get("run_id"), replication.get("master_replid", "0")
    words: list[bytes | str] = [INITIALIZE.sha, "1", node.codec.key(BIRTH_KEY), GREET]
    if node.location is not None:
        if run_id is None:
            raise ConnectionError("hides its run_id: clients can't tell it from the server that it replaced")
        words += [b"", elected(run_id, node.location.epoch, history)]
    waiting = wait_commands(node.codec, node.needed, timeout) if node.needed else []
    load, look = pack("SCRIPT", "LOAD", INITIALIZE.source), pack("EVALSHA", *words)
    _, reply, *following = yield from _ask("the birth record", load, look, *waiting)
    reason = reason_against(node.codec, following, node.needed) if waiting else None
    if reason is not None:
        # Otherwise its replicas might still acknowledge grants of its predecessor, no matter how old the record is.
        raise ConnectionError(f"its birth record must last, but {reason}")
    try:
        process, birth = Birth.initialized(reply)
    except UNREADABLE as error:
        raise ConnectionError(f"the birth record was not understood: {error}") from None
    return NodeInfo(run_id, version, uptime, birth, process)


def join(node: Node, generation: int) -> HandshakeSteps[ConnectionId | None]:
    """Make one more connection to a node that is known; return an entry for `Node.former`.

    `generation` is that of the node before the connect.

    Raises:
        ConnectionError: Another server answers, or another process of it: the node needs a handshake first. Or it is
            busy, so the connection could not be ended later.
    """
    if node.info is None or node.info.run_id is None:
        return None
    hello, reply, number = yield [_HELLO, pack("INFO", "server"), pack("CLIENT", "ID")]
    _require_resp3(hello)
    if isinstance(reply, hiredis.ReplyError):
        raise ConnectionError(f"INFO was refused: {reply}")
    process = _fields(reply)[1].get("run_id")
    if process != node.info.run_id or node.generation != generation:
        raise ConnectionError("another server process answers than the one that is known")
    return _connection_id(process, number)


def _require_resp3(hello: Any) -> None:
    """Refuse a server that can't mix messages and replies on one connection."""
    if isinstance(hello, hiredis.ReplyError):
        raise ConnectionError(f"HELLO was refused: {hello}")
    if not isinstance(hello, dict):
        raise ConnectionError(f"answers HELLO with {outline(hello)}: it does not speak RESP3")


def _fields(reply: Any) -> tuple[str, dict[str, str]]:
    text = reply.decode("utf-8", "replace") if isinstance(reply, bytes) else str(reply)
    return text, dict(line.split(":", 1) for line in text.splitlines() if ":" in line)


def _require_master(fields: dict[str, str]) -> None:
    """Refuse a replica: it accepts no claims, and its memory is its master's."""
    if fields.get("role") != "slave":
        return
    master = printable(f"{fields.get('master_host', '?'):.100}:{fields.get('master_port', '?'):.10}")
    raise ConnectionError(
        f"is a replica of {master}: give the master's address, or that of the Sentinels as redis+sentinel://"
    )


def _connection_id(process: str, number: Any) -> ConnectionId | None:
    """Return an entry for `Node.former`, from the reply to CLIENT ID; None if the node does not tell its number."""
    if isinstance(number, hiredis.ReplyError) and str(number).startswith("BUSY"):
        raise ConnectionError(f"CLIENT was refused: {number}")
    return (process, number) if isinstance(number, int) else None


def load_scripts() -> HandshakeSteps[None]:
    """Load the scripts that a node lacks, before their first use; a node that refuses them gets them when needed.

    The question saves most connections 150 kB, and the node 0.5 ms of hashing. A node that does not answer it gets all
    scripts.
    """
    question, loads = _scripts()
    (known,) = yield [question]
    if not isinstance(known, list) or len(known) != len(loads):
        known = [0] * len(loads)
    if missing := [load for load, is_known in zip(loads, known, strict=True) if is_known != 1]:
        yield missing


@functools.cache
def _scripts() -> tuple[bytes, list[bytes]]:
    """Return the command that asks which scripts a node has, and the commands that load them."""
    shipped = Script.shipped()
    question = pack("SCRIPT", "EXISTS", *(script.sha for script in shipped))
    return question, [pack("SCRIPT", "LOAD", script.source) for script in shipped]


def subscribe(codec: Codec, channel: bytes) -> HandshakeSteps[None]:
    """Subscribe this connection to a channel, unless the node can't or does not allow it."""
    # In RESP3 the answer to a granted SUBSCRIBE is a push, which is not counted; an error would be the first reply.
    (reply,) = yield [codec.subscription(channel) + pack("PING")]
    if reply in (b"PONG", "PONG"):
        return
    if not isinstance(reply, hiredis.ReplyError):
        raise ConnectionError(f"answers SUBSCRIBE with {outline(reply)}: it does not speak RESP3")
    yield [b""]  # The PING's reply follows the error.


def _ask(what: str, *commands: bytes) -> HandshakeSteps[list[Any]]:
    replies = yield list(commands)
    for reply in replies:
        if isinstance(reply, hiredis.ReplyError):
            raise ConnectionError(f"{what} was refused: {reply}")
    return replies
