"""The doctor's checks of what nodes report: pure functions, so that each finding can be tested without a server."""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from statistics import median
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from redsync._core.text import is_refusal

if TYPE_CHECKING:
    from redsync._core.memory import Birth
    from redsync.cli.places import Said

__all__ = ["Finding", "Heard", "Report", "check_deployment", "check_lives", "check_node", "checked", "is_loopback"]

NOT_ALLOWED: Final = "not allowed"

_NUMBERS: Final = frozenset(
    {"uptime_in_seconds", "connected_slaves", "maxmemory", "used_memory", "aof_enabled", "cluster_enabled", "loading"}
)
_WORDS: Final = frozenset({"server_name", "redis_version", "run_id", "master_replid", "role", "maxmemory_policy"})

_PART: Final = "move a slot or fail over, so that each voter has its own master; or give a smaller nodes="

OLDEST: Final = (6, 0)
OFFSET_MAX: Final = 1.0
FULL: Final = 0.9
LATENCY_MAX: Final = 0.05

ANNOUNCED_FOR: Final = 65.0
"""Lifetime of a client's record in seconds; the client renews it every 20 s."""

ALIVE: Final = 40.0
"""Seconds: a record with more life left than this was renewed a moment ago."""

GONE: Final = 20.0
"""Seconds: a record with less life left than this has missed two renewals."""


@dataclass(frozen=True, slots=True)
class Finding:
    """One finding of the doctor.

    Attributes:
        text: The finding.
        advice: The action to take.
        is_problem: True if it needs attention; False if it is for information.
    """

    text: str
    advice: str
    is_problem: bool = True


class Heard(NamedTuple):
    """A client's record on a node.

    Attributes:
        who: The client's host and process, for people.
        kept: Seconds for which the node still keeps the record.
        nodes: A digest for each node of the client's list; empty if the record has none.
    """

    who: str
    kept: float
    nodes: tuple[str, ...] = ()


@dataclass
class Report:
    """One node's report about itself; a field is None or empty if our user may not read it.

    Attributes:
        node: Its address.
        error: Why it does not answer; None if it does.
        info: The fields of its INFO.
        policy: Its eviction policy.
        snapshots: Its setting `save`: when it writes snapshots; empty for never.
        offset: Seconds that its clock is ahead of ours.
        latency: The median round trip of a PING, in seconds.
        scripts: Why it does not run our scripts; None if it does.
        newborn_age: Seconds since a client found it emptied; None if it was not emptied.
        replicas: The number of replicas that the URL gives for its server; None for a plain node.
        witness: The kind of server that knows its address, for people.
        said: The word of each witness; empty for a plain node.
        birth: Its birth record; None if it has none.
        is_birth_known: True if our user may read the birth record.
        clients: The clients that have a record there, by UUID; None if unknown.
        findings: The findings about it.
    """

    node: str
    error: str | None = None
    info: Mapping[str, Any] = field(default_factory=dict)
    policy: str | None = None
    snapshots: str | None = None
    offset: float | None = None
    latency: float | None = None
    scripts: str | None = None
    newborn_age: float | None = None
    replicas: int | None = None
    witness: str = ""
    said: Sequence[Said] = ()
    birth: Birth | None = None
    is_birth_known: bool = False
    clients: Mapping[str, Heard] | None = None
    findings: list[Finding] = field(default_factory=list)

    @property
    def version(self) -> str:
        """The server and its version."""
        server = str(self.info.get("server_name", "redis"))
        version = self.info.get(f"{server}_version") or self.info.get("redis_version")
        return f"{server} {version}" if version else NOT_ALLOWED

    @property
    def role(self) -> str:
        """Master or replica."""
        return {"slave": "replica"}.get(role := str(self.info.get("role", NOT_ALLOWED)), role)

    @property
    def latest(self) -> Said | None:
        """The latest decision about its server, by the word of the witnesses."""
        return max((each for each in self.said if each.error is None), key=lambda each: each.epoch, default=None)

    @property
    def place(self) -> str:
        """The address of its server, as far as we know."""
        return self.node if self.latest is None else str(self.latest.server)

    @property
    def in_sync(self) -> int | None:
        """The number of replicas that follow it and have its data; None if our user may not read it."""
        count = self.info.get("connected_slaves")
        lines = [line for name, line in self.info.items() if name.startswith("slave") and isinstance(line, Mapping)]
        return None if count is None else count - sum(line.get("state") != "online" for line in lines)

    @property
    def persistence(self) -> str:
        """How it writes to disk."""
        if "aof_enabled" not in self.info:
            return NOT_ALLOWED
        if self.info["aof_enabled"] == 1:
            return "append-only file"
        return "none, or snapshots" if self.snapshots is None else "snapshots" if self.snapshots else "none"

    @property
    def uptime(self) -> float | None:
        """Seconds since it started."""
        uptime = self.info.get("uptime_in_seconds")
        return None if uptime is None else float(uptime)


def checked(info: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return the fields of a node's INFO, with words as text.

    Raises:
        ValueError: A field has the wrong type.
    """
    for name, value in info.items():
        if (name in _NUMBERS and type(value) is not int) or (
            name in _WORDS and not isinstance(value, str | int | float)
        ):
            raise ValueError(f"INFO says {name}:{value!r:.80}")
    return {name: str(value) if name in _WORDS else value for name, value in info.items()}


def check_node(report: Report, *, guard: float, node_timeout: float, is_serious: bool) -> list[Finding]:
    """Return the findings about one node; `is_serious`: there are several nodes, not all on this machine."""
    if report.error is not None:
        if is_refusal(report.error):
            advice = "correct the user or password in its URL, or its rule for that user"
            return [Finding(f"refuses access: {report.error}", advice)]
        # Of a group or a voter, the server may be unknown.
        trouble = "does not answer" if report.replicas is None else "can't be reached"
        return [Finding(f"{trouble}: {report.error}", "start it, or correct its URL or firewall")]
    found: list[Finding] = []
    if not report.info:
        text = "refuses INFO: its version, role, persistence and uptime are unknown"
        found.append(Finding(text, "let the user call INFO: ACL SETUSER <user> +info", is_problem=False))
    found += _check_server(report)
    found += _check_memory(report)
    found += _check_disk(report, guard, is_serious=is_serious)
    if report.latency is not None and report.latency > min(LATENCY_MAX, node_timeout / 2):
        text = f"a round trip takes {report.latency * 1000:.0f} ms"
        advice = f"move it nearer, or raise node_timeout ({node_timeout:g} s): a slower node has no vote"
        found.append(Finding(text, advice, is_problem=report.latency > node_timeout / 2))
    return found


def _check_server(report: Report) -> list[Finding]:
    found = []
    numbers = tuple(map(int, re.findall(r"\d+", str(report.info.get("redis_version", "")))[:2]))
    if numbers and numbers < OLDEST:
        found.append(Finding(f"{report.version} is too old", "upgrade to Redis 6.0 or later, or to Valkey"))
    if report.role == "replica" and report.replicas is not None:
        text = f"its server is a replica: a failover is under way, or a {report.witness} is out of date"
        found.append(Finding(text, "run the doctor again"))
    elif report.role == "replica":
        advice = "list masters only, each independent of the others"
        found.append(Finding("is a replica: it refuses writes, and its vote would not be independent", advice))
    else:
        found += _check_replicas(report)
    if report.info.get("cluster_enabled") == 1 and report.replicas is None:
        advice = "use servers with cluster-enabled no, or voters of the cluster: redis+cluster://...?nodes=3"
        found.append(Finding("is part of a cluster, which redirects keys to other servers", advice))
    if report.info.get("loading") == 1:
        found.append(Finding("is still loading its data", "wait until it has loaded"))
    if report.scripts is not None:
        keys = "~{rs*" if report.info.get("cluster_enabled") == 1 else "~redsync* ~redisson*"
        advice = f"allow the user our commands and keys: ACL SETUSER <user> +@all {keys} &*"
        found.append(Finding(f"does not run our scripts: {report.scripts}", advice))
    return found


def _check_replicas(report: Report) -> list[Finding]:
    connected = int(report.info.get("connected_slaves", 0))
    if report.replicas is None:
        if not connected:
            return []
        text = "has replicas: a promoted replica may lack the latest claims"
        advice = "do not fail over automatically, or use its Sentinels: redis+sentinel://...?replicas=N"
        return [Finding(text, advice, is_problem=False)]
    if not report.replicas:
        text = "its votes wait for no replica: after a failover, an old master that is cut off still grants"
        advice = f"give the number of its replicas in the URL: ?replicas={connected or 'N'}"
        return [Finding(text, f"{advice}, or at least set min-replicas-to-write on its servers")]
    needed = (report.replicas + 1) // 2
    if connected > report.replicas:
        text = f"has {connected} replicas, but replicas={report.replicas}: two masters might both reach {needed}"
        return [Finding(text, "give the number of all its replicas in each client's URL")]
    in_sync = report.in_sync or 0
    if in_sync < report.replicas:
        text = f"{in_sync} of its {report.replicas} replicas are in sync; each vote needs {needed}"
        return [Finding(text, "start the others, or wait until they have its data", is_problem=in_sync <= needed)]
    return []


def _check_memory(report: Report) -> list[Finding]:
    found = []
    most, used = int(report.info.get("maxmemory", 0)), int(report.info.get("used_memory", 0))
    if report.policy is None:
        text = "does not let the user read its eviction policy"
        found.append(Finding(text, "make sure that it is noeviction", is_problem=False))
    elif report.policy != "noeviction":
        text = f"evicts keys ({report.policy}) when its memory is full: held locks vanish"
        text += "" if most else "; but maxmemory is 0 now, so it never evicts"
        advice = "CONFIG SET maxmemory-policy noeviction, also in its configuration file"
        found.append(Finding(text, advice, is_problem=most > 0))
    if most and used > FULL * most:
        text = f"uses {used / most:.0%} of maxmemory; when full it refuses new claims"
        found.append(Finding(text, "raise maxmemory, or move other data elsewhere"))
    return found


def _check_disk(report: Report, guard: float, *, is_serious: bool) -> list[Finding]:
    found = []
    for what, state in (("append-only file", "aof_last_write_status"), ("snapshot", "rdb_last_bgsave_status")):
        if report.info.get(state, "ok") != "ok":
            advice = "free space on its disk, and read its log"
            found.append(Finding(f"the last write of its {what} failed; it may refuse writes", advice))
    if report.info.get("aof_enabled") == 0 and guard == 0:
        text = "forgets all holds when it restarts, and there is no restart guard"
        advice = "set restart_guard (REDSYNC_RESTART_GUARD) to the longest lease, or appendonly yes, appendfsync always"
        found.append(Finding(text, advice, is_problem=is_serious))
    return found


def check_lives(reports: Sequence[Report], guard: float) -> None:
    """Add findings to nodes that started or were emptied too recently for new grants; one text for each event."""
    for what in ("started", "was emptied"):
        young = [report for report in reports if _life(report)[0] == what and _life(report)[1] < guard]
        left = max((guard - _life(report)[1] for report in young), default=0.0)
        text = (
            f"{what} less than {guard:.0f} s ago: takes no part in new grants for at most {left:.0f} s (restart guard)"
        )
        for report in young:
            report.findings.append(Finding(text, "wait; if this was not planned, read its log"))


def _life(report: Report) -> tuple[str, float]:
    """Return the event from which a node remembers, and its age in seconds."""
    # A node subtracts two instants in whole seconds: its uptime may be 1 s too high; clients allow for that.
    started = math.inf if report.uptime is None else max(report.uptime - 1.0, 0.0)
    if report.replicas is not None:
        # Only its birth record counts: after a restart, another server may have become the master.
        return "started", math.inf
    if report.newborn_age is not None and report.newborn_age <= started:
        return "was emptied", report.newborn_age
    return "started", started


def check_deployment(reports: Sequence[Report]) -> list[Finding]:
    """Return the findings about all nodes together; add findings to single nodes that differ from the others."""
    found: list[Finding] = []
    count = len(reports)
    if count % 2 == 0:
        text = f"{count} nodes tolerate as many failures as {count - 1}: {(count - 1) // 2}"
        found.append(Finding(text, "use an odd number of nodes, such as 3 or 5", is_problem=count == 2))
    answered = sum(report.error is None for report in reports)
    if answered < count // 2 + 1:
        found.append(
            Finding(f"only {answered} of {count} nodes answer; a quorum is {count // 2 + 1}", "start the others")
        )
    runs = Counter(report.info["run_id"] for report in reports if "run_id" in report.info)
    for run_id, times in runs.items():
        if times > 1:
            same = [report for report in reports if report.info.get("run_id") == run_id]
            names = ", ".join(report.node for report in same)
            if all(report.replicas is not None for report in same):
                text, advice = f"{names} are on one server: only one of them has a vote", _PART
            else:
                text, advice = f"{names} are one server, listed {times} times", "list each server once"
            found.append(Finding(text, advice))
    found += _check_machines(reports)
    _check_clients(reports)
    found += _check_lists(reports)
    known = [report.offset for report in reports if report.offset is not None]
    for report in reports:
        ahead = 0.0 if report.offset is None else report.offset - median(known)
        if abs(ahead) > OFFSET_MAX:
            text = f"its clock is {abs(ahead):.1f} s {'ahead of' if ahead > 0 else 'behind'} the others"
            advice = "run NTP there: after a loss of memory, fencing tokens start from the time"
            report.findings.append(Finding(text, advice))
    return found


def _check_clients(reports: Sequence[Report]) -> None:
    """Add a finding to nodes that some clients do not reach; these clients may reach another server at that address."""
    # Clients soon renew the records of a node that has just forgotten them.
    ages = {report.node: min(report.uptime or 0.0, report.newborn_age or math.inf) for report in reports}
    telling = [report for report in reports if report.clients is not None and ages[report.node] > ANNOUNCED_FOR]
    alive = {
        client: heard.who
        for report in telling
        for client, heard in (report.clients or {}).items()
        if heard.kept > ALIVE
    }
    for report in telling:
        known = report.clients or {}
        missing = sorted(who for client, who in alive.items() if client not in known or known[client].kept < GONE)
        if missing:
            names = ", ".join(missing[:3]) + (" and others" if len(missing) > 3 else "")
            text = f"has no fresh record of {len(missing)} of {len(alive)} clients that other nodes know: {names}"
            advice = "check that they reach it; if its address was another server's before, stop that server"
            report.findings.append(Finding(text, advice))


def _check_lists(reports: Sequence[Report]) -> list[Finding]:
    """Return a finding if clients list different nodes: by more than one, two majorities may share no node."""
    lists: dict[frozenset[str], str] = {}
    for report in reports:
        for heard in (report.clients or {}).values():
            if heard.nodes and heard.kept > ALIVE:
                lists.setdefault(frozenset(heard.nodes), heard.who)
    if len(lists) < 2:
        return []
    apart = max(len(one ^ other) for one in lists for other in lists)
    names = ", ".join(f"{who} lists {len(nodes)}" for nodes, who in sorted(lists.items(), key=lambda item: item[1])[:3])
    if apart == 1:
        text = f"clients' lists differ by one node: {names}"
        return [Finding(text, "finish this step everywhere before you add or remove another node", is_problem=False)]
    text = f"clients' lists differ by {apart} nodes: {names}; two owners may each have a majority"
    advice = "give all clients the same list, spelled alike; add one node everywhere, then remove one everywhere"
    return [Finding(text, advice)]


def is_loopback(address: str) -> bool:
    """Return whether a node's address is on this machine."""
    return address.startswith(("/", "127.")) or _host(address) in ("localhost", "::1")


def _host(address: str) -> str:
    return "" if address.startswith("/") else address.rpartition(":")[0]


def _check_machines(reports: Sequence[Report]) -> list[Finding]:
    """Return the findings about nodes that share a machine, and so fail together."""
    if len(reports) > 1 and all(is_loopback(report.place) for report in reports):
        text = "all nodes run on this machine, and fail with it"
        return [Finding(text, "fine for a trial; otherwise give each node its own machine", is_problem=False)]
    found = []
    for host, times in Counter(_host(report.place) for report in reports).items():
        if host and times > 1:
            text = f"{times} of {len(reports)} nodes run on {host}, and fail with it"
            fatal = len(reports) - times < len(reports) // 2 + 1
            found.append(Finding(text, "give each node its own machine", is_problem=fatal))
    return found
