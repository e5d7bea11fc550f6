"""Whether nodes remember: birth records, and what a node without one gets.

A node that lost memory may have forgotten claims that are still believed, tokens, and counts. Its *birth record* says
since when it remembers, and under which server process that was written: `original MS PROCESS` for a node that never
forgot anything, `newborn MS PROCESS` for one that may have. A record is worth something only under its own process:

* After a restart the data may be of any age (a snapshot, an append-only file without its last second, a restored disk),
  and its record looks as good as ever. But a restart is another process.
* Data that was replaced under a live process (a replica for a while, an imported dump) brings the record of another
  process along.
* FLUSHALL takes the record away.

So each connection begins with `node_initialize`, which compares the record with the process that it runs in. Each grant
names the processes that its client is connected to (`Processes`), and the granting script refuses under the record of
any other: no client can be the one that did not notice. A record of an earlier form names no process, and counts as one
of another.

**First use.** A node without a record has forgotten, unless nobody has used the nodes yet. If the client asks and finds
all nodes without one, a node may have been used and emptied between two answers. Hence the first look leaves a mark, a
*blank* record, under which nothing is granted to a client with a restart guard, and which FLUSHALL takes away like any
other. A client looks twice, and the second time only after all nodes have answered the first. Marks that are the same
both times were there at one instant, between the looks, on all nodes at once: none of them could have granted anything
since its mark, and none has been emptied since. Then all get an *original* record, and each node only in exchange for
that very mark, so that a command which arrives late makes no emptied node original. No clock is compared with another,
and no age judged.

That all nodes were emptied together before the first look is the one thing that nobody can know. Clients who have used
the nodes before know better, and so does the server's uptime.

**Many clients begin at once**, and one finds some nodes original and others still blank: the records of these are on
their way. So it looks again for `FIRST_USE` seconds. Nodes that are still blank then, and all that lack a record while
others have one, are *newborn*: they grant again when that record is older than the guard.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final, NamedTuple, Self

__all__ = ["BIRTH_KEY", "BLANK", "FIRST_USE", "LOOK", "NEWBORN", "ORIGINAL", "Birth", "Guard", "Processes", "next_step"]

BIRTH_KEY: Final = b"redsync_birth"
"""Spelled apart from the default prefix: a lock may be called "birth"."""

BLANK: Final = b"blank"
ORIGINAL: Final = b"original"
NEWBORN: Final = b"newborn"
LOOK: Final = b"look"

FIRST_USE: Final = 0.5
"""Seconds for which a client that finds some nodes blank looks again, as others may be at work on them."""


class Birth(NamedTuple):
    """A birth record.

    Attributes:
        kind: ORIGINAL, NEWBORN or BLANK.
        since_ms: When it was written, by the node's clock.
        process: The server process that it was written under.
        age: For how many seconds the node has remembered everything since, by its own clock.
    """

    kind: bytes
    since_ms: int
    process: bytes
    age: float

    @property
    def mark(self) -> bytes:
        """What tells this record from any other of the same kind."""
        return b"%d,%b" % (self.since_ms, self.process)

    @classmethod
    def read(cls, record: bytes | None, now: float) -> Self | None:
        """Return what a record says at that instant of the node's clock, in seconds; None if there is none.

        Raises:
            ValueError: It is no record.
        """
        if not record:
            return None
        kind, _, rest = record.partition(b" ")
        since_ms, _, process = rest.partition(b" ")
        if kind not in (ORIGINAL, NEWBORN, BLANK):
            raise ValueError(f"the key {BIRTH_KEY.decode()} holds {record!r:.40}, which is no birth record")
        return cls(kind, int(since_ms), process, max(now - int(since_ms) / 1000, 0.0))

    @classmethod
    def initialized(cls, reply: Any) -> tuple[bytes, Self | None]:
        """Return the server process that replied to `node_initialize`, and its birth record.

        The record is None if there is none that was written under that process: a node without memory to spare keeps
        what it has.

        Raises:
            TypeError, ValueError: It is not what the script replies.
        """
        record, now_ms, process = reply
        if process.__class__ is not bytes or not process:
            raise ValueError(f"a process has a name, not {process!r:.40}")
        birth = cls.read(record, now_ms / 1000)
        return process, birth if birth is not None and birth.process == process else None


class Processes:
    """The server processes that a client is connected to.

    Attributes:
        named: All of them, as scripts are told: `,PROCESS,PROCESS,`. Replaced as a whole.
    """

    __slots__ = ("_of_node", "named")

    def __init__(self) -> None:
        self._of_node: dict[int, bytes] = {}
        # A server that does not tell its identity is called so.
        self.named = b",-,"

    def note(self, node: int, process: bytes) -> None:
        """Record the process that the node with that index is now."""
        self._of_node[node] = process
        self.named = b",%b," % b",".join(name for _, name in sorted(self._of_node.items()))

    def guard(self, ms: int) -> Guard:
        """Return the argument for a script that grants only on a node that has remembered everything for so long."""
        return Guard(ms, self)


class Guard:
    """An argument of a script: for how many ms a node must have remembered everything, and under which processes.

    It is turned into bytes when the command is sent, for by then the client may know other processes.
    """

    __slots__ = ("_ms", "_processes")

    def __init__(self, ms: int, processes: Processes) -> None:
        self._ms = ms
        self._processes = processes

    def __bytes__(self) -> bytes:
        return b"%d%b" % (self._ms, self._processes.named)


def next_step(births: Sequence[Birth | None], *, certain: bool, steady: bool, patient: bool) -> bytes | None:
    """Return what to do about nodes whose records do not tell: LOOK, ORIGINAL or NEWBORN; None if there are none.

    Args:
        births: The records of all nodes that have been asked.
        certain: Whether all nodes have been asked, and none of them is known to have had a record before.
        steady: Whether all nodes had the same records at the look before this one.
        patient: Whether to look again.
    """
    kinds = {BLANK if birth is None else birth.kind for birth in births}
    if BLANK not in kinds:
        return None
    if not certain or None in births or NEWBORN in kinds:
        return NEWBORN
    if ORIGINAL not in kinds and steady:
        return ORIGINAL
    return LOOK if patient else NEWBORN
