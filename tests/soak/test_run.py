"""The evidence of a run: the leftovers on the nodes, and the report."""

import pytest
import redis

from redsync.testing.harness.holds import holds_of
from tests.soak import report, run
from tests.soak.plan import Trouble
from tests.soak.run import Evidence, Witness

SECOND = 1_000_000_000


@pytest.fixture
def left_behind(nodes, monkeypatch):
    monkeypatch.setattr(run, "CLAIM_PATIENCE", 0.05)
    monkeypatch.setattr(run, "PLACE_PATIENCE", 0.1)
    return lambda: run._left_behind(nodes)


@pytest.fixture
def plant(nodes):
    """Return a function that sends one command to one node."""

    def plant(i, *command):
        with redis.Redis(port=nodes.ports[i]) as node:
            node.execute_command(*command)

    return plant


def test_left_behind_finds_nothing_on_nodes_with_records_only(left_behind, plant):
    plant(0, "SET", "redsync_birth", "original 1")
    plant(1, "SET", "redsync:client:00000000-0000-0000-0000-000000000000", "x")
    assert left_behind() == {}


@pytest.mark.parametrize(
    ("command", "told"),
    [
        ("SET redsync:mutex:1 stranger PX 60000", "redsync:mutex:1' = b'stranger', 5"),
        ("HSET redsync:lock:0 stranger 1", "redsync:lock:0' = {b'stranger': b'1'}, -1 ms"),
        ("HSET redsync_places:{redsync:lock:0} stranger x", "redsync_places"),
        ("ZADD redsync_queue:{redsync:lock:0} 1 stranger", "redsync_queue"),
    ],
)
def test_left_behind_names_the_owner_of_each_key(left_behind, plant, command, told):
    plant(3, *command.split())
    left = left_behind()
    assert left.keys() == {3}
    assert told in left[3][0]


def test_left_behind_waits_for_keys_that_are_about_to_expire(left_behind, plant):
    plant(2, "SET", "redsync:mutex:1", "stranger", "PX", "20")
    assert left_behind() == {}


def line(event, at, **fields):
    return {"event": event, "worker": 1, "number": 1, "at": at} | fields


def test_report_counts_what_happened():
    lines = [
        line("acquired", SECOND, name="lock:0", asked=0, since=SECOND, until=3 * SECOND, lease=2.0),
        line("told", 3 * SECOND + 5_000_000, lost=True, remaining=0, until=3 * SECOND),
        line("done", 4 * SECOND, kept=False, until=3 * SECOND),
        line("lost", 4 * SECOND),
        line("busy", 4 * SECOND, number=3),
        line("acquired", 6 * SECOND, number=2, name="lock:0", asked=0, since=6 * SECOND, until=8 * SECOND, lease=None),
    ]
    witnesses = [Witness([1], lines, holds_of(lines, killed_at=7 * SECOND), 7 * SECOND)]
    evidence = Evidence(["lock:0"], witnesses, {"lock:0": []}, {"lock:0": 0}, {4: ["a claim"]}, 0.5)
    figures = dict(report.work_rows(evidence, 10.0))
    assert figures["acquisitions"] == "2 (0/s)"
    assert figures["busy"] == "1"
    assert figures["no quorum"] == "0"
    assert figures["holds lost"] == "1, 1 of them never renewed"
    assert figures["reported after it, at most"] == "0.005 s"
    assert figures["holders killed"] == "1"
    assert figures["longest without any acquisition"] == "5.0 s"
    troubles = [Trouble("node hangs", []), Trouble("node hangs", [])]
    text = "\n".join(report.lines(evidence, troubles, evidence.violations(), 10.0))
    assert "node hangs                                  2" in text
    assert "violations: 1\n  zombie: node 4 keeps a claim" in text
