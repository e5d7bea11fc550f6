"""The reentrant lock: re-entry wins only where the claim was, and never wins a lost lock back."""

import pytest

from redsync._protocols.holding import check, release
from redsync._protocols.lock import FAIR_LOCK, acquire
from redsync.exceptions import LeaseLostError, QuorumError
from tests.support.toy_replies import LOSS, NEW, OURS, WRONG_TYPE, A, held, without_quorum, won

HAD = 1
ALL = 0b11111
LEASE, DRIFT = 30.0, 0.302


# One thread.


def run_reenter(toy, *script, **fields):
    return toy.play(acquire(toy.session, toy.request(**fields), toy.now), *script)


@pytest.mark.parametrize(("before", "more"), [(1, 1), (2, 3)])
def test_reentry_asks_for_the_next_count(toy, before, more):
    state = toy.take(holds=before)
    assert run_reenter(toy, ("ask lock_acquire", toy.all_say(OURS)), holds=more) is state
    assert toy.commands[-1].args == (toy.owner.claim(1), before + more, 30_000, 0)
    assert toy.commands[-1].keys == (toy.keys.lock,)
    assert state.count == before + more
    assert toy.asked[-1].guard == 0.0, "it repairs nodes that lost their memory"
    assert list(toy.session.holds) == [state]


@pytest.mark.parametrize(
    ("answers", "wins"),
    [
        ((OURS, OURS, OURS, "down", "down"), True),
        ((OURS, OURS, OURS, NEW, NEW), True),
        ((NEW, NEW, OURS, OURS, OURS), True),
        ((OURS, OURS, NEW, "down", "down"), False),
        ((NEW, NEW, NEW, OURS, OURS), False),
        ((NEW, NEW, NEW, NEW, NEW), False),
        ((OURS, OURS, held(), held(), NEW), False),
        (("down", "down", NEW, held(), WRONG_TYPE), False),
    ],
)
def test_reentry_wins_only_with_a_quorum_that_had_the_claim(toy, answers, wins):
    state = toy.take()
    against = sum(answer not in (OURS, "down") for answer in answers)
    steps = acquire(toy.session, toy.request(timeout=0.0), toy.now)
    if wins:
        assert toy.play(steps, ("ask lock_acquire", toy.answers(*answers))) is state
        assert state.count == 2
        return
    script = [("ask lock_acquire", toy.answers(*answers))]
    if against > 2:
        script += LOSS
    with pytest.raises(LeaseLostError if against > 2 else QuorumError):
        toy.play(steps, *script)
    assert state.count == 1
    assert (state.lost is not None) == (against > 2)
    assert state.live, "the holder has yet to release it"
    assert toy.owner.holds[toy.keys.lock] is state


def test_lost_hold_is_never_won_again_by_reentry(toy):
    state = toy.take()
    with pytest.raises(LeaseLostError):
        run_reenter(toy, ("ask lock_acquire", toy.all_say(NEW)), *LOSS, timeout=None)
    assert state.lost
    for _ in range(3):
        # The client does not even ask: the claims of the first try might still be there.
        with pytest.raises(LeaseLostError):
            run_reenter(toy, timeout=None)
    assert not state.valid(toy.now)
    assert state.valid_until < 1000.0 + LEASE


def test_reentry_of_an_expired_hold_asks_no_node(toy):
    state = toy.take()
    toy.now = state.valid_until
    with pytest.raises(LeaseLostError, match="ended without a renewal"):
        run_reenter(toy, *LOSS)
    assert state.count == 1


def test_reentry_confirmed_after_the_old_end_is_lost(toy):
    state = toy.take(lease=2.0)
    late = toy.all_say(OURS, takes=5.0)
    with pytest.raises(LeaseLostError):
        run_reenter(toy, ("ask lock_acquire", late), *LOSS, lease=60.0)
    assert state.count == 1


def test_loss_at_reentry_rolls_back_its_claims(toy):
    state = toy.acquire(("ask lock_acquire", toy.answers(NEW, NEW, NEW, "down", "down", sent=0b00111)))
    answers = toy.answers(NEW, NEW, NEW, "down", OURS, sent=0b10111)
    with pytest.raises(LeaseLostError):
        run_reenter(toy, ("ask lock_acquire", answers), *LOSS)
    assert toy.told[-1].deliver_to == 0b10111
    assert toy.events[-1].state is state
    assert toy.events[-1].name == "x"
    assert toy.events[-1].owner == str(toy.owner)


def test_reentry_retries_an_outage_until_its_deadline(toy):
    state = toy.take()
    state = run_reenter(
        toy,
        ("ask lock_acquire", without_quorum(toy)),
        ("wait", toy.slept()),
        ("ask lock_acquire", without_quorum(toy)),
        ("wait", toy.slept()),
        ("ask lock_acquire", toy.all_say(OURS)),
        timeout=1.0,
    )
    assert state.count == 2
    assert [command.args[1] for command in toy.commands[1:]] == [2, 2, 2]


def test_reentry_in_an_outage_never_waits_beyond_the_validity(toy):
    state = toy.take(lease=0.05)
    with pytest.raises(LeaseLostError):
        toy.drive(
            acquire(toy.session, toy.request(timeout=None), toy.now),
            lambda described, effect: (
                toy.all_say("down", takes=0.0)
                if described.startswith("ask")
                else toy.slept()
                if described == "wait"
                else None
            ),
        )
    assert all(wait.until <= state.valid_until for wait in toy.waits)
    assert toy.now <= state.valid_until + 0.01


@pytest.mark.parametrize(
    ("taken", "asked", "lease_ms", "valid_until"),
    [
        pytest.param({"lease": 2.0}, {}, 2_000, 1002.001 - 0.022, id="without one: the outermost lease"),
        pytest.param({}, {"lease": 2.0}, 2_000, 1000.0 + LEASE - DRIFT, id="an inner lease never shortens"),
        pytest.param({"lease": 2.0}, {"lease": 60.0}, 60_000, 1060.001 - 0.602, id="a longer lease lengthens"),
        pytest.param({"max_hold": 5.0}, {"lease": 60.0}, 60_000, 1005.0, id="never beyond max_hold"),
    ],
)
def test_reentry_with_or_without_a_lease_changes_neither_that_of_the_hold_nor_its_renewal(
    toy, taken, asked, lease_ms, valid_until
):
    state = toy.take(**taken)
    run_reenter(toy, ("ask lock_acquire", toy.all_say(OURS)), **asked)
    assert toy.commands[-1].args[2] == lease_ms
    assert state.renewed == ("lease" not in taken)
    assert state.lease == taken.get("lease", LEASE)
    assert state.valid_until == pytest.approx(valid_until)


@pytest.mark.parametrize("first", [0, 1], ids=["outer released first", "inner released first"])
def test_callback_goes_with_the_acquisition_that_brought_it(toy, first):
    """Whichever is released first; one that is released through an object without a callback takes the latest."""
    callbacks = [[].append, [].append]
    state = toy.take(on_lost=callbacks[0])
    run_reenter(toy, ("ask lock_acquire", toy.all_say(OURS)), on_lost=callbacks[1])
    assert state.on_lost == callbacks
    toy.play(release(toy.session, state, toy.now, 1, callbacks[first]), ("ask lock_release", toy.all_say(HAD)))
    assert state.on_lost == [callbacks[1 - first]]
    run_reenter(toy, ("ask lock_acquire", toy.all_say(OURS)), on_lost=callbacks[first])
    toy.play(release(toy.session, state, toy.now), ("ask lock_release", toy.all_say(HAD)))
    assert state.on_lost == [callbacks[1 - first]]


def test_interrupted_reentry_keeps_the_earlier_holds(make_toy):
    for at in range(3):
        toy = make_toy()
        state = toy.take()
        script = [
            ("ask lock_acquire", without_quorum(toy)),
            ("wait", toy.slept()),
            ("ask lock_acquire", toy.all_say(OURS)),
        ]
        cleanup = toy.interrupt(acquire(toy.session, toy.request(), toy.now), script, at)
        assert cleanup == [], "claims that are still held are not rolled back"
        assert (state.count, state.live, state.lost) == (1, True, None)
        assert list(toy.session.holds) == [state]


def test_interrupted_reentry_leaves_a_pending_release_for_all_nodes_it_may_have_reached(toy):
    state = toy.acquire(("ask lock_acquire", toy.answers(NEW, NEW, NEW, "down", "down", sent=0b00111)))
    toy.interrupt(acquire(toy.session, toy.request(), toy.now), [("ask lock_acquire", won(toy))], 0)
    toy.play(release(toy.session, state, toy.now), ("ask lock_release", toy.all_say(HAD)))
    assert toy.asked[-1].deliver_to == ALL


# Re-entry while other threads act on the same hold.


def test_reentry_of_a_hold_released_meanwhile_is_a_first_acquire(make_toy):
    toy = make_toy(restart_guard=30.0)
    first = toy.take()
    state = run_reenter(
        toy,
        ("ask lock_acquire", toy.all_say(OURS, meanwhile=lambda: toy.give_back(first))),
        "tell lock_abandon",
        ("ask lock_acquire", won(toy)),
    )
    assert toy.asked[-1].guard == 30.0
    assert state is not first
    assert state.count == 1
    assert state.valid(toy.now)
    assert list(toy.session.holds) == [state]
    assert not first.live


def test_reentry_that_becomes_a_first_acquire_keeps_its_deadline(toy):
    first = toy.take()
    result = run_reenter(
        toy,
        ("ask lock_acquire", without_quorum(toy)),
        ("wait", toy.slept()),
        ("ask lock_acquire", toy.all_say("down", takes=0.4, meanwhile=lambda: toy.give_back(first))),
        "tell lock_abandon",
        ("ask lock_acquire", toy.all_say(held(), takes=0.2)),
        "tell lock_abandon",
        timeout=0.5,
    )
    assert result is None
    assert toy.now < 1001.0


def test_reentry_of_a_hold_released_while_it_paused_leaves_nothing_behind(toy):
    """An ask after the release may create claims: it is rolled back, even if it is interrupted."""
    first = toy.take()
    first_half = [
        ("ask lock_acquire", without_quorum(toy)),
        ("wait", toy.slept(meanwhile=lambda: toy.give_back(first))),
    ]
    steps = acquire(toy.session, toy.request(timeout=9.0), toy.now)
    cleanup = toy.interrupt(steps, [*first_half, ("ask lock_acquire", won(toy))], 2)
    assert cleanup == ["tell lock_abandon"]


@pytest.mark.parametrize("when", ["while it paused", "while it travelled"])
def test_reentry_of_a_hold_lost_meanwhile_is_not_won_and_stops_asking(toy, when):
    """Claims made after the loss would have no owner: nothing would renew them or roll them back."""
    state = toy.take()

    def lose():
        with pytest.raises(LeaseLostError):
            toy.play(check(state, state.valid_until), *LOSS)

    paused = ("ask lock_acquire", without_quorum(toy)), ("wait", toy.slept(meanwhile=lose))
    travelled = [("ask lock_acquire", toy.all_say(OURS, meanwhile=lose))]
    with pytest.raises(LeaseLostError):
        run_reenter(toy, *(paused if when == "while it paused" else travelled), timeout=None)
    assert state.count == 1
    assert not state.valid(toy.now)


def test_reentry_of_a_fair_lock_accepts_refusals_with_the_highest_ticket(toy):
    """It asks for no place, so longer refusals are not answers, and mean no loss of the hold."""
    state = toy.acquire(("ask fair_lock_acquire for a place", won(toy)), kind=FAIR_LOCK)
    with pytest.raises(QuorumError):
        run_reenter(toy, ("ask fair_lock_acquire", toy.all_say([5_000, A, 7, 3])), kind=FAIR_LOCK, timeout=0.0)
    with pytest.raises(QuorumError):
        run_reenter(toy, ("ask fair_lock_acquire", toy.all_say([5_000, A, 7, b"x"])), kind=FAIR_LOCK, timeout=0.0)
    assert state.lost is None
    script = [("ask fair_lock_acquire", toy.all_say([5_000, A, 7])), *LOSS]
    with pytest.raises(LeaseLostError):
        run_reenter(toy, *script, kind=FAIR_LOCK, timeout=0.0)
