"""The doctor's checks of Sentinel groups and voters: findings from witnesses' answers and birth records."""

from dataclasses import replace

import pytest

from redsync._core.memory import BLANK, JOINING, NEWBORN, ORIGINAL, Birth
from redsync.cli.doctor import _group_row, _node_json
from redsync.cli.doctor_checks import Report, findings_about
from redsync.cli.queries import Answer, Master

RUN_ID, HISTORY = "0123456789abcdef" + "0" * 24, "fedcba98" + "0" * 32
SAID = Answer("s1:26379", Master("10.0.0.1:6379", 7))
OURS = b"0123456789abcdef@7.fedcba98"


def report(*said, **fields):
    info = {"run_id": RUN_ID, "master_replid": HISTORY, "connected_slaves": 2, "maxmemory_policy": "noeviction"}
    fields = {"replicas": 2, "witness": "Sentinel", "said": said or [SAID], "guard": 30.0, **fields}
    return Report("m@s1:26379", info=info, **fields)


def born(kind, age, process=OURS):
    return report(birth=Birth(kind, 0, process, age), is_birth_known=True)


def check_group(report, guard):
    """Return the findings about its witnesses and its guard."""
    report.guard = guard
    found = findings_about(report)
    return [each for each in found if not each.text.startswith(("0 of its 2", "refuses INFO"))]


def texts(found):
    return [each.text for each in found]


@pytest.mark.parametrize(
    ("kind", "age", "process", "left"),
    [
        (ORIGINAL, 3.0, OURS, 0.0),
        (NEWBORN, 3.0, OURS, 27.0),
        (NEWBORN, 31.0, OURS, 0.0),
        (JOINING, 3.0, OURS, 30.0),
        (BLANK, 3.0, OURS, None),
        (NEWBORN, 31.0, b"0123456789abcdef@6.fedcba98", 30.0),
        (ORIGINAL, 31.0, b"0123456789abcdef@7.00000000", 30.0),
    ],
)
def test_guard_left_follows_from_the_birth_record_of_the_present_decision(kind, age, process, left):
    assert born(kind, age, process).guard_left == left


def test_guard_left_is_unknown_without_a_readable_record():
    silent = Answer("s1:26379", error="timed out")
    for unknown in (report(), report(silent, is_birth_known=True), Report("m@s1", said=[SAID], is_birth_known=True)):
        assert unknown.guard_left is None
    assert report(is_birth_known=True).guard_left == 30.0, "it has no record yet"


def test_findings_say_why_a_node_grants_nothing_new():
    young, joining, strange = born(NEWBORN, 3.0), born(JOINING, 3.0), born(NEWBORN, 3.0, b"another@1.0")
    assert "for at most 27 s (restart guard)" in texts(check_group(young, 30.0))[0]
    assert texts(check_group(joining, 30.0))[0].startswith("no client has completed its server's birth record")
    (note,) = check_group(strange, 30.0)
    assert note.text == texts(check_group(joining, 30.0))[0]
    assert not note.is_problem
    assert check_group(young, 0.0) == []
    assert check_group(Report("h:6379"), 30.0) == []


def test_silent_and_outdated_witnesses_are_findings():
    behind, silent = (
        Answer("s2:26379", Master("10.0.0.2:6379", 6)),
        Answer("s3:26379", error="timed out"),
    )
    asked = report(SAID, behind, silent)
    assert texts(check_group(asked, 0.0)) == [
        "1 of 3 listed Sentinels name its master, 2 must: clients do not connect",
        (
            "the Sentinel s2:26379 names 10.0.0.2:6379 as master (epoch 6); "
            "the latest decision is 10.0.0.1:6379 (epoch 7)"
        ),
        "the Sentinel s3:26379 does not name the master: timed out",
    ]
    assert asked.endpoint == "10.0.0.1:6379"
    few = texts(check_group(report(SAID, silent, silent), 0.0))
    assert few[0] == "1 of 3 listed Sentinels name its master, 2 must: clients do not connect"
    assert report(silent).latest is None
    assert report(silent).endpoint == "m@s1:26379"


def test_row_and_json_show_all_known_facts():
    known = born(NEWBORN, 3.0)
    known.info = {**known.info, "slave0": {"state": "online"}, "slave1": {"state": "wait_bgsave"}}
    assert _group_row(known) == ("m@s1:26379", "10.0.0.1:6379", "7", "1 of 2", "27.0 s")
    assert _group_row(replace(known, guard=1.0))[-1] == "none"
    facts = ("server", "epoch", "replicas", "in_sync", "guard_left")
    assert [_node_json(known)[fact] for fact in facts] == ["10.0.0.1:6379", 7, 2, 1, 27.0]
    lost = Report("m@s1:26379", error="timed out", replicas=2, said=[Answer("s1:26379", error="timed out")])
    assert _group_row(lost) == ("m@s1:26379", "-", "-", "-", "-")
    assert {_node_json(Report("h:6379"))[fact] for fact in facts} == {None}
