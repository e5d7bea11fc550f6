"""Processes of both flavours count a latch down and wait for it while nodes are killed, restarted empty and stopped."""

import random
import sys
import time
from pathlib import Path

import pytest

from redsync import QuorumError
from redsync.testing.harness.journal import now_ns, read
from redsync.testing.harness.vitals import Pulse
from tests.faults import havoc
from tests.faults.havoc import LEASE
from tests.faults.latch_worker import NAME

COMMAND = ["env", f"PYTHONPATH={Path(__file__).parents[2]}", sys.executable, "-m", "tests.faults.latch_worker"]
NODES = range(5)

BOUND = 3.0
"""Seconds within which who waits is told, whatever nodes did. He looks by himself every second and a half, and nodes
that came back may be taken for dead for a while longer."""

AT_ONCE = 0.45
"""Seconds within which who waits is told where no node fails: sooner than he would look by himself."""


# What may happen between all but the last count and the last one; what is returned undoes it.


def nothing(nodes, chance):
    return lambda: None


def two_die(nodes, chance):
    dead = chance.sample(NODES, 2)
    for node in dead:
        nodes.kill(node)
    return lambda: [nodes.restart(node) for node in dead]


def two_come_back_empty(nodes, chance):
    for node in chance.sample(NODES, 2):
        nodes.restart(node)
    return lambda: None


def hang(nodes, some):
    for node in some:
        nodes.pause(node)
    return lambda: [nodes.resume(node) for node in some]


def two_hang(nodes, chance):
    return hang(nodes, chance.sample(NODES, 2))


def three_hang(nodes, chance):
    return hang(nodes, chance.sample(NODES, 3))


def all_come_back_empty_in_turn(nodes, chance):
    for node in chance.sample(NODES, 5):
        nodes.restart(node)
    return lambda: None


def all_come_back_empty_at_once(nodes, chance):
    for node in NODES:
        nodes.kill(node)
    for node in NODES:
        nodes.restart(node)
    return lambda: None


class Rounds:
    """One after the other: the latch is set, all wait, all but one count down, nodes fail, the last one counts."""

    def __init__(self, nodes, latch, lives, chance, pulse):
        self._nodes = nodes
        self._latch = latch
        self._lives = lives
        self._chance = chance
        self._pulse = pulse
        self._number = 0

    def play(self, trouble, *, within):
        self._number += 1
        begun_at, stalls = now_ns(), self._pulse.late
        self._set()
        last, *others = self._chance.sample(self._lives, len(self._lives))
        self._tell(self._lives, "wait")
        self._tell(others, "count")
        self._hear(others, "counted")
        mend = trouble(self._nodes, self._chance)
        time.sleep(0.6)  # for whoever would be told too early
        self._tell([last], "count")
        mend()
        self._hear([last], "counted")
        self._tell(self._lives, "join")
        self._hear(self._lives, "woken")
        waited = self._judge(trouble.__name__, begun_at)
        assert waited < within + self._pulse.late - stalls, trouble.__name__

    def _set(self):
        """Set it for this round; nodes that have just come back take a while to agree to that."""
        until, doubtful = time.monotonic() + 60, False
        while time.monotonic() < until:
            try:
                if self._latch.try_set_count(len(self._lives)):
                    return
            except QuorumError:
                # It may have been set all the same.
                doubtful = True
            else:
                assert doubtful, "it was open"
                return
        pytest.fail("it can't be set")

    @staticmethod
    def _tell(lives, word):
        for life in lives:
            life.tell(f"{word}\n".encode())

    def _hear(self, lives, event):
        """Wait until each has noted such an event for this round."""
        deadline = time.monotonic() + 30
        for life in lives:
            while sum(line["event"] == event for line in read(life.journal)) < self._number:
                assert life.check(), life.said()
                assert time.monotonic() < deadline, f"{life} has not {event}: {life.said()}"
                time.sleep(0.005)

    def _judge(self, what, begun_at):
        """Return for how many seconds those who wait had to, from the end of the last count on."""
        lines = [line for life in self._lives for line in read(life.journal) if line["at"] > begun_at]
        counting, counted, told = (
            [line["at"] for line in lines if line["event"] == event] for event in ("counting", "counted", "told")
        )
        assert len(counting) == len(counted) == len(self._lives)
        assert len(told) == 2 * len(self._lives)
        assert max(counting) <= min(told), f"{what}: it opened before the last one began to count"
        waited = (max(told) - max(counted)) / 1e9
        print(f"{what}: all were told within {waited:.3f} s")
        return waited


@pytest.mark.sweep
@pytest.mark.timeout(60)
@pytest.mark.parametrize(
    "troubles",
    [
        pytest.param(
            [nothing, two_die, two_hang, three_hang, all_come_back_empty_at_once], id="and_all_forget_at_once"
        ),
        # To set it anew takes some seconds where most nodes have just forgotten everything.
        pytest.param([two_come_back_empty, all_come_back_empty_in_turn, nothing], id="and_all_forget_in_turn"),
    ],
)
def test_latch_opens_for_all_when_the_last_has_counted_and_never_before(nodes, make_client, tmp_path, seed, troubles):
    flavours, options = ["threads", "asyncio"] * 2, {"command": COMMAND, "seed": str(seed)}
    with havoc.crew_of(nodes, tmp_path, [], flavours=flavours, **options) as crew, Pulse(least=0.05) as pulse:
        crew.await_all("ready")
        latch = make_client(lease=LEASE, restart_guard=LEASE).get_count_down_latch(NAME)
        rounds = Rounds(nodes, latch, crew.lives, random.Random(seed), pulse)
        for trouble in troubles:
            rounds.play(trouble, within=AT_ONCE if trouble is nothing else BOUND)
        crew.finish()


def count_when_nodes_answer(latch, within=60.0):
    """Return how much is left; nodes that hung are suspect until their replies have been read."""
    deadline = time.monotonic() + within
    while True:
        try:
            return latch.count()
        except QuorumError:
            assert time.monotonic() < deadline
            time.sleep(0.02)


@pytest.mark.sweep
def test_newcomer_is_not_told_that_it_is_open_where_most_nodes_came_back_empty(nodes, make_client):
    """Nobody waits, so nobody tells the nodes what they have forgotten."""
    knows = make_client(restart_guard=LEASE).get_count_down_latch("x")
    assert knows.try_set_count(2)
    knows.count_down()
    newcomer = make_client(restart_guard=LEASE)
    mend = hang(nodes, (3, 4))
    for node in range(3):
        nodes.restart(node)
    until = time.monotonic() + LEASE + 2.0
    while time.monotonic() < until:
        # A new object each time: it knows nothing.
        latch = newcomer.get_count_down_latch("x")
        with pytest.raises(QuorumError):
            latch.count()
        with pytest.raises(QuorumError):
            latch.wait(0.05)
    mend()
    assert count_when_nodes_answer(knows) == 1, "who has counted knows, and tells the nodes"
    latch = newcomer.get_count_down_latch("x")
    assert count_when_nodes_answer(latch) == 1
    latch.count_down()
    assert latch.wait(60)
