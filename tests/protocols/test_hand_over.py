"""A lock that is handed over at its release: the waiter has it once a quorum says so, without another round."""

import pytest

from redsync._core.keys import LockKeys
from redsync._protocols.holding import release
from redsync._protocols.lock import FAIR_LOCK, LOCK
from redsync._protocols.mutex import MUTEX
from redsync._protocols.read_write_lock import READ, WRITE
from tests.support.toy_replies import NEW, OURS, A, busy, held, won

ALL, QUORUM = 0b11111, 0b00111
LEASE, DRIFT = 30.0, 0.302
KEPT, KEPT_DRIFT = 3.0, 0.032
ASK = "ask lock_acquire for a place"
SLEEP = "wait for wake-up"


def handed(toy, seconds=0.2, *, by=QUORUM, **fields):
    """Wait with a place from the first try on, get the lock from these nodes, and return the hold."""
    return toy.acquire((ASK, busy(toy)), (SLEEP, toy.slept(seconds, handed=by)), crowded=True, **fields)


def ask_ids(toy):
    """Return the ask ids of the asks so far; None for those without a place."""
    asks = [command for command in toy.commands if command.script.name.endswith("_acquire")]
    return [command.args[7] if len(command.args) > 4 else None for command in asks]


# Taking over.


KINDS = pytest.mark.parametrize("kind", [LOCK, MUTEX, FAIR_LOCK, READ, WRITE])


def handed_kind(toy, kind, **fields):
    """Get a lock of that kind from a quorum, and return the hold."""
    refused = toy.all_say([20_000, A, 7] if kind is FAIR_LOCK else held())
    script = (f"ask {kind.acquire.name} for a place", refused), (SLEEP, toy.slept(0.2, handed=QUORUM))
    return toy.acquire(*script, kind=kind, keys=LockKeys.of(b"redsync:", b"x", kind.mode), crowded=True, **fields)


@KINDS
def test_lock_that_a_quorum_hands_over_is_held_without_a_further_round(toy, kind):
    state = handed_kind(toy, kind, on_lost=print)
    assert state.valid(toy.now)
    assert toy.requested.state is state
    assert list(toy.session.holds) == [state]
    assert toy.owner.holds[state.keys.hold] is state
    assert (state.name, state.kind, state.owner, state.on_lost) == ("x", kind, toy.owner, [print])
    assert (state.count, state.lease, state.live, state.lost) == (1, LEASE, True, None)
    assert toy.alarms == 1, "the watchdog learns that it must renew it"


@pytest.mark.parametrize("n", [1, 2, 3, 4, 6, 7])
def test_lock_is_handed_over_by_a_quorum_of_any_number_of_nodes(make_toy, n):
    quorum = n // 2 + 1
    toy = make_toy(n)
    enough = (1 << n) - (1 << (n - quorum))
    assert handed(toy, by=enough).valid(toy.now)
    toy = make_toy(n)
    too_few = enough & (enough - 1)
    assert toy.acquire(
        (ASK, busy(toy)), (SLEEP, toy.slept(0.2, handed=too_few, signals=n)), (ASK, won(toy)), crowded=True
    )


def test_lock_handed_over_by_too_few_is_won_by_an_ask_with_the_claims_that_they_keep(toy):
    state = toy.acquire(
        (ASK, busy(toy)),
        (SLEEP, toy.slept(0.2, handed=0b00011)),
        (ASK, toy.answers(OURS, OURS, NEW, None, None)),
        crowded=True,
    )
    assert state.valid_until == pytest.approx(1000.201 + LEASE - DRIFT), "the nodes keep it for a whole lease"
    assert ask_ids(toy) == [b"1", b"2"]


def test_lock_handed_over_in_the_instant_of_the_deadline_is_held(toy):
    """Just as if a last try had won it."""
    state = handed(toy, None, timeout=0.3)
    assert toy.now == pytest.approx(1000.3)
    assert state.valid(toy.now)
    assert toy.requested.state is state


# For how long.


@pytest.mark.parametrize(
    ("own", "lease", "drift_factor", "fresh"),
    [
        pytest.param(False, 30.0, 0.01, 1.484, id="time to lengthen it, where the place lasts for 3 s"),
        pytest.param(False, 1.0, 0.01, 0.494, id="time to lengthen it, where the place lasts for the lease"),
        pytest.param(True, 0.2, 0.4, 0.1 * (0.2 * 0.6 - 0.002), id="nine tenths of its own lease"),
        pytest.param(True, 2.0, 0.01, 0.1 * (2.0 * 0.99 - 0.002), id="nine tenths of its own longer lease"),
    ],
)
def test_lock_is_taken_over_only_while_enough_of_its_time_is_left(make_toy, own, lease, drift_factor, fresh):
    """The nodes that handed it over grant the next ask."""
    for seconds, taken in (0.99 * fresh, True), (1.01 * fresh, False):
        toy = make_toy(lease=30.0 if own else lease, drift_factor=drift_factor, random=0.999)
        script = [(ASK, toy.all_say([20_000, A, 0, 2000], takes=0.0)), (SLEEP, toy.slept(seconds, handed=ALL))]
        again = [] if taken else [(ASK, toy.all_say(OURS, takes=0.0))]
        state = toy.acquire(*script, *again, crowded=True, lease=lease if own else None)
        assert state.valid(toy.now)
        if own or not taken:
            since = 1000.0 if taken else toy.now
            assert state.valid_until == pytest.approx(since + lease - toy.session.timing.drift(lease))


@pytest.mark.parametrize("lease", [1.0, 2.0, 30.0, 600.0])
@pytest.mark.parametrize("seconds", [0.0, 0.3])
def test_hold_that_was_handed_over_is_renewed_soon(make_toy, lease, seconds):
    toy = make_toy(lease=lease)
    state = handed(toy, seconds)
    assert state.renewed
    assert toy.now < state.renew_at <= toy.now + 0.5
    assert state.renew_at < state.valid_until - 0.2 * min(lease, KEPT), "with time for another try"
    assert toy.session.holds.next_due() == state.renew_at


def test_holds_handed_over_one_after_the_other_are_renewed_together(toy):
    """Ten thousand of them must not wake the watchdog ten thousand times."""
    renewals = {handed(toy, 0.01, name=name).renew_at for name in "abcde"}
    assert len(renewals) == 1


def test_hold_that_was_handed_over_lasts_for_the_lease_from_its_first_renewal_on(toy):
    state = handed(toy)
    sent_at = state.renew_at
    assert toy.run_watchdog(sleeps=2) == ["wait", "ask lock_renew", "wait"]
    assert toy.commands[-1].args == (toy.owner.claim(1), 1, 30_000)
    assert state.valid_until == pytest.approx(sent_at + LEASE - DRIFT)
    assert state.renew_at == pytest.approx(sent_at + LEASE / 3)


@pytest.mark.parametrize(("max_hold", "believed"), [(0.5, 1000.701), (300.0, 1000.0 + KEPT - KEPT_DRIFT)])
def test_max_hold_counts_from_the_take_over(toy, max_hold, believed):
    state = handed(toy, max_hold=max_hold)
    assert state.ends_at == pytest.approx(1000.201 + max_hold)
    assert state.valid_until == pytest.approx(believed)


# With its own lease.


@KINDS
@pytest.mark.parametrize("lease", [5.0, 60.0])
def test_lock_is_handed_over_for_the_lease_that_the_waiter_asked_for(toy, kind, lease):
    state = handed_kind(toy, kind, lease=lease)
    assert ask_ids(toy) == [b"1+%d" % (lease * 1000)]
    assert [wait.ask_id for wait in toy.waits] == [b"1"], "nodes that know of leases repeat the number alone"
    assert toy.commands[0].args[4] == KEPT * 1000, "the place lasts no longer than others'"
    assert state.lease == lease
    assert state.valid_until == pytest.approx(1000.0 + lease - toy.session.timing.drift(lease))
    assert not state.renewed


# Pending releases.


def test_release_of_a_hand_over_is_pending_for_all_nodes_that_may_keep_claim_or_place(toy):
    """Even to a node of an earlier try only: it may have executed that late."""
    state = toy.acquire(
        (ASK, toy.answers(held(), held(), held(), held(), "kept out", sent=0b01111)),
        (SLEEP, toy.slept(0.5)),
        (ASK, toy.answers(held(), held(), held(), "kept out", "kept out", sent=0b00111)),
        (SLEEP, toy.slept(0.2, handed=QUORUM)),
        crowded=True,
    )
    assert state.may_keep == 0b01111
    toy.play(release(toy.session, state, toy.now), ("ask lock_release", toy.all_say(1)))
    assert toy.asked[-1].deliver_to == state.may_keep


# Not taking over.


@pytest.mark.parametrize(
    "replies",
    [
        (held(), held(), held(), held(), NEW),
        (held(), held(), held(), held(), OURS),
        (held(), held(), held(), held(), None),
        (held(), held(), held(), held(), "reset by peer"),
        (NEW, NEW, held(), held(), held(by=b"client-b:1:1")),
    ],
)
def test_hand_over_after_a_rollback_does_not_count(toy, replies):
    """It may have come before the rollback, which then has undone it."""
    state = toy.acquire(
        (ASK, toy.answers(*replies)),
        "tell lock_release, stay",
        (SLEEP, toy.slept(0.0, handed=ALL)),
        (ASK, won(toy)),
        crowded=True,
    )
    assert [wait.ask_id for wait in toy.waits] == [None]
    assert toy.told[0].deliver_to == ALL
    assert state.valid_until == pytest.approx(toy.tallies[-1].sent_at + LEASE - DRIFT)


def test_waiter_takes_over_after_the_next_ask_that_is_not_rolled_back(toy):
    state = toy.acquire(
        (ASK, toy.answers(held(), held(), held(), held(), NEW)),
        "tell lock_release, stay",
        (SLEEP, toy.slept(0.01, handed=ALL)),
        (ASK, busy(toy)),
        (SLEEP, toy.slept(0.01, handed=ALL)),
        crowded=True,
    )
    assert [wait.ask_id for wait in toy.waits] == [None, b"2"]
    assert state.valid_until == pytest.approx(toy.tallies[-1].sent_at + KEPT - KEPT_DRIFT)
