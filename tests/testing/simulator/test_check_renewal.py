"""The checker of renewals: it finds renewals that win a lock back, and belief without a quorum."""

import pytest

from redsync._core.holds import HoldTable
from redsync._core.quorum import Choice
from redsync._protocols import renewal
from redsync.testing.simulator.checks import Renewal
from redsync.testing.simulator.happenings import Decided, Sent, Stepped
from tests.support.hunting import KEYS, add_hold, hunt
from tests.support.sweeps import swept


@pytest.mark.parametrize(("kind", "first"), [("lock", 2), *swept(("read-write", 2), ("semaphore", 9))])
def test_checker_finds_renewal_that_creates_and_counts(monkeypatch, kind, first):
    judge = renewal._Renewal.judge
    monkeypatch.setattr(
        renewal._Renewal, "judge", lambda this, reply: judge(this, [2 if code == 1 else code for code in reply])
    )
    assert "without a quorum of nodes that had it" in hunt(Renewal, range(first, first + 100), kind=kind)


def test_checker_finds_watchdog_that_works_after_the_release(monkeypatch):
    monkeypatch.setattr(HoldTable, "remove", lambda table, state: None)
    assert "which was released" in hunt(Renewal, range(20))


# By hand.


SIMULATION = {"seed": 1, "checkers": ()}


def renew(runner, state, lease_ms=30_000):
    args = (state.claim, state.count, lease_ms)
    return Sent(0.0, "a", 1, "lock_renew", (KEYS.lock,), args, 0b111, True)


def test_renewal_of_an_ended_hold_is_found(sim, runner):
    checker, state = Renewal(sim), add_hold(runner)
    assert checker.see(renew(runner, state)) is None
    state.lost = "a reason"
    assert "which is lost: a reason" in checker.see(renew(runner, state))
    runner.session.holds.remove(state)
    assert "renews 'redsync:x' held by" in checker.see(renew(runner, state))


@pytest.mark.parametrize(
    ("replies", "lease", "fine"),
    [
        (([2], [2], None), 29.6, True),
        (([2], [2], [1]), 30.5, False),
        (([2], [1], [1]), 29.6, False),
        (([2], [0], "no answer"), 29.6, False),
    ],
)
def test_hold_is_extended_only_by_a_quorum_that_had_it(sim, runner, replies, lease, fine):
    checker, state, step = Renewal(sim), add_hold(runner, until=5.0), Stepped(0.0, runner.machine)
    assert checker.see(step) is None
    checker.see(renew(runner, state))
    checker.see(Decided(0.0, "a", 1, "won", (Choice.GRANTED,) * 3, replies))
    state.lengthen(runner.now() + lease)
    complaint = checker.see(step)
    assert (complaint is None) is fine
    if not fine:
        assert "was extended by" in complaint
