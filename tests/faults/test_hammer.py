"""Processes of both flavours hammer one synchronizer while nodes are killed, restarted empty and stopped."""

import random
from dataclasses import dataclass

import pytest

from redsync.testing.harness.exclusion import disorder, most_at_once, overlaps
from redsync.testing.harness.holds import Hold, holds_of
from redsync.testing.harness.journal import now_ns, read
from redsync.testing.harness.nemesis import Nemesis
from redsync.testing.harness.spans import Span, longest_gap, shortages
from redsync.testing.harness.vitals import Pulse
from tests.faults import havoc
from tests.faults.havoc import LEASE

BOTH = ["threads", "asyncio"]
PERMITS = 3
LONGEST = 1.5 * LEASE
"""The longest hold in seconds, see the tasks of an "eager" owner."""

BOUND = LEASE + 4.0
"""Seconds within which everything is acquired again once a quorum of nodes is healthy. Claims that no client could
release expire within a lease. A waiter looks by itself within a second and a half; clients may take a node for young,
or fail to reach it, for two seconds too long, as uptimes are whole seconds. The machine gets as much again, as eight
processes share its cores."""


@dataclass
class Run:
    """The outcome of a run.

    Attributes:
        holds: All holds.
        span: The span in which all processes worked.
        out: For each node, when it could not be counted on.
        late: The seconds for which the machine kept all processes waiting.
        story: The faults of nodes.
    """

    holds: list[Hold]
    span: Span
    out: list[list[Span]]
    late: float
    story: str

    @property
    def judged(self) -> list[Span]:
        """The spans in which a quorum of nodes was healthy."""
        return shortages([], self.out, self.span)

    def longest_shortage(self, least: int = 1) -> float:
        beliefs = [Span(hold.since, hold.believed_until) for hold in self.holds]
        found = shortages(beliefs, self.out, self.span, least=least)
        longest = max((span.seconds for span in found), default=0.0)
        print(f"longest shortage {longest:.3f} s")
        return longest

    def __str__(self) -> str:
        whole = sum(span.seconds for span in self.judged)
        figures = f"{len(self.holds)} holds, a quorum healthy for {whole:.1f} s, the machine late by {self.late:.3f} s"
        return f"{figures}; {self.story}"


def hammer(nodes, directory, seed, name, *, flavours, seconds, plan=havoc.by_chance):
    """Let a process of each of these flavours work for `seconds` while nodes fail as planned."""
    options = {"work": "eager", "seed": str(seed), "look": 0.005, "limit": PERMITS}
    with (
        havoc.crew_of(nodes, directory, [name], flavours=flavours, **options) as crew,
        Pulse(least=0.05) as pulse,
    ):
        crew.await_all("ready")
        span = Span(since := now_ns(), since + int(seconds * 1e9))
        crew.go(*span)
        nemesis = Nemesis(nodes, crew)
        nemesis.run(plan(random.Random(seed), seconds), 0.0)
        crew.finish()
    each = [holds_of(read(life.journal), journal=life.journal.name) for life in crew.lives]
    assert all(each), "one of them got nothing"
    holds = [hold for mine in each for hold in mine]
    out = havoc.absences(nemesis.done, span.until)
    story = ", ".join(f"{(at - since) / 1e9:.3f} {fault.action} {fault.target}" for fault, at, _ in nemesis.done)
    run = Run(holds, span, out, pulse.late, story)
    print(run)
    return run


@pytest.mark.sweep
@pytest.mark.timeout(100)
def test_eight_processes_never_have_more_than_three_permits_nor_fewer_for_long(nodes, tmp_path, seed):
    run = hammer(nodes, tmp_path, seed, "semaphore:0", flavours=["threads"] * 8, seconds=15.0)
    most, at = most_at_once(run.holds)
    assert most == PERMITS, f"{most} believed {(at - run.span.since) / 1e9:.3f} s after the start; {run}"
    assert sum(span.seconds for span in run.judged) > 15.0 / 4
    # All workers want a permit all the time.
    assert run.longest_shortage(PERMITS) < BOUND + run.late, run


@pytest.mark.sweep
@pytest.mark.timeout(60)
@pytest.mark.parametrize("plan", [havoc.by_chance, havoc.wiped_in_turn_and_all_at_once], ids=lambda plan: plan.__name__)
def test_tokens_of_all_processes_grow_with_each_acquisition(nodes, tmp_path, seed, plan):
    run = hammer(nodes, tmp_path, seed, "fenced_lock:0", flavours=BOTH * 2, seconds=10.0, plan=plan)
    assert not overlaps(run.holds), run
    assert not disorder(run.holds), run
    assert run.longest_shortage() < BOUND + run.late, run


@pytest.mark.sweep
@pytest.mark.timeout(60)
def test_no_owner_reads_or_writes_beside_a_writer_and_all_get_their_turn(nodes, tmp_path, seed):
    run = hammer(nodes, tmp_path, seed, "read_write_lock:0", flavours=BOTH * 2, seconds=11.0)
    assert not overlaps(run.holds), run
    assert most_at_once(run.holds)[0] > 1, "no two owners read at once"
    assert run.longest_shortage() < BOUND + run.late, run
    for mode in ("read", "write"):
        begun = [hold.since for hold in run.holds if hold.mode == mode]
        gap = longest_gap(begun, run.judged)
        print(f"{len(begun)} times {mode}, longest gap {gap.seconds:.3f} s")
        # Earlier holders may also be slow.
        assert gap.seconds < BOUND + LONGEST + run.late, f"{mode}: {run}"
