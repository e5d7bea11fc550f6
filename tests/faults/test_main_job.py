"""The main job: many processes count under locks while up to two of five nodes at a time die or hang."""

import random
from collections import Counter

import pytest

from redsync.testing.harness.exclusion import judge_exclusion
from redsync.testing.harness.holds import holds_of
from redsync.testing.harness.journal import read
from redsync.testing.harness.ledger import read_ledgers
from redsync.testing.harness.nemesis import Nemesis
from redsync.testing.harness.vitals import Pulse
from tests.faults import havoc

PROCESSES, THREADS = 8, 2
NAMES = ["lock:red", "lock:green", "lock:blue"]
SECONDS = 4.0

STANDSTILL = 0.2
"""Seconds for which a machine stands still that excuse a hold that was lost, or a quorum that was not reached."""


@pytest.mark.sweep  # the same as tests/cli/test_demo.py, with more processes and more faults
def test_counting_loses_nothing_while_two_nodes_at_a_time_die_or_hang(nodes, admin, eventually, seed, tmp_path):
    options = {"work": "counting", "seed": str(seed)}
    with havoc.crew_of(nodes, tmp_path, NAMES, flavours=["threads"] * PROCESSES, owners=THREADS, **options) as crew:
        crew.await_all("ready")
        crew.go()
        nemesis = Nemesis(nodes, crew)
        with Pulse(least=0.05) as pulse:
            nemesis.run(havoc.minority(random.Random(seed), SECONDS), SECONDS)
        crew.finish()
    # Whoever has ended has given everything back.
    eventually(lambda: admin.keys() == [])
    lines = [line for life in crew.lives for line in read(life.journal)]
    entries, counters = read_ledgers(tmp_path, NAMES)
    assert judge_exclusion(holds_of(lines), entries, counters) == []
    assert min(counters.values()) > 5
    # A minority in trouble is no outage, and it takes no hold away; a machine that stands still may do both.
    outcomes = Counter(line["event"] for line in lines)
    print("outcomes:", dict(outcomes))
    assert outcomes["lost"] == outcomes["no quorum"] == outcomes["unsure"] == 0 or pulse.late > STANDSTILL
    assert {"kill", "pause"} <= {done.fault.action for done in nemesis.done}
