"""Does a node remember? Birth records, and what a node without one gets.

A node that lost memory may have forgotten claims that are still believed, tokens, and counts. Its *birth record* says
since when it remembers, and under which server process the record was written: `original MS PROCESS` for a node that
never forgot anything, `newborn MS PROCESS` for one that may have. A record counts only under its own process:

* After a restart the data may be of any age (a snapshot, an append-only file without its last second, a restored disk),
  and its record looks as good as ever. But a restart is another process.
* Data that was replaced under a live process (a replica for a while, an imported dump) brings the record of another
  process along.
* FLUSHALL deletes the record.

So the connection by which a node is up begins with `node_initialize`, which compares the record with the process in
which it runs; further ones must lead to the same process (`handshakes.join`). Each acquire names the processes to which
its client is connected (`Processes`), and the granting script refuses under the record of any other process. So no
client can miss a restart. A record of an earlier format names no process, and counts as one of another process.

**First use.** A node without a record has forgotten, unless the nodes were never used. If a client asks and finds
all nodes without one, a node may have been used and emptied between two answers. So the first look leaves a *blank*
record. Under it a node grants nothing to a client with a restart guard, and FLUSHALL deletes it like any other record.
A client looks twice, the second time only after all nodes have answered the first look. Blank records that are the same
both times were there at one instant, between the looks, on all nodes at once: none of them could have granted anything
since, and none has been emptied since. Then all nodes get an *original* record, each only in exchange for that very
blank record, so that a late command makes no emptied node original. This compares no clock with another, and judges no
age.

One thing cannot be known: that all nodes were emptied together before the first look. But clients that used the nodes
before know, and the server's uptime shows it too.

**A node behind Sentinels** changes its server without a restart, and the same process may come back after another one
took over in between. So there the name of the process includes an epoch, the number of the Sentinels' decision, and the
history of its data (`master_replid`), which changes with each promotion: `run@7.0a1b2c3d`. A process that differs in
any of these is another process. The history tells processes apart where numbers do not: a client that missed two
decisions would not notice that a server was a replica in between, and got its own old record back. The record that
follows is *joining*, and under it a node grants nothing. It follows even where there is no record, because a replica
that is promoted before it got any data looks like a new node; only the number 0 says that nothing was decided yet. Once
the group's replicas have the record (`acknowledgements`), none of them can acknowledge grants of the former server any
more, unless it returns to that server. A decision may send it back, see `discovery`; that nothing else does is a
condition, see `docs/operate/sentinel.md`. Only then does a client make the record newborn, and the guard counts from
there.

The history of a server's data also changes when its first replica comes, and clients that are connected do not learn of
it. If each wrote the record under the name that it knows, they would overwrite each other's again and again. So only a
handshake, which has just asked for the history, writes a record where there is none under that name. A client whose
name for a server no longer counts connects again.

**Many clients may begin at once.** Then a client may find some nodes original and others still blank, because another
client's records are on their way. So it looks again for `FIRST_USE` seconds. Nodes that are still blank then, and all
that lack a record while others have one, become *newborn*: they grant again when that record is older than the guard.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Final, NamedTuple, Self

__all__ = [
    "BIRTH_KEY",
    "BLANK",
    "FIRST_USE",
    "FORGOT",
    "GREET",
    "JOINING",
    "LOOK",
    "NEWBORN",
    "ORIGINAL",
    "Birth",
    "Processes",
    "elected",
    "next_step",
]

BIRTH_KEY: Final = b"redsync_birth"
"""Spelled differently from the default prefix: a lock may be called "birth"."""

BLANK: Final = b"blank"
JOINING: Final = b"joining"
ORIGINAL: Final = b"original"
NEWBORN: Final = b"newborn"
LOOK: Final = b"look"
GREET: Final = b"greet"

FIRST_USE: Final = 0.5
"""Seconds for which a client that finds some nodes blank looks again: other clients may be about to mark them."""

FORGOT: Final = "restarted or emptied, may have forgotten"
"""The beginning of the reason why a node takes no part in new grants for a while."""


class Birth(NamedTuple):
    """A birth record.

    Attributes:
        kind: ORIGINAL, NEWBORN, BLANK or JOINING.
        since_ms: The instant at which it was written, by the node's clock.
        process: The server process under which it was written.
        age: Seconds for which the node has remembered everything, by its own clock.
    """

    kind: bytes
    since_ms: int
    process: bytes
    age: float

    @property
    def stamp(self) -> bytes:
        """Distinguishes this record from any other of the same kind."""
        return b"%d,%b" % (self.since_ms, self.process)

    @property
    def run_id(self) -> str:
        """The beginning of its process's `run_id`; the record has no more."""
        return self.process.partition(b"@")[0].decode(errors="replace")

    @classmethod
    def read(cls, record: bytes | None, now: float) -> Self | None:
        """Return the meaning of a record at that instant of the node's clock, in seconds; None if there is no record.

        Raises:
            ValueError: The value is not a birth record.
        """
        if not record:
            return None
        kind, _, rest = record.partition(b" ")
        since_ms, _, process = rest.partition(b" ")
        if kind not in (ORIGINAL, NEWBORN, BLANK, JOINING):
            raise ValueError(f"the key {BIRTH_KEY.decode()} holds {record!r:.40}, which is not a birth record")
        return cls(kind, int(since_ms), process, max(now - int(since_ms) / 1000, 0.0))

    @classmethod
    def initialized(cls, reply: Any) -> tuple[bytes, Self | None]:
        """Return the server process that replied to `node_initialize`, and its birth record.

        The record is None if none was written under that process: a node that is out of memory keeps its old record.

        Raises:
            UNREADABLE: The script never replies so.
        """
        record, now_ms, process = reply
        if process.__class__ is not bytes or not process:
            raise ValueError(f"a process has a name, not {process!r:.40}")
        birth = cls.read(record, now_ms / 1000)
        return process, birth if birth is not None and birth.process == process else None


def elected(run_id: str, epoch: int, history: str) -> bytes:
    """Return the process of a node that a decision made the master, as an argument of scripts.

    `epoch` is the number of the decision, and `history` its `master_replid`, which changes with each promotion.
    """
    return b",%b@%d.%b," % (run_id[:_PROCESS].encode(), epoch, history[:_HISTORY].encode())


_PROCESS: Final = 16
"""The number of characters of a `run_id` that name the process."""

_HISTORY: Final = 8
"""The number of characters of a `master_replid` that tell two of a group apart."""


class Processes:
    """The server processes to which a client is connected.

    Attributes:
        named: All of them, as an argument of scripts: `,PROCESS,PROCESS,`. Replaced as a whole.
    """

    __slots__ = ("_of_node", "named")

    def __init__(self) -> None:
        self._of_node: dict[int, bytes] = {}
        # "-" names a server that does not tell its identity.
        self.named = b",-,"

    def note(self, node: int, process: bytes) -> None:
        """Record the current process of the node with that index."""
        self._of_node[node] = process
        self._name()

    def forget(self, node: int) -> None:
        """Drop the process of a node: another one has its server now."""
        self._of_node.pop(node, None)
        self._name()

    def _name(self) -> None:
        self.named = b",%b," % b",".join(name for _, name in sorted(self._of_node.items()))

    def guard(self, ms: int) -> Callable[[], bytes]:
        """Return the argument that makes a script grant only on a node that has remembered everything for `ms`.

        It is made when the command is sent: by then the client may know other processes.
        """
        return lambda: b"%d%b" % (ms, self.named)


def next_step(births: Sequence[Birth | None], *, certain: bool, unchanged: bool, may_look: bool) -> bytes | None:
    """Return what to do about blank, joining or missing records: LOOK, ORIGINAL or NEWBORN; None if there are none.

    Args:
        births: The records of all nodes that were asked.
        certain: True if all nodes were asked, and none of them is known to have had a record before.
        unchanged: True if all nodes had the same records at the look before this one.
        may_look: True if there is time to look again.
    """
    kinds = {BLANK if birth is None else birth.kind for birth in births}
    if not kinds & {BLANK, JOINING}:
        return None
    if not certain or None in births or kinds & {NEWBORN, JOINING}:
        return NEWBORN
    if ORIGINAL not in kinds and unchanged:
        return ORIGINAL
    return LOOK if may_look else NEWBORN
