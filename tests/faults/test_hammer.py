"""Processes of both flavours hammer one synchronizer while nodes are killed, restarted empty and stopped."""

import random
from dataclasses import dataclass

import pytest

from tests.faults import havoc, judgement
from tests.faults.crews import crew, ended
from tests.faults.hammer import LONGEST, PERMITS
from tests.faults.havoc import LEASE
from tests.faults.judgement import Belief, Span

BOTH = ["threads", "asyncio"]

BOUND = LEASE + 2.0
"""Within how many seconds all that there is to have is had again once a quorum of nodes is whole. What nobody could
give back runs out within a lease. Who waits looks by himself within a second and a half; clients may take a node for
young, or in vain try to reach it, for two seconds more than is true, as uptimes are whole seconds."""


@dataclass
class Run:
    """What became of one.

    Attributes:
        beliefs: All that was had.
        since: When it began.
        until: When everybody was to end.
        out: For each node, when it could not be counted on.
        late: By how many seconds the machine has kept everybody waiting.
        story: What was done to nodes.
    """

    beliefs: list[Belief]
    since: float
    until: float
    out: list[list[Span]]
    late: float
    story: str

    @property
    def judged(self) -> list[Span]:
        """When a quorum of nodes was whole."""
        return judgement.shortages([], self.out, self.since, self.until)

    def longest_shortage(self, least: int = 1) -> Span:
        found = judgement.shortages(self.beliefs, self.out, self.since, self.until, least=least)
        return max(found, key=lambda span: span.length, default=Span(self.since, self.since))

    def __str__(self) -> str:
        whole = sum(span.length for span in self.judged)
        figures = f"{len(self.beliefs)} holds, a quorum whole for {whole:.1f} s, the machine late by {self.late:.3f} s"
        return f"{figures}; {self.story}"


def hammer(nodes, directory, seed, kind, *, flavours, seconds, plan=havoc.by_chance):
    """Let a process of each of these flavours work for so long while nodes fail as planned."""
    with crew("tests.faults.hammer", nodes, directory, seed, flavours, kind=kind) as members, havoc.Pulse() as pulse:
        since = havoc.clock()
        for member in members:
            member.tell(str(since + seconds))
        done = havoc.carry_out(nodes, plan(random.Random(seed), seconds), since)
        assert ended(members)
    beliefs = []
    for member in members:
        mine = [Belief(**{key: line[key] for key in Belief._fields if key in line}) for line in member.notes]
        assert mine, "one of them got nothing"
        beliefs += mine
    story = ", ".join(f"{fault.at - since:.3f} {fault.action} {fault.node}" for fault in done)
    until = since + seconds
    run = Run(beliefs, since, until, havoc.absences(done, until), pulse.late, story)
    print(run)
    return run


def told(run, pairs):
    """Return pairs of beliefs in seconds from the start, for a message."""
    return [[one._replace(since=one.since - run.since, until=one.until - run.since) for one in pair] for pair in pairs]


@pytest.mark.sweep
@pytest.mark.timeout(100)
def test_eight_processes_never_have_more_than_three_permits_nor_fewer_for_long(nodes, tmp_path, seed):
    run = hammer(nodes, tmp_path, seed, "semaphore", flavours=["threads"] * 8, seconds=15.0)
    most, at = judgement.most_at_once(run.beliefs)
    assert most == PERMITS, f"{most} believed {at - run.since:.3f} s after the start; {run}"
    # All who work want a permit all the time.
    longest = run.longest_shortage(PERMITS)
    print(f"longest shortage {longest.length:.3f} s from {longest.since - run.since:.3f} s on")
    assert sum(span.length for span in run.judged) > 15.0 / 4
    assert longest.length < BOUND + run.late, run


@pytest.mark.sweep
@pytest.mark.timeout(60)
@pytest.mark.parametrize("plan", [havoc.by_chance, havoc.wiped_in_turn_and_all_at_once], ids=lambda plan: plan.__name__)
def test_tokens_of_all_processes_grow_with_each_acquisition(nodes, tmp_path, seed, plan):
    run = hammer(nodes, tmp_path, seed, "fenced lock", flavours=BOTH * 2, seconds=10.0, plan=plan)
    most, at = judgement.most_at_once(run.beliefs)
    assert most == 1, f"{most} believed {at - run.since:.3f} s after the start; {run}"
    assert not (wrong := judgement.disorder(run.beliefs)), f"{told(run, wrong[:5])}; {run}"
    assert run.longest_shortage().length < BOUND + run.late, run


@pytest.mark.sweep
@pytest.mark.timeout(60)
def test_nobody_reads_or_writes_beside_a_writer_and_all_get_their_turn(nodes, tmp_path, seed):
    run = hammer(nodes, tmp_path, seed, "read-write lock", flavours=BOTH * 2, seconds=11.0)
    assert not (wrong := judgement.intrusions(run.beliefs)), f"{told(run, wrong[:5])}; {run}"
    assert judgement.most_at_once(run.beliefs)[0] > 1, "nobody has read beside another"
    assert run.longest_shortage().length < BOUND + run.late, run
    for mode in ("read", "write"):
        begun = [belief.since for belief in run.beliefs if belief.mode == mode]
        gap = judgement.longest_gap(begun, run.judged)
        print(f"{len(begun)} times {mode}, longest gap {gap.length:.3f} s")
        # Those before may take their time, too.
        assert gap.length < BOUND + LONGEST + run.late, f"{mode}: {run}"
