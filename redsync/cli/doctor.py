"""`redsync doctor`: checks the setup of each node, and says what to change."""

from __future__ import annotations

import os
import time
from functools import partial
from statistics import median
from typing import TYPE_CHECKING, Any, Final

from redsync._core.memory import BIRTH_KEY, NEWBORN, Birth
from redsync.cli.asking import Answer, Node, Nodes, execute, spelling_of
from redsync.cli.doctor_checks import (
    NOT_ALLOWED,
    Finding,
    Heard,
    Report,
    check_deployment,
    check_lives,
    check_node,
    checked,
    is_loopback,
)
from redsync.cli.doctor_groups import GROUP_HEADINGS, as_json, check_group, group_row, groups_among
from redsync.cli.exits import BROKEN, FINE, UNCONFIGURED, SetupError, state_of
from redsync.cli.output import put, write_json
from redsync.cli.writing import print_table, told, wrapped

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    import redis

    from redsync.cli.places import Place, Said

__all__ = ["doctor"]

PINGS: Final = 11
KEYS_MAX: Final = 1_000_000
NODE_TIMEOUT: Final = 0.25
LEASE: Final = 30.0
HEADINGS: Final = ("NODE", "STATE", "VERSION", "ROLE", "PERSISTENCE", "EVICTION", "UP FOR", "CLOCK", "LATENCY")


def doctor(options: Any) -> int:
    """Check each node, and the nodes together."""
    with Nodes.chosen(options) as nodes:
        guard = _restart_guard(nodes.nodes)
        places = {node.redis: node.place for node in nodes.nodes}
        answers = nodes.ask(lambda client: _examine(client, nodes.prefix))
        reports = [_report(answer, node) for answer, node in zip(answers, nodes.nodes, strict=True)]
        if groups := groups_among(reports):
            surveys = nodes.ask(lambda client: _survey(places[client]), [node for node in nodes.nodes if node.place])
            for report, survey in zip(groups, surveys, strict=True):
                report.said = survey.value or []
        # One node, or nodes on this machine only, are for trials.
        is_serious = len(reports) > 1 and not all(is_loopback(report.place) for report in reports)
        for report in reports:
            report.findings += check_node(report, guard=guard, node_timeout=NODE_TIMEOUT, is_serious=is_serious)
            report.findings += check_group(report, guard)
        check_lives(reports, guard)
        general = check_deployment(reports)
        if options.json:
            write_json(_as_json(reports, general, nodes.quorum, guard))
        else:
            _print(reports, general, guard)
        everything = [*general, *(finding for report in reports for finding in report.findings)]
        trouble = any(finding.is_problem for finding in everything)
        return nodes.status(answers) or (BROKEN if trouble else FINE)


def _restart_guard(nodes: Sequence[Node]) -> float:
    for name in ("REDSYNC_RESTART_GUARD", "REDSYNC_LEASE"):
        if name == "REDSYNC_LEASE" and len(nodes) == 1 and nodes[0].replicas is None:
            return 0.0
        text = os.environ.get(name)
        if text is not None:
            try:
                return float(text)
            except ValueError:
                raise SetupError(f"{name} must be a number of seconds, not {text!r}", UNCONFIGURED) from None
    return LEASE


def _report(answer: Answer[Report], node: Node) -> Report:
    report = answer.value or Report(answer.node, error=answer.error)
    report.node, report.replicas = answer.node, node.replicas
    report.witness = node.place.WITNESS if node.place else ""
    return report


def _survey(place: Place | None) -> list[Said]:
    return place.survey() if place else []


def _examine(client: redis.Redis, prefix: bytes) -> Report:
    """Query one node for everything; a refused query leaves its fields unset, any other error is raised."""
    from redsync._protocols.name_survey import look_command

    spent = []
    for _ in range(PINGS):
        begun = time.perf_counter()
        client.ping()
        spent.append(time.perf_counter() - begun)
    report = Report("", latency=median(spent), offset=_clock_offset(client))
    info: dict[str, Any] = {}
    for section in ("server", "replication", "persistence", "memory", "cluster"):
        info |= _allowed(partial(client.info, section)) or {}
    report.info = checked(info)
    report.policy = report.info.get("maxmemory_policy") or _setting(client, "maxmemory-policy")
    report.snapshots = _setting(client, "save")
    report.scripts = _why_no_scripts(lambda: execute(client, [look_command(prefix, b"redsync doctor")]))
    report.birth, report.is_birth_known = _birth(client)
    run_id = str(report.info.get("run_id", ""))
    if report.birth is not None and report.birth.kind == NEWBORN and run_id.startswith(report.birth.run_id):
        # A record of an earlier process does not count: the next client replaces it, and the uptime shows the age.
        report.newborn_age = report.birth.age
    report.clients = _allowed(lambda: _clients(client))
    return report


def _clock_offset(client: redis.Redis) -> float | None:
    begun = time.time()
    stamp = _allowed(client.time)
    # Estimate: the node reads its clock halfway through the round trip.
    return None if stamp is None else float(stamp[0] + stamp[1] / 1e6 - (begun + time.time()) / 2)


def _allowed(question: Callable[[], Any]) -> Any:
    """Return the answer to a query; None if the node refuses it."""
    from redis.exceptions import ResponseError

    try:
        return question()
    except ResponseError:
        return None


def _setting(client: redis.Redis, name: str) -> str | None:
    settings = _allowed(lambda: client.config_get(name)) or {}
    value = settings.get(name, settings.get(name.encode()))
    return value.decode() if isinstance(value, bytes) else value


def _why_no_scripts(attempt: Callable[[], object]) -> str | None:
    from redis.exceptions import ResponseError

    try:
        attempt()
    except ResponseError as error:
        return " ".join(str(error).split())[:200]
    return None


def _birth(client: redis.Redis) -> tuple[Birth | None, bool]:
    """Return a node's birth record, and whether our user may read it."""
    key = spelling_of(client).key(BIRTH_KEY)
    record, stamp = _allowed(lambda: [client.get(key)]), _allowed(client.time)
    if record is None or stamp is None:
        return None, False
    try:
        return Birth.read(record[0], stamp[0] + stamp[1] / 1e6), True
    except ValueError:
        return None, False


def _clients(client: redis.Redis) -> dict[str, Heard] | None:
    """Return the clients that have a record on a node; None if it has too many keys to scan."""
    from redsync._core.keys import client_key
    from redsync._core.presence import ClientRecord

    if client.dbsize() > KEYS_MAX:
        return None
    begin = spelling_of(client).key(client_key(""))
    keys = list(client.scan_iter(begin + b"*", count=1000))
    pipeline = client.pipeline(transaction=False)
    for key in keys:
        pipeline.get(key)
        pipeline.pttl(key)
    # A lock may have a name that begins with "client:".
    answers = pipeline.execute(raise_on_error=False)
    heard = {}
    for key, packed, left in zip(keys, answers[::2], answers[1::2], strict=True):
        record = ClientRecord.unpack(packed) if isinstance(packed, bytes) else None
        if record is not None:
            name = key.removeprefix(begin).decode("utf-8", "backslashreplace")
            heard[name] = Heard(f"{record.host}:{record.pid}", left / 1000, record.nodes)
    return heard


def _print(reports: list[Report], general: list[Finding], guard: float) -> None:
    print_table(HEADINGS, [_row(report) for report in reports])
    if groups := groups_among(reports):
        put("")
        print_table(GROUP_HEADINGS, [group_row(report, guard) for report in groups])
    # Show a finding about several nodes once.
    places: dict[Finding, list[str]] = {finding: [] for finding in general}
    for report in reports:
        for finding in report.findings:
            places.setdefault(finding, []).append(report.node)
    for is_problem, title in ((True, "needs attention"), (False, "good to know")):
        chosen = [(finding, nodes) for finding, nodes in places.items() if finding.is_problem is is_problem]
        if chosen:
            put("", f"{title}:")
        for finding, nodes in chosen:
            where = f"{'each node' if len(nodes) == len(reports) > 1 else ', '.join(nodes)}: " if nodes else ""
            put(*wrapped(f"{where}{finding.text}", "  "), *wrapped(finding.advice, "     ", "-> "))
    if not any(finding.is_problem for finding in places):
        put("", "nothing needs attention")


def _row(report: Report) -> tuple[str, ...]:
    if report.error is not None:
        return (report.node, state_of(report.error), *["-"] * 7)
    state = "needs attention" if any(finding.is_problem for finding in report.findings) else "fine"
    uptime = NOT_ALLOWED if report.uptime is None else told(report.uptime)
    clock = NOT_ALLOWED if report.offset is None else f"{report.offset * 1000:+.0f} ms"
    latency = "-" if report.latency is None else f"{report.latency * 1000:.2f} ms"
    described = report.version, report.role, report.persistence, report.policy or NOT_ALLOWED
    return (report.node, state, *described, uptime, clock, latency)


def _as_json(reports: list[Report], general: list[Finding], quorum: int, guard: float) -> dict[str, Any]:
    def findings(found: list[Finding]) -> list[dict[str, Any]]:
        return [{"text": each.text, "advice": each.advice, "problem": each.is_problem} for each in found]

    nodes = [
        {
            "node": report.node,
            "error": report.error,
            "version": None if report.error else report.version,
            "role": None if report.error else report.role,
            "persistence": None if report.error else report.persistence,
            "eviction": report.policy,
            "uptime": report.uptime,
            "clock_offset": report.offset,
            "latency": report.latency,
            **as_json(report, guard),
            "findings": findings(report.findings),
        }
        for report in reports
    ]
    return {"nodes": nodes, "quorum": quorum, "restart_guard": guard, "findings": findings(general)}
