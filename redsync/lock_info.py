"""What `client.inspect` tells: who holds a lock, and who waits for it."""

from __future__ import annotations

from dataclasses import dataclass

from redsync._core.quorum import Vote

__all__ = ["Holder", "LockInfo"]


@dataclass(frozen=True, slots=True)
class Holder:
    """One owner of a lock as a quorum of nodes knows it.

    Attributes:
        owner: `<client uuid>:<thread serial>`.
        host: The machine it runs on, None if unknown.
        pid: Its process, None if unknown.
        program: What that process runs, None if unknown.
        since: When its client was made, seconds since 1970 by its machine's clock; None if unknown.
        hold_count: How many acquisitions it has to release.
        remaining: For how many seconds a quorum of nodes keeps its claim unless it is renewed; None: no expiry.
    """

    owner: str
    host: str | None
    pid: int | None
    hold_count: int
    remaining: float | None
    program: str | None = None
    since: float | None = None


@dataclass(frozen=True, slots=True)
class LockInfo:
    """Who holds a lock and who waits for it.

    Attributes:
        name: The lock's name.
        kind: "lock", "mutex", "none" if nothing is at its key, or the type of a foreign value.
        holders: Who holds it on a quorum of nodes.
        waiters: Who waits on any node, longest first.
        votes: What each node said.
    """

    name: str | bytes
    kind: str
    holders: tuple[Holder, ...]
    waiters: tuple[str, ...]
    votes: tuple[Vote, ...]
