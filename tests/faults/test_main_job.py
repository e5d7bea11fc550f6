"""The main job: many processes count under locks while up to two of five nodes at a time die or hang."""

import json
import random
import subprocess
import sys
import time
from collections import Counter
from pathlib import Path

from tests.faults.havoc import Pulse
from tests.faults.worker import MARGIN

WORKER = Path(__file__).with_name("worker.py")

PROCESSES, THREADS = 8, 2
NAMES = ["red", "green", "blue"]
LEASE = 2.0
SECONDS = 4.0


def clock():
    return time.clock_gettime(time.CLOCK_BOOTTIME)


class Troublemaker:
    """Kills nodes, which come back empty, and stops nodes; at any time at most two of them are no full members.

    A node that was restarted stays out of the votes for a lease, so it counts as troubled until then.
    """

    def __init__(self, nodes, seed):
        self._nodes = nodes
        self._chance = random.Random(seed)
        self._kinds = self._chance.sample(["kill", "pause"], 2)  # to begin with; then as it comes
        self._troubles = {}  # node -> what is still to be done with it, and when
        self.history = []

    def run(self, ends_at):
        while clock() < ends_at:
            for i, steps in list(self._troubles.items()):
                while steps and steps[0][0] <= clock():
                    self._do(i, steps.pop(0)[1])
                if not steps:
                    del self._troubles[i]
            if len(self._troubles) < 2 and self._chance.random() < 0.1:
                self._begin()
            time.sleep(0.01)
        for i in range(len(self._nodes)):
            if self._nodes.alive(i):
                self._nodes.resume(i)
            else:
                self._nodes.restart(i)

    def _begin(self):
        i = self._chance.choice([i for i in range(len(self._nodes)) if i not in self._troubles])
        now = clock()
        length = self._chance.uniform(0.02, 0.8)
        kind = self._kinds.pop() if self._kinds else self._chance.choice(["kill", "pause", "pause"])
        if kind == "kill":
            # Uptimes are whole seconds and clients reconnect with pauses, so it takes them longer than the lease.
            length = min(length, 0.4)
            self._troubles[i] = [(now, "kill"), (now + length, "restart"), (now + length + LEASE + 2.2, "forgive")]
        else:
            # On a busy machine it takes a moment until it has answered what it owes.
            self._troubles[i] = [(now, "pause"), (now + length, "resume"), (now + length + 0.5, "forgive")]

    def _do(self, i, what):
        self.history.append(f"{what} {i}")
        if what != "forgive":
            getattr(self._nodes, what)(i)


def overlaps(holds):
    """Return the pairs of holds of one name that were believed at the same time."""
    found = []
    for name in NAMES:
        mine = sorted((hold for hold in holds if hold[0] == name), key=lambda hold: hold[1])
        latest = None
        for hold in mine:
            if latest is not None and hold[1] < latest[2]:
                found.append((latest, hold))
            if latest is None or hold[2] > latest[2]:
                latest = hold
    return found


def test_checker_finds_planted_overlap():
    first, inside, after = ["red", 1.0, 5.0], ["red", 2.0, 3.0], ["red", 4.0, 6.0]
    assert overlaps([after, ["blue", 1.0, 9.0], inside, first]) == [(first, inside), (first, after)]
    assert overlaps([["red", 1.0, 2.0], ["red", 2.0, 3.0]]) == []


def test_counting_loses_nothing_while_two_nodes_at_a_time_die_or_hang(
    nodes, admin, eventually, seed, *, tmp_path, request
):
    for name in NAMES:
        (tmp_path / name).write_text("0")
    settings = {
        "urls": nodes.urls,
        "names": NAMES,
        "threads": THREADS,
        "lease": LEASE,
        "directory": str(tmp_path),
    }
    workers = [
        subprocess.Popen(
            [sys.executable, str(WORKER), json.dumps({**settings, "seed": f"{seed} {i}"})],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        for i in range(PROCESSES)
    ]
    request.addfinalizer(lambda: [worker.kill() for worker in workers])
    assert [worker.stdout.readline() for worker in workers] == ["ready\n"] * PROCESSES
    starts_at = clock() + LEASE + 1.0  # until then the nodes, being new, may give nothing to anybody
    for worker in workers:
        print(starts_at, starts_at + SECONDS, file=worker.stdin, flush=True)
    trouble = Troublemaker(nodes, seed)
    time.sleep(max(starts_at - clock(), 0.0))
    with Pulse() as pulse:
        trouble.run(starts_at + SECONDS - 0.5)
    print("trouble:", ", ".join(trouble.history))
    results = []
    for worker in workers:
        output, _ = worker.communicate(timeout=60)
        assert worker.returncode == 0, "a worker failed; its traceback is above"
        results.append(json.loads(output))
    # Whoever has ended has given everything back.
    eventually(lambda: admin.keys() == [])

    holds = [hold for result in results for hold in result["holds"]]
    outcomes = sum((Counter(result["outcomes"]) for result in results), Counter())
    print("outcomes:", dict(outcomes))
    assert overlaps(holds) == []
    for name in NAMES:
        written = sorted((hold for hold in holds if hold[0] == name and hold[4] is not None), key=lambda hold: hold[1])
        assert len(written) > 5
        # A process that stood still between its last look at the hold and the write has written without a lock.
        if all(hold[5] for hold in written):
            assert [hold[3] for hold in written] == list(range(len(written)))
            assert int((tmp_path / name).read_text()) == len(written)
    # A minority in trouble is no outage, and it takes no hold away; a machine that stands still may do both.
    assert outcomes.keys() <= {"granted", "busy"} or pulse.late > MARGIN
    assert {"kill", "pause"} <= {line.split()[0] for line in trouble.history}
