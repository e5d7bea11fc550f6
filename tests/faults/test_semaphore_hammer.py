"""Eight processes hammer a semaphore of three while nodes are killed, restarted empty and stopped."""

import contextlib
import itertools
import json
import random
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

from tests.faults import hammer
from tests.faults.hammer import GUARD, LEASE, PERMITS, Fault, Span
from tests.soak import journal

ROOT = Path(__file__).parents[2]
PROCESSES = 8
SECONDS = 15.0

BOUND = LEASE + 2.0
"""Within how many seconds all permits are believed again once a quorum of nodes is whole. What nobody could give back
runs out within a lease. Who waits looks by himself within a second and a half; clients may take a node for young, or in
vain try to reach it, for two seconds more than is true, as uptimes are whole seconds."""


@contextlib.contextmanager
def crew(nodes, directory, seed):
    """Start the processes, each of which has had a permit by then; end them if they have not done so by themselves."""
    with contextlib.ExitStack() as stack:
        processes = []
        for number in range(PROCESSES):
            path = str(directory / f"{number}.journal")
            settings = {"urls": nodes.urls, "seed": f"{seed} {number}", "journal": path}
            command = [sys.executable, "-m", "tests.faults.hammer", json.dumps(settings)]
            process = subprocess.Popen(
                command, cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, bufsize=1
            )
            processes.append(stack.enter_context(process))
            stack.callback(process.kill)
        for process in processes:
            assert process.stdout.readline() == "ready\n"
        yield processes


class Pulse:
    """Tells by how much the machine keeps us waiting: what it adds to all that has a bound.

    Attributes:
        late: Seconds in all, of stalls that are worth mentioning.
    """

    def __init__(self):
        self.late = 0.0
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._beat)

    def __enter__(self):
        self._thread.start()
        return self

    def __exit__(self, *error):
        self._over.set()
        self._thread.join()

    def _beat(self):
        last = hammer.clock()
        while not self._over.wait(0.05):
            now = hammer.clock()
            self.late += late if (late := now - last - 0.05) > 0.05 else 0.0
            last = now


def permits_in(path):
    return [Span(line["since"], line["until"]) for line in journal.read(path)]


def carry_out(nodes, faults, starts_at):
    """Do what is planned; return what was done, at the instants at which it was over."""
    done, late = [], 0.0
    for fault in faults:
        time.sleep(max(starts_at + fault.at + late - hammer.clock(), 0.0))
        before = hammer.clock()
        getattr(nodes, fault.action)(fault.node)
        after = hammer.clock()
        # Trouble counts from before it, mending from after it. A restart is both.
        if fault.action == "restart":
            done.append(fault._replace(at=before, action="kill"))
        done.append(fault._replace(at=before if fault.action in ("kill", "pause") else after))
        late = max(late, after - starts_at - fault.at)
    return done


@pytest.mark.slow
@pytest.mark.timeout(100)
def test_eight_processes_never_have_more_than_three_permits_nor_fewer_for_long(nodes, tmp_path, seed):
    with crew(nodes, tmp_path, seed) as processes, Pulse() as pulse:
        began_at = hammer.clock()
        ends_at = began_at + SECONDS
        for process in processes:
            process.stdin.write(f"{ends_at}\n")
        done = carry_out(nodes, hammer.plan(random.Random(seed), SECONDS), began_at)
        assert [process.wait(60) for process in processes] == [0] * PROCESSES
    permits = [permit for number in range(PROCESSES) for permit in permits_in(tmp_path / f"{number}.journal")]
    most, at = hammer.most_at_once(permits)
    assert most == PERMITS, f"{most} believed {at - began_at:.3f} s after the start; {done}"

    # All who work want a permit all the time.
    out = hammer.absences(done, ends_at)
    judged = sum(span.length for span in hammer.shortages([], out, began_at, ends_at))
    longest = max(hammer.shortages(permits, out, began_at, ends_at), key=lambda span: span.length)
    print(
        f"{len(permits)} permits, {len(done)} faults, availability judged for {judged:.1f} s, longest shortage "
        f"{longest.length:.3f} s from {longest.since - began_at:.3f} s on; the machine was late by {pulse.late:.3f} s"
    )
    assert judged > SECONDS / 4
    assert longest.length < BOUND + pulse.late, done


# Whether the judgement finds what it is to find.


def test_judgement_finds_four_at_once():
    three = [Span(0.0, 4.0), Span(1.0, 2.0), Span(1.5, 3.0), Span(2.0, 3.0)]
    assert hammer.most_at_once(three) == (3, 1.5)
    assert hammer.most_at_once([*three, Span(2.9, 5.0)]) == (4, 2.9)
    assert hammer.most_at_once([*three, Span(2.9, 2.9)]) == (3, 1.5)


def test_judgement_finds_a_shortage_only_while_a_quorum_is_whole():
    permits = [Span(0.0, 10.0), Span(0.0, 10.0), Span(0.0, 4.0), Span(6.0, 9.0)]
    well = [[] for _ in range(5)]
    assert hammer.shortages(permits, well, 1.0, 8.0) == [Span(4.0, 6.0)]
    assert hammer.shortages(permits, well, 1.0, 10.0) == [Span(4.0, 6.0), Span(9.0, 10.0)]
    two_out = [[Span(0.0, 10.0)], [Span(0.0, 3.0), Span(2.0, 10.0)], [], [], []]
    assert hammer.shortages(permits, two_out, 1.0, 8.0) == [Span(4.0, 6.0)]
    three_out = [*two_out[:2], [Span(3.0, 5.0)], [], []]
    assert hammer.shortages(permits, three_out, 1.0, 8.0) == [Span(5.0, 6.0)]
    assert hammer.shortages([], three_out, 1.0, 8.0) == [Span(1.0, 3.0), Span(5.0, 8.0)]


def test_judgement_counts_on_a_node_from_the_end_of_its_trouble_on():
    done = [Fault(1.0, "pause", 0), Fault(2.0, "kill", 1), Fault(3.0, "resume", 0), Fault(4.0, "restart", 1)]
    done += [Fault(8.0, "kill", 2)]
    expected = [[Span(1.0, 3.0)], [Span(2.0, 4.0 + GUARD)], [Span(8.0, 9.0)], [], []]
    assert hammer.absences(done, 9.0) == expected


def test_plan_takes_a_majority_away_twice():
    for number in range(50):
        out = hammer.absences(hammer.plan(random.Random(number), SECONDS), SECONDS)
        judged = hammer.shortages([], out, 0.0, SECONDS)
        assert len(judged) == 3, number
        assert all(later.since - sooner.until > 0.99 * LEASE for sooner, later in itertools.pairwise(judged))
        assert sum(span.length for span in judged) > SECONDS / 2
