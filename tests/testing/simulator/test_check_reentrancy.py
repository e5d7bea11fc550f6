"""The checker of re-entrancy: silent on the real lock, and it finds wrong counts."""

import pytest

from redsync._core.quorum import Choice
from redsync._protocols import lock
from redsync.testing.simulator.checks import Reentrancy
from redsync.testing.simulator.happenings import Decided, Did, Executed, Sent, Stepped
from tests.support.hunting import KEYS, add_hold, break_script, hunt
from tests.support.sweeps import swept


def test_checker_finds_counts_that_are_added_by_an_acquire():
    broken = break_script(
        "lock_acquire",
        (
            "if count ~= ARGV[2] then redis.call('hset', KEYS[1], ARGV[1], ARGV[2]) end",
            "redis.call('hincrby', KEYS[1], ARGV[1], ARGV[2])",
        ),
    )
    assert " by lock_acquire for " in hunt(Reentrancy, range(10), scripts=broken)


def test_checker_finds_counts_that_are_added_by_a_renewal():
    broken = break_script(
        "lock_renew",
        (
            "if held ~= count then redis.pcall('hset', key, owner, count) end",
            "redis.pcall('hincrby', key, owner, count)",
        ),
    )
    assert "but keeps 2" in hunt(Reentrancy, range(10), scripts=broken)


def test_checker_finds_inner_release_that_frees_the_lock():
    broken = break_script("lock_release", ("if ARGV[2] ~= '0' then", "if false then"))
    assert "but keeps nothing" in hunt(Reentrancy, range(10), scripts=broken)


@pytest.mark.parametrize(("kind", "first"), [("lock", 8), *swept(("read-write", 14))])
def test_checker_finds_re_entry_that_wins_by_a_new_grant(monkeypatch, kind, first):
    monkeypatch.setattr(lock, "_is_existing", lock.read_by_arrival)
    assert "was re-entered without a quorum that had it" in hunt(Reentrancy, range(first, first + 400), kind=kind)


@pytest.mark.sweep  # such an owner asks without a pause
def test_checker_finds_re_entry_of_a_lost_hold(monkeypatch):
    def believe(state, now):
        return
        yield

    monkeypatch.setattr(lock, "check", believe)
    assert "re-enters what it has lost" in hunt(Reentrancy, range(480, 580))


# By hand.


SIMULATION = {"seed": 1, "checkers": ()}


def send(runner, script, *words, keys=KEYS.all):
    return Sent(0.0, "a", 1, script, keys, words, 0b111, True)


def test_node_that_keeps_the_given_count_is_right(sim):
    checker = Reentrancy(sim)
    sim.nodes[0].store.execute(b"hset", KEYS.lock, b"me", b"2")
    executed = Executed(0.0, 0, "a", "lock_renew", (KEYS.lock,), (b"me", 2, 1000), [2])
    assert checker.see(executed) is None
    assert "but keeps 2" in checker.see(executed._replace(args=(b"me", 1, 1000)))
    assert checker.see(executed._replace(args=(b"me", 1, 1000), reply=[0])) is None, "it refused"


def test_release_carries_the_remaining_count(sim, runner):
    checker, state = Reentrancy(sim), add_hold(runner, count=2)
    assert checker.see(send(runner, "lock_release", state.claim, 2, b"")) is None
    assert "count 0 of 'redsync:x'" in checker.see(send(runner, "lock_release", state.claim, 0, b""))


def test_acquire_of_a_holder_carries_a_higher_count(sim, runner):
    checker, state = Reentrancy(sim), add_hold(runner, count=2)
    assert checker.see(send(runner, "lock_acquire", state.claim, 3, 1000, 0)) is None
    assert "counts 2 already" in checker.see(send(runner, "lock_acquire", state.claim, 2, 1000, 0))
    state.lost = "a reason"
    assert "re-enters what it has lost" in checker.see(send(runner, "lock_acquire", state.claim, 3, 1000, 0))


@pytest.mark.parametrize(("replies", "fine"), [((2, 2, 1), True), ((2, 1, 1), False), ((1, 1, 1), False)])
def test_count_grows_only_with_a_quorum_that_had_the_claim(sim, runner, replies, fine):
    checker, state, step = Reentrancy(sim), add_hold(runner), Stepped(0.0, runner.machine)
    assert checker.see(step) is None
    checker.see(send(runner, "lock_acquire", state.claim, 2, 1000, 0))
    checker.see(Decided(0.0, "a", 1, "won", (Choice.GRANTED,) * 3, replies))
    state.count = 2
    assert (checker.see(step) is None) is fine


def test_count_is_that_of_a_program_s_own_acquisitions(sim, runner):
    checker = Reentrancy(sim)

    def do(what, **about):
        return checker.see(Did(0.0, runner.machine, "a program", what, {"name": "x", "owner": "a:1", **about}))

    assert do("acquired", count=1) is None
    assert do("acquired", count=2) is None
    assert do("released") is None
    assert do("acquired", count=2) is None
    assert "has acquired 'x' 3 times, which counts 2" in do("acquired", count=2)
    assert do("lost") is None
    assert do("acquired", count=1) is None


def test_acquisitions_to_read_and_to_write_are_counted_separately(sim, runner):
    checker = Reentrancy(sim)

    def do(what, mode, **about):
        words = {"name": "x", "owner": "a:1", "mode": mode, **about}
        return checker.see(Did(0.0, runner.machine, "a program", what, words))

    assert do("acquired", "write", count=1) is None
    assert do("acquired", "read", count=1) is None
    assert do("released", "write") is None
    assert do("acquired", "read", count=2) is None
    assert "has acquired 'x' 1 times, which counts 2" in do("acquired", "write", count=2)
