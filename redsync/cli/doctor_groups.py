"""The doctor's checks of nodes whose server may change, Sentinel groups and voters of a cluster: pure functions."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from redsync._core.memory import BLANK, JOINING, NEWBORN, elected
from redsync._core.text import is_refusal
from redsync.cli.doctor_checks import Finding, Report
from redsync.cli.writing import told

if TYPE_CHECKING:
    from collections.abc import Sequence

__all__ = ["GROUP_HEADINGS", "as_json", "check_group", "group_row", "groups_among", "guard_left"]

GROUP_HEADINGS: Final = ("NODE", "SERVER", "EPOCH", "IN SYNC", "GUARD LEFT")


def guard_left(report: Report, guard: float) -> float | None:
    """Return for how many more seconds a node takes no part in new grants, by its birth record.

    This is the whole guard if it has not begun; None if unknown.
    """
    run_id, latest = report.info.get("run_id"), report.latest
    if run_id is None or latest is None or not report.is_birth_known:
        return None
    birth = report.birth
    process = elected(str(run_id), latest.epoch, str(report.info.get("master_replid", ""))).strip(b",")
    if birth is None or birth.process != process or birth.kind == JOINING:
        return guard
    if birth.kind == BLANK:
        # The first client decides whether these nodes were in use before.
        return None
    return max(guard - birth.age, 0.0) if birth.kind == NEWBORN else 0.0


def check_group(report: Report, guard: float) -> list[Finding]:
    """Return the findings about a node's witnesses and its guard; none for a plain node."""
    if not report.said:
        return []
    return [*_check_witnesses(report), *_check_guard(report, guard)]


def _check_witnesses(report: Report) -> list[Finding]:
    found = []
    what, latest = report.witness, report.latest
    count, answering = len(report.said), sum(each.error is None for each in report.said)
    if answering < count // 2 + 1:
        text = f"{answering} of {count} listed {what}s name its master, {count // 2 + 1} must: clients do not connect"
        found.append(Finding(text, "start the others, or correct the list in the URL"))
    for each in report.said:
        if each.error is not None:
            trouble, advice = _trouble(each.error, what, answered=each.answered)
            found.append(Finding(f"the {what} {each.witness} {trouble}: {each.error}", advice))
        elif latest is not None and (each.server, each.epoch) != (latest.server, latest.epoch):
            text = (
                f"the {what} {each.witness} names {each.server} as master (epoch {each.epoch}); "
                f"the latest decision is {latest.server} (epoch {latest.epoch})"
            )
            advice = "run the doctor again: it may learn this in a moment; if not, check whether it is cut off"
            found.append(Finding(text, advice))
    return found


def _trouble(error: str, what: str, *, answered: bool) -> tuple[str, str]:
    """Return in which way a witness does not help, and what to do."""
    if is_refusal(error):
        return "refuses access", "correct the user or password for it in the URL, or its rule for that user"
    if answered:
        named = ", and name it as they do" if what == "Sentinel" else ""
        return "answers, but does not name the master", f"list only {what}s that know this master{named}"
    return "does not answer", "start it, or correct its address or firewall"


def _check_guard(report: Report, guard: float) -> list[Finding]:
    left = guard_left(report, guard)
    if not left:
        return []
    birth = report.birth
    if left < guard:
        text = (
            f"its server became the master, restarted or was emptied less than {guard:.0f} s ago: "
            f"takes no part in new grants for at most {left:.0f} s (restart guard)"
        )
        return [Finding(text, "wait; if this was not planned, read its log")]
    if birth is not None and birth.kind == JOINING:
        text = f"no client has completed its server's birth record: the restart guard of {guard:.0f} s has not begun"
        return [Finding(text, "check that its replicas are in sync, and that a client with a restart guard connects")]
    text = f"no client has connected since its server became the master: its {guard:.0f} s restart guard has not begun"
    return [Finding(text, "nothing to do if no client runs: the guard begins with the first", is_problem=False)]


def group_row(report: Report, guard: float) -> tuple[str, ...]:
    """Return a node's row in the table of nodes whose server may change."""
    latest = report.latest
    server, epoch = ("-", "-") if latest is None else (str(latest.server), str(latest.epoch))
    in_sync = "-" if report.in_sync is None else f"{report.in_sync} of {report.replicas}"
    left = guard_left(report, guard)
    return report.node, server, epoch, in_sync, "-" if left is None else told(left) if left else "none"


def as_json(report: Report, guard: float) -> dict[str, Any]:
    """Return the JSON fields specific to nodes whose server may change; all None for a plain node."""
    latest = report.latest
    return {
        "server": latest and latest.server,
        "epoch": latest and latest.epoch,
        "replicas": report.replicas,
        "in_sync": None if report.replicas is None else report.in_sync,
        "guard_left": guard_left(report, guard),
    }


def groups_among(reports: Sequence[Report]) -> list[Report]:
    """Return the reports of nodes whose server may change."""
    return [report for report in reports if report.replicas is not None]
