"""The checker of exclusion: it finds two who believe, and it finds a lock that was broken on purpose."""

import asyncio

import pytest

from redsync._core.quorum import Tally
from redsync._core.scripts import Script
from redsync._drivers.nodes import Node
from redsync._protocols.claim import _Attempt
from redsync.testing.simulator import Simulation, SimulationError
from redsync.testing.simulator.checks import Exclusion
from redsync.testing.simulator.runs import simulate
from tests.support.hunting import trust_records


def hunt(seeds: range, **options) -> str:
    """Return what the first failing seed shows."""
    for seed in seeds:
        try:
            simulate(seed, checkers=[Exclusion], **options)
        except SimulationError as error:
            print(f"seed {seed}")
            return str(error)
    pytest.fail(f"{len(seeds)} runs, and nothing was found")


def break_script(name: str, old: str, new: str) -> dict[str, str]:
    source = Script.load(name).source.decode()
    assert old in source
    return {name: source.replace(old, new)}


def test_checker_finds_quorum_of_one(monkeypatch):
    make = Tally.__init__

    def make_modest(tally, *args, **options):
        make(tally, *args, **options)
        tally.quorum = 1

    monkeypatch.setattr(Tally, "__init__", make_modest)
    report = hunt(range(10))
    assert "exclusion: at " in report
    assert "replay it with python -m redsync.testing.simulator --seed" in report
    assert "lock_acquire(" in report


def test_checker_finds_abandon_that_drops_claims_of_others():
    broken = break_script(
        "lock_abandon", "redis.pcall('hexists', KEYS[1], ARGV[1]) == 1", "redis.call('exists', KEYS[1]) == 1"
    )
    hunt(range(10), scripts=broken)


def test_checker_finds_release_that_drops_claims_of_others():
    broken = break_script(
        "lock_release", "redis.pcall('hexists', KEYS[1], ARGV[1]) ~= 1", "redis.call('exists', KEYS[1]) == 0"
    )
    hunt(range(56, 1006), scripts=broken)


def test_checker_finds_nodes_that_vote_although_they_forgot(monkeypatch):
    monkeypatch.setattr(Node, "unfit", lambda *_: None)
    hunt(range(3, 1003), scripts=break_script("lock_acquire", "if guard ~= '0' then", "if false then"))


def test_checker_finds_nodes_that_trust_records_of_another_process(monkeypatch):
    assert "is held by" in hunt(range(1044, 1064), scripts=trust_records(monkeypatch))


async def hold(client, seconds):
    async with client.get_lock("x"):
        await asyncio.sleep(seconds)


def test_checker_finds_hand_over_that_counts_after_it_was_undone(monkeypatch):
    undo = _Attempt.undo

    def forget(attempt, *, leave):
        mark = attempt.mark
        yield from undo(attempt, leave=leave)
        attempt.mark = mark

    monkeypatch.setattr(_Attempt, "undo", forget)
    assert "is held by" in hunt(range(66, 166))


def test_checker_finds_hand_over_that_is_believed_from_its_arrival_on(monkeypatch):
    """Nodes keep it from the last ask on, for as long as the place."""
    take_over = _Attempt.take_over

    def believe(attempt, now):
        attempt._asked_at = now
        return take_over(attempt, now)

    monkeypatch.setattr(_Attempt, "is_fresh", lambda attempt, now: True)
    monkeypatch.setattr(_Attempt, "take_over", believe)
    assert "is held by" in hunt(range(211, 331))


def test_checker_counts_no_owner_on_crashed_machine():
    with Simulation(seed=3, lease=2.0) as sim:
        a, b = sim.machine("a"), sim.machine("b")
        a.start(hold(a.client(), 60.0))
        sim.run(until=1.0)
        a.crash(dark=True)
        for node in sim.nodes:
            node.jump(10.0)  # so its claims are gone, which it would still believe in
        b.start(hold(b.client(), 1.0))
        sim.waived.clear()
        sim.run()


def test_checker_names_both_who_believe():
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
