"""`redsync doctor`: checks the setup of each node, and says what to change."""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Callable, Sequence
from functools import partial
from statistics import median
from typing import Any, Final

import redis
from redis.exceptions import NoPermissionError, ResponseError

from redsync._core.client_records import ClientRecord
from redsync._core.clusters import KeyTagging
from redsync._core.keys import client_key
from redsync._core.memory import BIRTH_KEY, Birth
from redsync._protocols.surveys import look_command
from redsync.any_client import timing_of
from redsync.cli.doctor_checks import (
    NOT_ALLOWED,
    Finding,
    Heard,
    Report,
    check_deployment,
    checked,
    findings_about,
    worded,
)
from redsync.cli.exits import BROKEN, FINE, UNCONFIGURED, SetupError, state_of
from redsync.cli.output import put, told, write_json
from redsync.cli.queries import Node, Nodes, execute, in_one_line
from redsync.exceptions import ConfigurationError

PINGS: Final = 11
KEYS_MAX: Final = 1_000_000
HEADINGS: Final = ("NODE", "STATE", "VERSION", "ROLE", "PERSISTENCE", "EVICTION", "UP FOR", "CLOCK", "LATENCY")
GROUP_HEADINGS: Final = ("NODE", "SERVER", "EPOCH", "IN SYNC", "GUARD LEFT")


def doctor(options: Any) -> int:
    """Check each node, and the nodes together."""
    nodes = Nodes(options)
    guard = _restart_guard(nodes.nodes)
    answers = nodes.ask(partial(_examine, nodes.prefix))
    surveys = nodes.visit(lambda node: list(node.survey()))
    reports = [answer.value or Report(answer.node, error=answer.error) for answer in answers]
    for report, node, survey in zip(reports, nodes.nodes, surveys, strict=True):
        report.node, report.replicas, report.witness = node.address, node.replicas, node.witness
        report.said, report.guard = survey.value or (), guard
        report.findings += findings_about(report)
    general = check_deployment(reports)
    if options.json:
        view = {"nodes": list(map(_node_json, reports)), "quorum": nodes.quorum, "restart_guard": guard}
        write_json({**view, "findings": _findings_json(general)})
    else:
        _print(reports, general)
    found = [*general, *(finding for report in reports for finding in report.findings)]
    return nodes.status(answers) or (BROKEN if any(finding.is_problem for finding in found) else FINE)


def _restart_guard(nodes: Sequence[Node]) -> float:
    def read(name: str, default: float) -> float:
        try:
            return float(os.environ.get(name) or default)
        except ValueError:
            raise SetupError(f"{name} must be a number of seconds", UNCONFIGURED) from None

    lease = read("REDSYNC_LEASE", 30.0)
    default = lease if len(nodes) > 1 or nodes[0].replicas is not None else 0.0
    guard = read("REDSYNC_RESTART_GUARD", default)
    if not os.environ.get("REDSYNC_LEASE") and 0 < guard < lease:
        lease = guard  # programs that set a shorter lease themselves
    try:
        return timing_of(lease, 0.25, 0.01, guard, None).restart_guard
    except ConfigurationError as error:
        raise SetupError(str(error), UNCONFIGURED) from None


def _examine(prefix: bytes, client: redis.Redis, tagging: KeyTagging) -> Report:
    """Query one node for everything; a refused query leaves its fields unset, any other error is raised."""
    spent = []
    for _ in range(PINGS):
        begun = time.perf_counter()
        client.ping()
        spent.append(time.perf_counter() - begun)
    report = Report("", latency=median(spent), info=checked(_allowed(client.info) or {}))
    try:
        execute(client, tagging, [look_command(prefix, b"redsync doctor")])
    except ResponseError as error:
        report.scripts = in_one_line(error)
    report.clients = _allowed(lambda: _clients(client, tagging.key(client_key(""))))
    begun = time.time()
    if stamp := _allowed(client.time):
        clock = stamp[0] + stamp[1] / 1e6
        # Estimate: the node reads its clock halfway through the round trip.
        report.offset = clock - (begun + time.time()) / 2
        with contextlib.suppress(ResponseError, ValueError):
            record: Any = client.get(tagging.key(BIRTH_KEY))
            report.birth, report.is_birth_known = Birth.read(record, clock), True
    return report


def _allowed(question: Callable[[], Any]) -> Any:
    """Return the answer to a query; None if the node refuses it."""
    try:
        return question()
    except ResponseError:
        return None


def _clients(client: redis.Redis, begin: bytes) -> dict[str, Heard] | None:
    """Return the clients with a record on a node, whose keys begin so; None if refused, or if it has too many keys."""
    if client.dbsize() > KEYS_MAX:
        return None
    keys = list(client.scan_iter(begin + b"*", count=1000))
    pipeline = client.pipeline(transaction=False)
    for key in keys:
        pipeline.get(key)
        pipeline.pttl(key)
    # A lock may have a name that begins with "client:".
    answers = pipeline.execute(raise_on_error=False)
    if any(isinstance(answer, NoPermissionError) for answer in answers):
        return None
    heard = {}
    for key, packed, left in zip(keys, answers[::2], answers[1::2], strict=True):
        record = ClientRecord.unpack(packed) if isinstance(packed, bytes) else None
        if record is not None:
            name = key.removeprefix(begin).decode("utf-8", "backslashreplace")
            heard[name] = Heard(record, left / 1000)
    return heard


def _print(reports: list[Report], general: list[Finding]) -> None:
    from redsync.cli.tables import print_table

    print_table(HEADINGS, list(map(_row, reports)), turns=True)
    if groups := [report for report in reports if report.replicas is not None]:
        put("")
        print_table(GROUP_HEADINGS, list(map(_group_row, groups)), turns=True)
    problems, notes = (list(worded(reports, general, is_problem=is_problem)) for is_problem in (True, False))
    if problems:
        put("", "needs attention:", *problems)
    if notes:
        put("", "good to know:", *notes)
    if not problems:
        put("", "nothing needs attention")


def _row(report: Report) -> tuple[str, ...]:
    if report.error is not None:
        return (report.node, state_of(report.error), *["-"] * 7)
    state = "needs attention" if any(finding.is_problem for finding in report.findings) else "fine"
    uptime = NOT_ALLOWED if report.uptime is None else told(report.uptime)
    clock = NOT_ALLOWED if report.offset is None else f"{report.offset * 1000:+.0f} ms"
    latency = "-" if report.latency is None else f"{report.latency * 1000:.2f} ms"
    policy = report.info.get("maxmemory_policy") or ("-" if report.info else NOT_ALLOWED)
    return (report.node, state, report.version, report.role, report.persistence, policy, uptime, clock, latency)


def _group_row(report: Report) -> tuple[str, ...]:
    """Return a node's row in the table of nodes whose server may change."""
    latest, left = report.latest, report.guard_left
    server, epoch = ("-", "-") if latest is None else (latest.server, str(latest.epoch))
    in_sync = "-" if report.in_sync is None else f"{report.in_sync} of {report.replicas}"
    return report.node, server, epoch, in_sync, "none" if left == 0 else told(left)


def _node_json(report: Report) -> dict[str, Any]:
    """Return a node's JSON; the fields from `server` on are None for a plain node."""
    latest, told = report.latest, ("node", "error", "uptime", "latency", "replicas", "guard_left")
    return {
        **{each: getattr(report, each) for each in told},
        **{each: None if report.error else getattr(report, each) for each in ("version", "role", "persistence")},
        "eviction": report.info.get("maxmemory_policy"),
        "clock_offset": report.offset,
        "server": latest and latest.server,
        "epoch": latest and latest.epoch,
        "in_sync": None if report.replicas is None else report.in_sync,
        "findings": _findings_json(report.findings),
    }


def _findings_json(found: list[Finding]) -> list[dict[str, Any]]:
    return [{"text": each.text, "advice": each.advice, "problem": each.is_problem} for each in found]
