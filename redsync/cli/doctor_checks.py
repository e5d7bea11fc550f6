"""The doctor's checks of what nodes report: pure functions, so that each finding can be tested without a server.

The last of them check nodes whose server may change, Sentinel groups and voters of a cluster.
"""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from statistics import median
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from redsync._core.client_records import ClientRecord, who
from redsync._core.memory import BLANK, JOINING, NEWBORN, elected
from redsync._core.text import is_refusal
from redsync.cli.exits import NO_TLS, ONLY_TLS

if TYPE_CHECKING:
    from redsync._core.memory import Birth
    from redsync.cli.queries import Answer, Master

NOT_ALLOWED: Final = "not allowed"

_NUMBERS: Final = frozenset(
    {"uptime_in_seconds", "connected_slaves", "maxmemory", "used_memory", "aof_enabled", "cluster_enabled"}
)
_WORDS: Final = frozenset({"server_name", "redis_version", "run_id", "master_replid", "role", "maxmemory_policy"})

_PART: Final = "move a slot or fail over, so that each voter has its own master; or give a smaller nodes="

_ADVICE: Final = {
    NO_TLS: "begin its URL with redis://, or give its TLS port",
    ONLY_TLS: "begin its URL with rediss://",
    "CERTIFICATE_VERIFY_FAILED": "give the certificate of its CA: ?ssl_ca_certs=PATH; and the name that its own is for",
}
"""The advice for each part of an error."""

OLDEST: Final = (6, 0)
OFFSET_MAX: Final = 1.0
FULL: Final = 0.9
LATENCY_MAX: Final = 0.05

NODE_TIMEOUT: Final = 0.25  # the default of a client's `node_timeout`
ANNOUNCED_FOR: Final = 65.0  # lifetime of a client's record in seconds; the client renews it every 20 s
ALIVE: Final = 40.0  # seconds: a record with more life left than this was renewed a moment ago
GONE: Final = 20.0  # seconds: a record with less life left than this has missed two renewals


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
    """A client's record on a node, which keeps it for that many more seconds."""

    record: ClientRecord
    kept: float


@dataclass
class Report:
    """One node's report about itself; a field is None or empty if our user may not read it.

    Attributes:
        node: Its address.
        error: Why it does not answer; None if it does.
        info: The fields of its INFO.
        offset: Seconds that its clock is ahead of ours.
        latency: The median round trip of a PING, in seconds.
        scripts: Why it does not run our scripts; None if it does.
        replicas: The number of replicas that the URL gives for its server; None for a plain node.
        witness: The kind of server that knows its address, for people.
        said: The word of each witness; empty for a plain node.
        birth: Its birth record; None if it has none.
        is_birth_known: True if our user may read the birth record.
        clients: The clients that have a record there, by UUID; None if unknown.
        guard: The restart guard of its clients, in seconds.
        findings: The findings about it.
    """

    node: str
    error: str | None = None
    info: Mapping[str, Any] = field(default_factory=dict)
    offset: float | None = None
    latency: float | None = None
    scripts: str | None = None
    replicas: int | None = None
    witness: str = ""
    said: Sequence[Answer[Master]] = ()
    birth: Birth | None = None
    is_birth_known: bool = False
    clients: Mapping[str, Heard] | None = None
    guard: float = 0.0
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
    def latest(self) -> Master | None:
        """The latest decision about its server, by the word of the witnesses."""
        return max((each.value for each in self.said if each.value), key=lambda master: master.epoch, default=None)

    @property
    def endpoint(self) -> str:
        """The address of its server, as far as we know."""
        return self.node if self.latest is None else self.latest.server

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
        return "append-only file" if self.info["aof_enabled"] == 1 else "none, or snapshots"

    @property
    def uptime(self) -> float | None:
        """Seconds since it started."""
        return self.info.get("uptime_in_seconds")

    @property
    def newborn_age(self) -> float:
        """Seconds since a client found it emptied; infinity if it was not emptied."""
        # A record of an earlier process does not count: the next client replaces it, and the uptime shows the age.
        birth, run_id = self.birth, str(self.info.get("run_id", ""))
        return birth.age if birth and birth.kind == NEWBORN and run_id.startswith(birth.run_id) else math.inf

    @property
    def guard_left(self) -> float | None:
        """Seconds for which it still takes no part in new grants, by its birth record, if its server may change.

        This is the whole guard if it has not begun; None if unknown.
        """
        run_id, latest, birth = self.info.get("run_id"), self.latest, self.birth
        if run_id is None or latest is None or not self.is_birth_known:
            return None
        process = elected(str(run_id), latest.epoch, str(self.info.get("master_replid", ""))).strip(b",")
        if birth is None or birth.process != process or birth.kind == JOINING:
            return self.guard
        if birth.kind == BLANK:
            # The first client decides whether these nodes were in use before.
            return None
        return max(self.guard - birth.age, 0.0) if birth.kind == NEWBORN else 0.0


def checked(info: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return the fields of a node's INFO, with numbers as numbers and words as text.

    Raises:
        ValueError: A number is none.
    """
    types = dict.fromkeys(_NUMBERS, int) | dict.fromkeys(_WORDS, str)
    return {name: types[name](value) if name in types else value for name, value in info.items()}


def findings_about(report: Report) -> list[Finding]:
    """Return the findings about one node."""
    if report.error is not None:
        return [*_check_answer(report), *_check_witnesses(report)]
    own = _check_plain(report) if report.replicas is None else _check_replicated(report, report.replicas)
    return [*_check_server(report), *own, *_check_witnesses(report)]


def _check_answer(report: Report) -> Iterator[Finding]:
    error = str(report.error)
    if is_refusal(error):
        advice = "correct the user or password in its URL, or its rule for that user"
        yield Finding(f"refuses access: {error}", advice)
        return
    # Of a group or a voter, the server may be unknown.
    trouble = "does not answer" if report.replicas is None else "can't be reached"
    known = (advice for part, advice in _ADVICE.items() if part in error)
    yield Finding(f"{trouble}: {error}", next(known, "start it, or correct its URL or firewall"))


def worded(reports: Sequence[Report], general: Sequence[Finding], *, is_problem: bool) -> Iterator[str]:
    """Yield the lines about the problems, or else the notes: each finding once, with its nodes if not all together."""
    found: dict[Finding, list[str]] = {finding: [] for finding in general}
    for report in reports:
        for finding in report.findings:
            found.setdefault(finding, []).append(report.node)
    for finding, nodes in found.items():
        if finding.is_problem is is_problem:
            where = f"{'each node' if len(nodes) == len(reports) > 1 else ', '.join(nodes)}: " if nodes else ""
            yield f"  {where}{finding.text}"
            yield f"     -> {finding.advice}"


def _check_server(report: Report) -> Iterator[Finding]:
    """Check what concerns any server, whatever its role."""
    if not report.info:
        text = "refuses INFO: its version, role, persistence, eviction policy and uptime are unknown"
        yield Finding(text, "let the user call INFO: ACL SETUSER <user> +info", is_problem=False)
    numbers = tuple(map(int, re.findall(r"\d+", str(report.info.get("redis_version", "")))[:2]))
    if numbers and numbers < OLDEST:
        yield Finding(f"{report.version} is too old", "upgrade to Redis 6.0 or later, or to Valkey")
    if report.scripts is not None:
        keys = "~{rs*" if report.info.get("cluster_enabled") == 1 else "~redsync* ~redisson*"
        advice = f"allow the user our commands and keys: ACL SETUSER <user> +@all {keys} &*"
        yield Finding(f"does not run our scripts: {report.scripts}", advice)
    if report.latency is not None and report.latency > LATENCY_MAX:
        text = f"a round trip takes {report.latency * 1000:.0f} ms"
        advice = f"move it nearer, or raise node_timeout ({NODE_TIMEOUT:g} s): a slower node has no vote"
        yield Finding(text, advice, is_problem=report.latency > NODE_TIMEOUT / 2)
    most, used = int(report.info.get("maxmemory", 0)), int(report.info.get("used_memory", 0))
    policy = report.info.get("maxmemory_policy")
    if report.info and policy is None:
        yield Finding("does not tell its eviction policy", "make sure that it is noeviction", is_problem=False)
    if policy not in (None, "noeviction"):
        text = f"evicts keys ({policy}) when its memory is full: held locks vanish"
        text += "" if most else "; but maxmemory is 0 now, so it never evicts"
        advice = "CONFIG SET maxmemory-policy noeviction, also in its configuration file"
        yield Finding(text, advice, is_problem=most > 0)
    if most and used > FULL * most:
        text = f"uses {used / most:.0%} of maxmemory; when full it refuses new claims"
        yield Finding(text, "raise maxmemory, or move other data elsewhere")
    for what, state in (("append-only file", "aof_last_write_status"), ("snapshot", "rdb_last_bgsave_status")):
        if report.info.get(state, "ok") != "ok":
            advice = "free space on its disk, and read its log"
            yield Finding(f"the last write of its {what} failed; it may refuse writes", advice)


def _check_plain(report: Report) -> Iterator[Finding]:
    """Check a node whose server stays the same."""
    if report.role == "replica":
        advice = "list masters only, each independent of the others"
        yield Finding("is a replica: it refuses writes, and its vote would not be independent", advice)
    elif report.info.get("connected_slaves"):
        text = "has replicas: a promoted replica may lack the latest claims"
        advice = "do not fail over automatically, or use its Sentinels: redis+sentinel://...?replicas=N"
        yield Finding(text, advice, is_problem=False)
    if report.info.get("cluster_enabled") == 1:
        advice = "use servers with cluster-enabled no, or voters of the cluster: redis+cluster://...?nodes=3"
        yield Finding("is part of a cluster, which redirects keys to other servers", advice)
    # A node subtracts two instants in whole seconds: its uptime may be 1 s too high; clients allow for that.
    started = math.inf if report.uptime is None else max(report.uptime - 1.0, 0.0)
    if min(started, report.newborn_age) < report.guard:
        what = "started" if started < report.newborn_age else "was emptied"
        text = f"{what} less than {report.guard:.0f} s ago: takes no part in new grants until then (restart guard)"
        yield Finding(text, "wait; if this was not planned, read its log")


def _check_replicated(report: Report, replicas: int) -> Iterator[Finding]:
    """Check a node whose server may change: its birth record counts, not the uptime of the present server."""
    connected, in_sync, needed = int(report.info.get("connected_slaves", 0)), report.in_sync or 0, (replicas + 1) // 2
    if report.role == "replica":
        text = f"its server is a replica: a failover is under way, or a {report.witness} is out of date"
        yield Finding(text, "run the doctor again")
    elif not replicas:
        text = "its votes wait for no replica: after a failover, an old master that is cut off still grants"
        advice = f"give the number of its replicas in the URL: ?replicas={connected or 'N'}"
        yield Finding(text, f"{advice}, or at least set min-replicas-to-write on its servers")
    elif connected > replicas:
        text = f"has {connected} replicas, but replicas={replicas}: two masters might both reach {needed}"
        yield Finding(text, "give the number of all its replicas in each client's URL")
    elif in_sync < replicas:
        text = f"{in_sync} of its {replicas} replicas are in sync; each vote needs {needed}"
        yield Finding(text, "start the others, or wait until they have its data", is_problem=in_sync <= needed)
    left, guard = report.guard_left, report.guard
    if left and left < guard:
        text = (
            f"its server became the master, restarted or was emptied less than {guard:.0f} s ago: "
            f"takes no part in new grants for at most {left:.0f} s (restart guard)"
        )
        yield Finding(text, "wait; if this was not planned, read its log")
    elif left:
        text = f"no client has completed its server's birth record: the {guard:.0f} s restart guard has not begun"
        advice = "nothing to do if no client runs; otherwise check that its replicas are in sync"
        yield Finding(text, advice, is_problem=report.birth is not None and report.birth.kind == JOINING)


def check_deployment(reports: Sequence[Report]) -> list[Finding]:
    """Return the findings about all nodes together; add findings to single nodes that differ from the others."""
    is_local = all(is_loopback(report.endpoint) for report in reports)
    _check_each(reports, is_local=is_local)
    _check_clients(reports)
    return [*_check_all(reports, is_local=is_local), *_check_settings(reports)]


def _check_all(reports: Sequence[Report], *, is_local: bool) -> Iterator[Finding]:
    """Check the number of nodes, and that each fails independently of the others."""
    count, quorum = len(reports), len(reports) // 2 + 1
    if count % 2 == 0:
        text = f"{count} nodes tolerate as many failures as {count - 1}: {(count - 1) // 2}"
        yield Finding(text, "use an odd number of nodes, such as 3 or 5", is_problem=count == 2)
    answered = sum(report.error is None for report in reports)
    if answered < quorum:
        text = f"only {answered} of {count} nodes answer; a quorum is {quorum}"
        yield Finding(text, "mend the others, as said of each")
    for run_id, times in Counter(report.info.get("run_id") for report in reports).items():
        if run_id is not None and times > 1:
            same = [report for report in reports if report.info.get("run_id") == run_id]
            names = ", ".join(report.node for report in same)
            if all(report.replicas is not None for report in same):
                yield Finding(f"{names} are on one server: only one of them has a vote", _PART)
            else:
                yield Finding(f"{names} are one server, listed {times} times", "list each server once")
    if is_local and count > 1:
        text = "all nodes run on this machine, and fail with it"
        yield Finding(text, "fine for a trial; otherwise give each node its own machine", is_problem=False)
    for host, times in Counter(_host(report.endpoint) for report in reports if not is_local).items():
        if host and times > 1:
            text = f"{times} of {count} nodes run on {host}, and fail with it"
            yield Finding(text, "give each node its own machine", is_problem=count - times < quorum)


def _check_each(reports: Sequence[Report], *, is_local: bool) -> None:
    """Add findings to single nodes that depend on the others."""
    known = [report.offset for report in reports if report.offset is not None]
    for report in reports:
        if report.info.get("aof_enabled") == 0 and report.guard == 0:
            text = "forgets all holds when it restarts, and there is no restart guard"
            advice = "set restart_guard (REDSYNC_RESTART_GUARD) to the longest lease, or appendonly yes"
            # One node, or nodes on this machine only, are for trials.
            is_problem = len(reports) > 1 and not is_local
            report.findings.append(Finding(text, f"{advice}, appendfsync always", is_problem=is_problem))
        ahead = 0.0 if report.offset is None else report.offset - median(known)
        if abs(ahead) > OFFSET_MAX:
            text = f"its clock is {abs(ahead):.1f} s {'ahead of' if ahead > 0 else 'behind'} the others"
            advice = "run NTP there: after a loss of memory, fencing tokens start from the time"
            report.findings.append(Finding(text, advice))


def _check_clients(reports: Sequence[Report]) -> None:
    """Add a finding to nodes that some clients do not reach; these clients may reach another server at that address."""
    # Clients soon renew the records of a node that has just forgotten them.
    ages = {report.node: min(report.uptime or 0.0, report.newborn_age) for report in reports}
    telling = [report for report in reports if report.clients is not None and ages[report.node] > ANNOUNCED_FOR]
    alive = {
        client: who("", heard.record)
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


def _check_settings(reports: Sequence[Report]) -> Iterator[Finding]:
    """Yield a finding for each setting that all clients must share, and do not.

    That is the list of nodes, as two majorities of lists that differ by more than one node may share none; and the
    layout of keys, see `docs/protocol.md`.
    """
    alive = [heard for report in reports for heard in (report.clients or {}).values() if heard.kept > ALIVE]
    layouts = {heard.record.layout: who("", heard.record) for heard in alive}
    if len(layouts) > 1:
        names = ", ".join(f"{who} uses {layout}" for layout, who in sorted(layouts.items()))
        yield Finding(f"clients use different layouts of keys: {names}", "run one release everywhere")
    lists = {frozenset(heard.record.nodes): who("", heard.record) for heard in alive if heard.record.nodes}
    apart = max((len(one ^ other) for one in lists for other in lists), default=0)
    if not apart:
        return
    names = ", ".join(f"{who} lists {len(nodes)}" for nodes, who in sorted(lists.items(), key=lambda item: item[1])[:3])
    text = f"clients' lists differ by {'one node' if apart == 1 else f'{apart} nodes'}: {names}"
    if apart == 1:
        yield Finding(text, "finish this step everywhere before you add or remove another node", is_problem=False)
    else:
        advice = "give all clients the same list, spelled alike; add one node everywhere, then remove one everywhere"
        yield Finding(f"{text}; two owners may each have a majority", advice)


def is_loopback(address: str) -> bool:
    """Return whether a node's address is on this machine."""
    return address.startswith(("/", "127.")) or _host(address) in ("localhost", "::1")


def _host(address: str) -> str:
    return "" if address.startswith("/") else address.rpartition(":")[0]


def _check_witnesses(report: Report) -> Iterator[Finding]:
    what, latest = report.witness, report.latest
    # As a client does: it counts those that know the latest decision.
    count, naming = len(report.said), sum(each.value is not None and each.value == latest for each in report.said)
    if report.said and naming < count // 2 + 1:
        text = f"{naming} of {count} listed {what}s name its master, {count // 2 + 1} must: clients do not connect"
        yield Finding(text, "start the others, or correct the list in the URL")
    for each in report.said:
        if each.value is None:
            advice = "start it, correct its address, firewall, user or password; list only those that know this master"
            yield Finding(f"the {what} {each.node} does not name the master: {each.error}", advice)
        elif latest is not None and each.value != latest:
            text = (
                f"the {what} {each.node} names {each.value.server} as master (epoch {each.value.epoch}); "
                f"the latest decision is {latest.server} (epoch {latest.epoch})"
            )
            advice = "run the doctor again: it may learn this in a moment; if not, check whether it is cut off"
            yield Finding(text, advice)
