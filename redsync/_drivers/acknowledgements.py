"""Acknowledgements: a vote of a node with replicas counts once enough of them have its write.

A failed master loses the writes that its replicas lack. A master that is cut off from its replicas continues voting
while another is promoted, so the node would vote twice. So a majority of the *configured* group, including the master,
must have a vote: `WAIT` follows the commands of a write, and the link holds their votes back until it is answered. Two
majorities of a group share a server, so a write that one acknowledged is known to the other, or older.

`WAIT` counts the replicas that have the last write of *this connection*. After a vote that wrote nothing (the claim
already existed), it would wait for nothing. So a small write precedes each `WAIT` (`Codec.small_write`).

A release or a rollback does not have to last: if the group loses one, the claim expires.

Nodes send messages while the script runs, before any acknowledgement. So a hand-over in a message is not proof: it
wakes the waiter, which then asks.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Sequence
from typing import Any, Final

import hiredis

from redsync._core.replies import NOTHING
from redsync._core.text import outline
from redsync._drivers.handshake_connections import pack
from redsync._drivers.links import AnyLink
from redsync._drivers.requests import Codec, Request
from redsync._drivers.wakeups import is_message

__all__ = ["UNACKNOWLEDGED", "hold_back", "reason_against", "wait_commands"]

UNACKNOWLEDGED: Final = "UNACKNOWLEDGED"
"""The first word of the error that replaces a vote that too few replicas have."""


def wait_commands(codec: Codec, needed: int, timeout: float) -> list[bytes]:
    """Return the commands after which `needed` replicas have everything that the connection wrote or saw before.

    After `timeout` seconds the node stops waiting for them.
    """
    return [*codec.small_write, pack("WAIT", str(needed), str(max(math.ceil(timeout * 1000), 1)))]


def reason_against(codec: Codec, replies: Sequence[Any], needed: int) -> str | None:
    """Return why the replies to `wait_commands` do not suffice; None if they do."""
    *written, count = replies
    for reply in written[-1], count:
        if isinstance(reply, hiredis.ReplyError):
            return f"can't ask its replicas: {reply}"
    if not codec.has_written(written):
        return f"can't ask its replicas: nothing was written, {outline(written)}"
    if type(count) is not int:
        raise hiredis.ProtocolError(f"sent an unexpected reply {outline(count)}")
    if count >= needed:
        return None
    return f"{count} of its replicas have the vote, {needed} must have it"


def hold_back(link: AnyLink, needed: int, timeout: float) -> None:
    """Make a link hand out votes only once `needed` replicas have acknowledged them.

    The link is not in use yet. A round waits at most `timeout` seconds for the node. The node waits half of that for
    its replicas, or up to 0.1 s longer, and the connection stalls meanwhile. A round that ends before that learns from
    `AnyLink.explain` what the node waits for.
    """
    acknowledged = _Acknowledged(link, needed, timeout / 2)
    link.encode, link.gets, link.explain = acknowledged.encode, acknowledged.gets, acknowledged.explain


class _Acknowledged:
    """A layer between a link and its node; it does not refer to the link, which must not be part of a cycle."""

    def __init__(self, link: AnyLink, needed: int, timeout: float) -> None:
        self._codec: Final = link.node.codec
        self._gets: Final = link.gets
        self._needed: Final = needed
        commands = wait_commands(self._codec, needed, timeout)
        self._commands: Final = b"".join(commands)
        self._following: Final = len(commands)
        # For each write in flight, which of its votes must last, and how many replies there will be.
        self._writes: Final[deque[tuple[tuple[bool, ...], int]]] = deque()
        self._replies: list[Any] = []
        self._ready: Final[deque[Any]] = deque()

    def encode(self, batch: Sequence[Request]) -> bytes:
        """Return the bytes of a batch about to be written; see `AnyLink.encode`."""
        lasting = tuple([request.command is not None and request.command.script.must_last for request in batch])
        data, replies = [self._codec.data(request) for request in batch], len(lasting)
        if True in lasting:
            data.append(self._commands)
            replies += self._following
        self._writes.append((lasting, replies))
        return b"".join(data)

    def gets(self) -> Any:
        """Return the next reply that may be handed out; see `AnyLink.gets`."""
        if self._ready:
            return self._ready.popleft()
        while (reply := self._gets()) is not NOTHING:
            if reply.__class__ is hiredis.PushNotification:
                return _unproven(reply)
            if not self._writes:
                return reply  # to no command: the link finds that out
            lasting, replies = self._writes[0]
            self._replies.append(reply)
            if len(self._replies) == replies:
                self._writes.popleft()
                self._judge(lasting)
                return self._ready.popleft()
        return NOTHING

    def explain(self, reason: str) -> str:
        """Return the reason for a missing reply; see `AnyLink.explain`."""
        if self._writes and len(self._replies) >= len(self._writes[0][0]):
            return f"{UNACKNOWLEDGED} {self._needed} of its replicas must have the vote: {reason}"
        return reason

    def _judge(self, lasting: tuple[bool, ...]) -> None:
        votes, following = self._replies[: len(lasting)], self._replies[len(lasting) :]
        self._replies = []
        reason = reason_against(self._codec, following, self._needed) if following else None
        for vote, must_last in zip(votes, lasting, strict=True):
            counts = reason is None or not must_last or isinstance(vote, hiredis.ReplyError)
            self._ready.append(vote if counts else hiredis.ReplyError(f"{UNACKNOWLEDGED} {reason}"))


def _unproven(push: Any) -> Any:
    """Return a node's message without its hand-over's ask id."""
    if not is_message(push):
        return push
    _, _, key = push[-1].partition(b" ")
    return hiredis.PushNotification([*push[:-1], b"0 " + key])
