"""The result of `client.inspect`: a lock's holders and waiters."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from typing import Self

from redsync._core.client_records import Claim
from redsync._core.quorum import Tally, Vote
from redsync._protocols.surveys import NameLook
from redsync.exceptions import QuorumError

__all__ = ["Holder", "LockInfo"]


@dataclass(frozen=True, slots=True)
class Holder:
    """One owner of a lock, as known to a quorum of nodes.

    Attributes:
        owner: `<client uuid>:<serial of the thread or task>`; for a mutex, its value.
        host: The owner's machine, None if unknown.
        pid: The owner's process, None if unknown.
        program: The program that the process runs, None if unknown.
        since: The instant at which its client was made, in seconds since 1970 by its machine's clock; None if unknown.
        mode: "read" or "write" for a read-write lock, else None. An owner that does both is listed twice.
        hold_count: The number of acquisitions that it has yet to release; for a read-write lock at most 1,024.
        remaining: Seconds for which a quorum of nodes keeps its claim without a renewal; None: no expiry.
    """

    owner: str
    host: str | None
    pid: int | None
    hold_count: int
    remaining: float | None
    program: str | None = None
    since: float | None = None
    mode: str | None = None


@dataclass(frozen=True, slots=True)
class LockInfo:
    """A lock's holders and waiters.

    Attributes:
        name: The lock's name.
        kind: "lock", "fenced lock" (if grants of that name had tokens within a day), "mutex", "read-write lock",
            "semaphore", "rate limiter", "latch", "none" if its key is empty, or the type of a foreign value.
        holders: The owners that hold it on a quorum of nodes; of many readers at most 64, those whose claims end
            first. Empty for a rate limiter, and for a semaphore: use `Semaphore.holders`.
        waiters: The owners that wait on any node that answered, longest wait first: `<client uuid>:<serial of the
            thread or task>`.
        votes: Each node's vote; FAILED if it did not answer in time.
    """

    name: str | bytes
    kind: str
    holders: tuple[Holder, ...]
    waiters: tuple[str, ...]
    votes: tuple[Vote, ...]

    @classmethod
    def read(cls, name: str | bytes, tally: Tally) -> Self:
        """Return the result of a survey of all nodes.

        Raises:
            QuorumError: Too few nodes answered.
        """
        if tally.without_quorum:
            raise QuorumError(name, f"lock {name!r}: too few nodes answered to tell its holders", tally.votes)
        looks: list[NameLook] = [look for look in tally.answers if look is not None]
        by_owner: dict[tuple[str | bytes, str | None], list[Claim]] = {}
        for look in looks:
            for claim in look.claims:
                by_owner.setdefault((claim.contender, claim.mode), []).append(claim)
        holders = [_holder(held, tally) for held in by_owner.values() if len(held) >= tally.quorum]
        kinds = Counter(look.kind for look in looks if look.kind != "none")
        kind = kinds.most_common(1)[0][0] if kinds else "latch" if any(look.latch for look in looks) else "none"
        # The holder of a fair lock keeps its place in the queue. A mutex queues without the number in its value.
        served = {name for holder in holders for name in (holder.owner, holder.owner.rpartition(":")[0])}
        waiters = dict.fromkeys(waiter.owner for look in looks for waiter in look.waiters if waiter.owner not in served)
        return cls(name, kind, tuple(holders), tuple(waiters), tally.votes)


def _holder(held: list[Claim], tally: Tally) -> Holder:
    owner, mode = held[0].owner, held[0].mode
    lasting = sorted((float("inf") if claim.remaining is None else claim.remaining for claim in held), reverse=True)
    remaining = lasting[tally.quorum - 1]
    count = max(claim.hold_count for claim in held)
    host, pid, program, since = next((claim.client[:4] for claim in held if claim.client), (None,) * 4)
    return Holder(owner, host, pid, count, None if remaining == float("inf") else remaining, program, since, mode)
