"""Discovery: where the server of a node is now, according to the servers that decide it.

A node behind a Sentinel group, or a voter of a cluster, has no fixed address: its server is the latest master. A
locator collects the answers of its *witnesses*, the Sentinels or some nodes of the cluster, and draws the conclusion;
it does no input or output. The maintenance asks the witnesses.

**A majority of the listed witnesses must name the master**, and none of those that answer a later decision, which has
a higher epoch. A single witness may have been cut off together with a master that was replaced long ago. A client that
believed such a witness would count the votes of a server that has missed everything since.

**Their answers must be recent.** A master may be replaced without learning of it, then be named again and get its
replicas back, while a client is still connected to it under the old decision. Then its votes are acknowledged again,
and nothing on the server shows the change until a client connects under the new decision. But what the master in
between grants, it grants after its quarantine, which began when a majority of the witnesses knew its decision. So a
vote of a node with replicas counts for a new grant only if, as it arrives, a majority of the witnesses was asked within
the quarantine, and reported no new decision.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Any, Final, NamedTuple

import hiredis

from redsync._core.clusters import masters_in, owner_in, read_cluster
from redsync._core.replies import UNREADABLE
from redsync._core.text import outline, printable
from redsync._drivers.handshake_connections import HandshakeSteps, pack

__all__ = ["ClusterLocator", "Location", "Locator", "SentinelLocator", "Witness", "needed_of"]


def needed_of(replicas: int) -> int:
    """Return how many of a group's replicas must have a vote; with the master they are a majority of the group."""
    return (replicas + 1) // 2


class Location(NamedTuple):
    """The place of a node's server.

    Attributes:
        host: The server's host name or address.
        port: Its port.
        epoch: The number of the decision that made it the master; a later one has a higher number.
    """

    host: str
    port: int
    epoch: int

    def __str__(self) -> str:
        return f"{self.host}:{self.port}"


class Witness(NamedTuple):
    """A server that knows where a node's server is.

    Attributes:
        address: `host:port`.
        pool: A redis-py pool, for its connection class and settings.
    """

    address: str
    pool: Any


class Report(NamedTuple):
    """The answer of one witness: where the master is, how many replicas it has or had, and when it was asked."""

    location: Location
    replicas: int
    asked_at: float


class Locator(ABC):
    """The answers of the witnesses about one master.

    Only the maintenance changes it; any thread may read the attributes, which are replaced as a whole.

    Attributes:
        WITNESSES: A noun for the witnesses, for messages.
        subject: Their name for the master, or the slot that it owns.
        witnesses: The witnesses.
        replicas: The configured number of replicas of the group; 0 if its votes need no acknowledgement.
        questions: The commands for a witness, sent in one write.
        present: Where the master is; None while unknown.
        unknown_reason: Why it is unknown.
        reports: The latest answer of each witness, or why there is none; an empty text before its first one.
        confirmed_at: The time of the earliest question behind the latest majority of answers, in seconds on the
            client's clock.
    """

    WITNESSES: str

    def __init__(self, subject: str, witnesses: Sequence[Witness], replicas: int, *questions: bytes) -> None:
        self.subject: Final = subject
        self.witnesses: Final = tuple(witnesses)
        self.replicas: Final = replicas
        self.questions: Final = questions
        self.present: Location | None = None
        self.unknown_reason = f"none of the {len(self.witnesses)} {self.WITNESSES} has answered yet"
        self.confirmed_at = -math.inf
        self.reports: Final[list[Report | str]] = [""] * len(self.witnesses)

    @property
    def is_decided(self) -> bool:
        """True if it is known why it can't be known now where the master is."""
        return "" not in self.reports

    @property
    def needed(self) -> int:
        """The number of replicas that must acknowledge a vote."""
        return needed_of(self.replicas)

    @property
    def home(self) -> str:
        """A text that identifies the node, independent of the order of its witnesses."""
        return f"{self.subject}@{','.join(sorted(witness.address for witness in self.witnesses))}"

    def ask(self) -> HandshakeSteps[list[Any]]:
        """Ask a witness; return its replies."""
        return (yield list(self.questions))

    @abstractmethod
    def _read(self, replies: Sequence[Any], witness: Witness) -> tuple[Location, int] | str:
        """Return where the master is, and its replicas, according to a witness; or why it names none.

        Raises:
            UNREADABLE: The server is not such a witness.
        """

    def note(self, witness: int, replies: Sequence[Any], asked_at: float) -> None:
        """Record a witness's replies to the questions; it was asked at that time, in seconds on the client's clock."""
        try:
            read = self._read(replies, self.witnesses[witness])
        except UNREADABLE:
            answers = " and ".join(map(outline, replies))
            read = f"answers with {answers}: it is not one of the {self.WITNESSES}"
        self.reports[witness] = read if isinstance(read, str) else Report(*read, asked_at)
        self._conclude()

    def note_failure(self, witness: int, reason: str) -> None:
        """Record why a witness can't be asked."""
        self.reports[witness] = reason
        self._conclude()

    def _conclude(self) -> None:
        conclusion = self._conclusion()
        # The reason first: a reader that finds no location then finds the reason.
        self.unknown_reason = conclusion if isinstance(conclusion, str) else ""
        self.present = None if isinstance(conclusion, str) else conclusion
        if self.present is not None:
            times = [report.asked_at for report in self.reports if isinstance(report, Report)]
            self.confirmed_at = sorted(times, reverse=True)[len(self.reports) // 2]

    def _conclusion(self) -> Location | str:
        """Return where the master is, or the reason why that is unknown."""
        heard = [report for report in self.reports if isinstance(report, Report)]
        count, quorum = len(self.witnesses), len(self.witnesses) // 2 + 1
        newest = max([report.location.epoch for report in heard], default=0)
        latest = [report for report in heard if report.location.epoch == newest]
        if len(latest) < quorum:
            others = "; ".join(
                f"{witness.address}: {report or 'no answer yet'}"
                if isinstance(report, str)
                else f"{witness.address}: knows epoch {report.location.epoch} at most"
                for witness, report in zip(self.witnesses, self.reports, strict=True)
                if report not in latest
            )
            return f"{len(latest)} of {count} {self.WITNESSES} name the master, {quorum} must: {others}"
        places = {report.location for report in latest}
        if len(places) > 1:
            where = " and ".join(sorted(map(str, places)))
            return f"the {self.WITNESSES} disagree, epoch {newest} is at {where}: they must belong to the same group"
        return self._mismatch(max(report.replicas for report in latest)) or latest[0].location

    def _mismatch(self, known: int) -> str | None:
        """Return why a group with `known` replicas is unusable with the configured number; None if it is usable."""
        if not 0 < self.replicas < known:
            return None
        return (
            f"the {self.WITNESSES} list {known} replicas of the master, but replicas={self.replicas}: two masters "
            f"might then gather {needed_of(self.replicas)} each. Give the number of all replicas, or make them "
            f"forget those that are gone (SENTINEL RESET, CLUSTER FORGET)"
        )


class SentinelLocator(Locator):
    """The answers of a group's Sentinels about its master, which they know by a name."""

    WITNESSES = "Sentinels"

    def __init__(self, service: str, witnesses: Sequence[Witness], replicas: int) -> None:
        # The first reply has an address too, but during a failover the old master's with the new number.
        questions = pack("SENTINEL", "MASTER", service), pack("SENTINEL", "GET-MASTER-ADDR-BY-NAME", service)
        super().__init__(service, witnesses, replicas, *questions)

    def _read(self, replies: Sequence[Any], witness: Witness) -> tuple[Location, int] | str:  # noqa: ARG002
        decision, address = replies
        if isinstance(decision, hiredis.ReplyError):
            return printable(str(decision))
        fields = dict(zip(decision[::2], decision[1::2], strict=True))
        host, port = address
        location = Location(printable(host.decode()), int(port), int(fields[b"config-epoch"]))
        return location, int(fields[b"num-slaves"])


class ClusterLocator(Locator):
    """The answers of some nodes of a cluster about the owner of a slot.

    Each voter of a cluster is the current owner of one fixed slot.

        redis+cluster://user:password@host:6379,host:6379,host:6379?nodes=3&replicas=1

    stands for three nodes. Their slots are spread evenly, in the same way for every client that gives the same number.
    A slot has one owner, so its keys move with it. A node whose slot moves changes its server, as after a failover.

    Attributes:
        slot: The slot.
    """

    WITNESSES = "cluster nodes"

    def __init__(self, slot: int, nodes: int, witnesses: Sequence[Witness], replicas: int) -> None:
        super().__init__(f"slot {slot}", witnesses, replicas, pack("CLUSTER", "NODES"))
        self.slot: Final = slot
        self._nodes: Final = nodes

    def _read(self, replies: Sequence[Any], witness: Witness) -> tuple[Location, int] | str:
        (reply,) = replies
        if isinstance(reply, hiredis.ReplyError):
            return printable(str(reply))
        known = read_cluster(reply)
        masters = masters_in(known)
        if len(masters) < self._nodes:
            return f"knows too few masters for nodes={self._nodes}: {len(masters)} have slots"
        owner = owner_in(masters, self.slot)
        if owner is None:
            return f"no node owns slot {self.slot}"
        # A node that does not know its own address omits it.
        own = witness.address.rpartition(":")[0].strip("[]")
        replicas = sum(1 for server in known if server.master == owner.name)
        return Location(owner.host or own, owner.port, owner.epoch), replicas
