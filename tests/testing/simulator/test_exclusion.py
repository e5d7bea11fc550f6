"""The checker of exclusion: it finds two believers, and a lock broken on purpose."""

import asyncio
from pathlib import Path

import pytest

from redsync._core import quorum
from redsync._core.quorum import Choice, Verdict
from redsync._drivers.nodes import Node
from redsync._protocols.attempts import Attempt
from redsync.testing.simulator import Simulation, SimulationError
from redsync.testing.simulator.checks import Exclusion, SlidingWindow
from redsync.testing.simulator.scenario import Scenario
from tests.support.hunting import break_script, hunt, trust_records
from tests.support.sweeps import swept


def test_checker_finds_quorum_of_one(monkeypatch):
    right = quorum.verdict_of

    def one_suffices(choices, **options):
        return Verdict.WON if Choice.GRANTED in choices else right(choices, **options)

    monkeypatch.setattr(quorum, "verdict_of", one_suffices)
    assert "is held by" in hunt(Exclusion, range(1, 10))


def test_checker_finds_abandon_that_drops_claims_of_others():
    ours, any_claim = "redis.pcall('hexists', KEYS[1], ARGV[1]) == 1", "redis.call('exists', KEYS[1]) == 1"
    hunt(Exclusion, range(1, 10), scripts=break_script("lock_abandon", (ours, any_claim)))


def test_checker_finds_release_that_drops_claims_of_others():
    ours, any_claim = "redis.pcall('hdel', KEYS[1], ARGV[1])", "redis.pcall('del', KEYS[1])"
    story = Scenario.read(Path(__file__).parents[2] / "scenarios" / "late_release.txt")
    with pytest.raises(SimulationError, match=r"is held by a:1 on a .* and b:1 on b"):
        story.run(scripts=break_script("lock_release", (ours, any_claim)))


@pytest.mark.parametrize(
    ("kind", "checker", "first", "nouns"),
    [
        ("lock", Exclusion, 3, ["lock"]),
        *swept(
            ("read-write", Exclusion, 2, ["read_lock", "write_lock"]),
            ("semaphore", Exclusion, 51, ["semaphore"]),
            ("limiter", SlidingWindow, 0, ["semaphore"]),
        ),
    ],
)
def test_checker_finds_nodes_that_grant_although_they_forgot(monkeypatch, kind, checker, first, nouns):
    monkeypatch.setattr(Node, "unfit", lambda *_: None)
    scripts = {}
    for noun in nouns:
        scripts |= break_script(f"{noun}_acquire", ("if guard ~= '0' then", "if false then"))
    hunt(checker, range(first, first + 1000), kind=kind, scripts=scripts)


def test_checker_finds_nodes_that_trust_records_of_another_process(monkeypatch):
    assert "is held by" in hunt(Exclusion, range(2104, 2124), scripts=trust_records(monkeypatch))


async def hold(client, seconds):
    async with client.get_lock("x"):
        await asyncio.sleep(seconds)


def test_checker_finds_hand_over_that_counts_after_its_rollback(monkeypatch):
    undo = Attempt.roll_back

    def forget(attempt, *, leave):
        mark = attempt._mark
        yield from undo(attempt, leave=leave)
        attempt._mark = mark

    monkeypatch.setattr(Attempt, "roll_back", forget)
    assert "is held by" in hunt(Exclusion, range(310, 410))


def test_checker_finds_hand_over_that_is_believed_from_its_arrival(monkeypatch):
    """Nodes keep it from the last request on, for as long as the place or the lease."""
    take_over = Attempt.take_over

    def believe(attempt, now):
        until = attempt._session.timing.valid_until(now, attempt.place.handed)
        attempt._handed_until = attempt._handed.valid_until = until
        return take_over(attempt, now)

    monkeypatch.setattr(Attempt, "is_had", lambda attempt, now: True)
    monkeypatch.setattr(Attempt, "take_over", believe)
    assert "is held by" in hunt(Exclusion, range(530, 730))


def test_checker_counts_no_owner_on_crashed_machine():
    with Simulation(seed=3, lease=2.0) as sim:
        a, b = sim.machine("a"), sim.machine("b")
        a.start(hold(a.client(), 60.0))
        sim.run(until=1.0)
        a.crash(dark=True)
        for node in sim.nodes:
            node.jump(10.0)  # so its claims are gone, though it would still believe in them
        b.start(hold(b.client(), 1.0))
        sim.waived.clear()
        sim.run()


def test_checker_names_both_believers():
    with Simulation(seed=3, lease=2.0) as sim:
        a, b = sim.machine("a"), sim.machine("b")
        a.start(hold(a.client(), 5.0))
        sim.run(until=1.0)
        b.start(hold(b.client(), 1.0))
        a.pause()
        for node in sim.nodes:
            node.jump(10.0)
        sim.waived.clear()
        with pytest.raises(SimulationError, match=r"exclusion: .* 'redsync:x' is held by a:1 on a .* and b:1 on b"):
            sim.run()
