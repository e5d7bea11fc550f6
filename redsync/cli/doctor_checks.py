"""The doctor's judgement of what nodes say: pure functions, so that each finding can be tested without a server."""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from statistics import median
from typing import TYPE_CHECKING, Any, Final, NamedTuple

if TYPE_CHECKING:
    from redsync._core.memory import Birth
    from redsync.cli.places import Said

__all__ = ["Finding", "Heard", "Report", "check_deployment", "check_lives", "check_node", "checked", "is_loopback"]

NOT_ALLOWED: Final = "not allowed to look"

_NUMBERS: Final = frozenset(
    {"uptime_in_seconds", "connected_slaves", "maxmemory", "used_memory", "aof_enabled", "cluster_enabled", "loading"}
)
_WORDS: Final = frozenset({"server_name", "redis_version", "run_id", "master_replid", "role", "maxmemory_policy"})

_PART: Final = "move a slot or fail one over, so that each has a master of its own; or name fewer nodes="

OLDEST: Final = (6, 0)
OFFSET_MAX: Final = 1.0
FULL: Final = 0.9
LATENCY_MAX: Final = 0.05

ANNOUNCED_FOR: Final = 65.0
"""Seconds for which a client's record is kept; it is renewed every 20 s."""

ALIVE: Final = 40.0
"""Seconds: a client whose record is kept for longer than that has announced itself a moment ago."""

GONE: Final = 20.0
"""Seconds: a node that keeps the record for less than that has missed two announcements."""


@dataclass(frozen=True, slots=True)
class Finding:
    """One thing that the doctor found.

    Attributes:
        text: The finding.
        advice: What to do.
        is_problem: Whether it needs attention; else it is for information.
    """

    text: str
    advice: str
    is_problem: bool = True


class Heard(NamedTuple):
    """A client's record on a node.

    Attributes:
        who: The client's host and process, for people.
        kept: For how many more seconds the node keeps the record.
        nodes: A digest for each node of the client's list; empty if it does not tell.
    """

    who: str
    kept: float
    nodes: tuple[str, ...] = ()


@dataclass
class Report:
    """What one node said.

    Attributes:
        node: Its address.
        error: Why it said nothing, None if it did.
        info: The fields of its INFO; empty if we are not allowed to look.
        policy: Its eviction policy, None if we are not allowed to look.
        snapshots: When it writes snapshots, empty for never, None if we are not allowed to look.
        offset: How far its clock is ahead of ours, in seconds; None if unknown.
        latency: The median time of a PING, in seconds; None if unknown.
        scripts: Why it does not run our scripts, None if it does.
        newborn_age: Seconds since it was found to be emptied, None if it was not.
        replicas: How many replicas the URL gives to the Sentinel group or voter; None for a plain node.
        witness: What tells where its server is, for people.
        said: What each witness says; empty for a plain node.
        birth: Its birth record, None if it has none.
        is_birth_known: Whether we are allowed to look at that.
        clients: The clients that keep their record there, by UUID; None if we can't tell.
        findings: What is wrong with it.
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
        """The latest decision about its server that a witness tells."""
        return max((each for each in self.said if each.error is None), key=lambda each: each.epoch, default=None)

    @property
    def place(self) -> str:
        """Where its server is, as far as we know."""
        return self.node if self.latest is None else str(self.latest.server)

    @property
    def in_sync(self) -> int | None:
        """How many replicas follow it and have its data; None if we are not allowed to look."""
        count = self.info.get("connected_slaves")
        lines = [line for name, line in self.info.items() if name.startswith("slave") and isinstance(line, Mapping)]
        return None if count is None else count - sum(line.get("state") != "online" for line in lines)

    @property
    def persistence(self) -> str:
        """Whether it writes to disk, and how."""
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
    """Return the fields of a node's INFO if their types are right: numbers are numbers, and words are text.

    Raises:
        ValueError: A field is something else.
    """
    for name, value in info.items():
        if (name in _NUMBERS and type(value) is not int) or (
            name in _WORDS and not isinstance(value, str | int | float)
        ):
            raise ValueError(f"INFO says {name}:{value!r:.80}")
    return {name: str(value) if name in _WORDS else value for name, value in info.items()}


def check_node(report: Report, *, guard: float, node_timeout: float, is_serious: bool) -> list[Finding]:
    """Return the findings about one node.

    Args:
        report: What it said.
        guard: The restart guard of the clients, in seconds.
        node_timeout: How many seconds clients wait for a node.
        is_serious: Whether others rely on these nodes: more than one, and not all on this machine.
    """
    if report.error is not None:
        return [Finding(f"does not answer: {report.error}", "start it, or correct its URL, password or firewall")]
    found: list[Finding] = []
    if not report.info:
        advice = "allow the user INFO, so that this can be checked: ACL SETUSER <user> +info"
        found.append(
            Finding("INFO is refused: version, role, persistence, uptime are unknown", advice, is_problem=False)
        )
    found += _check_server(report)
    found += _check_memory(report)
    found += _check_disk(report, guard, is_serious=is_serious)
    if report.latency is not None and report.latency > min(LATENCY_MAX, node_timeout / 2):
        text = f"a round trip takes {report.latency * 1000:.0f} ms"
        advice = f"move it nearer, or raise node_timeout ({node_timeout:g} s): who is slower has no vote"
        found.append(Finding(text, advice, is_problem=report.latency > node_timeout / 2))
    return found


def _check_server(report: Report) -> list[Finding]:
    found = []
    numbers = tuple(map(int, re.findall(r"\d+", str(report.info.get("redis_version", "")))[:2]))
    if numbers and numbers < OLDEST:
        found.append(Finding(f"{report.version} is too old", "upgrade to Redis 6.0 or later, or to Valkey"))
    if report.role == "replica" and report.replicas is not None:
        text = "its server is a replica: another one was made the master a moment ago, or who tells that is behind"
        found.append(Finding(text, "ask again"))
    elif report.role == "replica":
        advice = "list masters only, each independent of the others"
        found.append(Finding("is a replica, which refuses to write and does not vote by itself", advice))
    else:
        found += _check_replicas(report)
    if report.info.get("cluster_enabled") == 1 and report.replicas is None:
        advice = "use servers with cluster-enabled no, or let the cluster lend voters: redis+cluster://...?nodes=3"
        found.append(Finding("is part of a cluster, which sends keys elsewhere", advice))
    if report.info.get("loading") == 1:
        found.append(Finding("is still loading its data", "wait until it has"))
    if report.scripts is not None:
        keys = "~{rs*" if report.info.get("cluster_enabled") == 1 else "~redsync* ~redisson*"
        advice = f"allow the user scripts, and the keys: ACL SETUSER <user> +@all {keys} &*"
        found.append(Finding(f"does not run our scripts: {report.scripts}", advice))
    return found


def _check_replicas(report: Report) -> list[Finding]:
    connected = int(report.info.get("connected_slaves", 0))
    if report.replicas is None:
        if not connected:
            return []
        text = "has replicas: a replica that is promoted may not know the latest claims"
        advice = "never fail over to one automatically, or name its Sentinels: redis+sentinel://...?replicas=N"
        return [Finding(text, advice, is_problem=False)]
    if not report.replicas:
        text = "its votes wait for no replica: a master that is cut off goes on to grant while another one does"
        advice = f"give the number of its replicas in the URL: ?replicas={connected or 'N'}"
        return [Finding(text, f"{advice}; at least set min-replicas-to-write on its servers")]
    needed = (report.replicas + 1) // 2
    if connected > report.replicas:
        text = f"has {connected} replicas, but replicas={report.replicas}: two masters might both gather {needed}"
        return [Finding(text, "give the number of all its replicas in every client's URL")]
    in_sync = report.in_sync or 0
    if in_sync < report.replicas:
        text = f"{in_sync} of its {report.replicas} replicas are in sync; each vote needs {needed}"
        return [Finding(text, "start the others again, or wait until they have its data", is_problem=in_sync <= needed)]
    return []


def _check_memory(report: Report) -> list[Finding]:
    found = []
    most, used = int(report.info.get("maxmemory", 0)), int(report.info.get("used_memory", 0))
    if report.policy is None:
        text = f"eviction policy: {NOT_ALLOWED}"
        found.append(Finding(text, "see to it that it is noeviction", is_problem=False))
    elif report.policy != "noeviction":
        text = f"evicts keys ({report.policy}) when its memory is full: held locks vanish"
        text += "" if most else "; at present maxmemory is 0, so that it never is"
        found.append(Finding(text, "CONFIG SET maxmemory-policy noeviction, and in its file", is_problem=most > 0))
    if most and used > FULL * most:
        text = f"has used {used / most:.0%} of maxmemory; when full it refuses new claims"
        found.append(Finding(text, "raise maxmemory, or move other data elsewhere"))
    return found


def _check_disk(report: Report, guard: float, *, is_serious: bool) -> list[Finding]:
    found = []
    for what, state in (("append-only file", "aof_last_write_status"), ("snapshot", "rdb_last_bgsave_status")):
        if report.info.get(state, "ok") != "ok":
            advice = "make room on its disk, and see its log"
            found.append(Finding(f"the last {what} failed; it may refuse to write", advice))
    if report.info.get("aof_enabled") == 0 and guard == 0:
        text = "forgets who holds what when it restarts, and no restart guard covers that"
        advice = "set restart_guard to the longest lease (REDSYNC_RESTART_GUARD), or appendonly yes, appendfsync always"
        found.append(Finding(text, advice, is_problem=is_serious))
    return found


def check_lives(reports: Sequence[Report], guard: float) -> None:
    """Find nodes that take no part in new grants yet; nodes that began together get the same finding."""
    for what in ("started", "was emptied"):
        young = [report for report in reports if _life(report)[0] == what and _life(report)[1] < guard]
        left = max((guard - _life(report)[1] for report in young), default=0.0)
        text = (
            f"{what} less than {guard:.0f} s ago: takes no part in new grants for at most {left:.0f} s (restart guard)"
        )
        for report in young:
            report.findings.append(Finding(text, "wait; if nobody restarted it, see its log"))


def _life(report: Report) -> tuple[str, float]:
    """Return what a node's memory began with, and how many seconds ago."""
    # A node subtracts two instants in whole seconds: its uptime may be 1 s too high, and clients allow for that.
    started = math.inf if report.uptime is None else max(report.uptime - 1.0, 0.0)
    if report.replicas is not None:
        # What it forgot is told by its record: after a restart another server may have been the master.
        return "started", math.inf
    if report.newborn_age is not None and report.newborn_age <= started:
        return "was emptied", report.newborn_age
    return "started", started


def check_deployment(reports: Sequence[Report]) -> list[Finding]:
    """Return the findings about all nodes together; add to nodes' own findings what only a comparison shows."""
    found: list[Finding] = []
    count = len(reports)
    if count % 2 == 0:
        text = f"{count} nodes stand the failure of {(count - 1) // 2}, as {count - 1} do"
        found.append(Finding(text, "use an odd number of nodes, such as 3 or 5", is_problem=count == 2))
    answered = sum(report.error is None for report in reports)
    if answered < count // 2 + 1:
        found.append(
            Finding(f"only {answered} of {count} nodes answer, a quorum is {count // 2 + 1}", "start the others")
        )
    runs = Counter(report.info["run_id"] for report in reports if "run_id" in report.info)
    for run_id, times in runs.items():
        if times > 1:
            same = [report for report in reports if report.info.get("run_id") == run_id]
            names = ", ".join(report.node for report in same)
            if all(report.replicas is not None for report in same):
                text, advice = f"{names} are on one server: one of them has a vote, the others are out", _PART
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
            report.findings.append(Finding(text, "run NTP there: fencing tokens begin with the time after a loss"))
    return found


def _check_clients(reports: Sequence[Report]) -> None:
    """Find nodes that some clients do not reach: at the same address these clients may reach another server."""
    # A node that forgot its records a moment ago gets them again over time.
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
            text = f"does not hear of {len(missing)} of {len(alive)} clients that other nodes hear of: {names}"
            advice = "see whether they reach it; if its address led to another server before, stop that server"
            report.findings.append(Finding(text, advice))


def _check_lists(reports: Sequence[Report]) -> list[Finding]:
    """Find clients whose lists of nodes differ: by more than one node, two majorities need not meet."""
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
        text = f"clients list different nodes, by one: {names}"
        return [Finding(text, "finish this step everywhere before the next node is added or removed", is_problem=False)]
    text = f"clients list different nodes, {apart} are not on both lists: {names}. Two owners may each have a majority"
    advice = "give all the same list, spelled alike; add one node everywhere, then remove one everywhere"
    return [Finding(text, advice)]


def is_loopback(address: str) -> bool:
    """Whether a node's address is on this machine."""
    return address.startswith(("/", "127.")) or _host(address) in ("localhost", "::1")


def _host(address: str) -> str:
    return "" if address.startswith("/") else address.rpartition(":")[0]


def _check_machines(reports: Sequence[Report]) -> list[Finding]:
    """Return the findings about nodes that share a machine: they fail together."""
    if len(reports) > 1 and all(is_loopback(report.place) for report in reports):
        text = "all nodes run on this machine, and fail with it"
        return [Finding(text, "good for a try; else give each node a machine of its own", is_problem=False)]
    found = []
    for host, times in Counter(_host(report.place) for report in reports).items():
        if host and times > 1:
            text = f"{times} of {len(reports)} nodes run on {host}, and fail with it"
            fatal = len(reports) - times < len(reports) // 2 + 1
            found.append(Finding(text, "give each node a machine of its own", is_problem=fatal))
    return found
