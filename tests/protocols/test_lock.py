"""The reentrant lock: a re-entry counts one more acquisition of a valid hold, and never wins a lost lock back."""

import pytest

from redsync._protocols.holding import release
from redsync._protocols.lock import acquire
from redsync.exceptions import LeaseLostError, QuorumError
from tests.support.injection import inject_at_calls as inject
from tests.support.toy_replies import LOSS, NEW, without_quorum

LEASE, DRIFT = 30.0, 0.302
EXTENDS = "ask lock_renew"


def run_reenter(toy, *script, **fields):
    return toy.play(acquire(toy.session, toy.request(**fields), toy.now), *script)


@pytest.mark.parametrize(("before", "more"), [(1, 1), (2, 3)])
def test_reentry_counts_and_tells_nodes_the_count(toy, before, more):
    state = toy.take(holds=before)
    assert run_reenter(toy, "tell lock_release", holds=more) is state
    assert state.count == toy.commands[-1].args[1] == before + more
    assert list(toy.session.holds) == [state]


def test_reentry_of_a_lost_or_expired_hold_asks_no_node_and_wins_nothing(toy):
    state = toy.take()
    toy.now = state.valid_until
    with pytest.raises(LeaseLostError, match="ended without a renewal"):
        run_reenter(toy, *LOSS)
    with pytest.raises(LeaseLostError):
        run_reenter(toy)
    assert state.count == 1, "the holder has yet to release it"
    assert toy.owner.holds[toy.keys.lock] is state


@pytest.mark.parametrize(
    ("taken", "lease", "lease_ms", "valid_until"),
    [
        pytest.param({}, 2.0, 2_000, 1000.0 + LEASE - DRIFT, id="an inner lease never shortens"),
        pytest.param({"lease": 2.0}, 60.0, 60_000, 1060.001 - 0.602, id="a longer lease lengthens"),
        pytest.param({"max_hold": 5.0}, 60.0, 60_000, 1005.0, id="never beyond max_hold"),
    ],
)
def test_reentry_with_a_lease_extends_the_hold_and_changes_neither_its_lease_nor_its_renewal(
    toy, taken, lease, lease_ms, valid_until
):
    state = toy.take(**taken)
    run_reenter(toy, (EXTENDS, toy.all_say([2])), lease=lease)
    assert toy.commands[-1].args == (toy.owner.claim(1), 2, lease_ms)
    assert state.renewed == ("lease" not in taken)
    assert state.lease == taken.get("lease", LEASE)
    assert state.valid_until == pytest.approx(valid_until)


def test_reentry_whose_extension_fails_says_that_it_was_counted(toy):
    state = toy.take()
    request = toy.request(lease=60.0)
    with pytest.raises(QuorumError):
        toy.play(acquire(toy.session, request, toy.now), (EXTENDS, without_quorum(toy)))
    assert (request.state, state.count) == (state, 2)
    toy.play(release(toy.session, state, toy.now), "tell lock_release")
    assert state.valid(toy.now)


def test_interrupted_reentry_was_counted_with_its_callback_or_not_at_all(toy):
    outer, inner = [].append, [].append
    state, point, struck = toy.take(on_lost=outer), 0, True
    while struck:
        point += 1
        request = toy.request(on_lost=inner)
        steps = acquire(toy.session, request, toy.now)
        struck = inject(point, lambda steps=steps: toy.drive(steps, lambda *_: None))
        counted = request.state is not None
        assert (state.count, state.on_lost) == ((2, [outer, inner]) if counted else (1, [outer])), struck
        state.count, state.on_lost = 1, [outer]
    assert point > 3


@pytest.mark.parametrize("first", [0, 1], ids=["outer released first", "inner released first"])
def test_callback_goes_with_the_acquisition_that_brought_it(toy, first):
    """Whichever is released first; one that is released through an object without a callback takes the latest."""
    callbacks = [[].append, [].append]
    state = toy.take(on_lost=callbacks[0])
    run_reenter(toy, "tell lock_release", on_lost=callbacks[1])
    assert state.on_lost == callbacks
    toy.play(release(toy.session, state, toy.now, 1, callbacks[first]), "tell lock_release")
    assert state.on_lost == [callbacks[1 - first]]
    run_reenter(toy, "tell lock_release", on_lost=callbacks[first])
    toy.play(release(toy.session, state, toy.now), "tell lock_release")
    assert state.on_lost == [callbacks[1 - first]]


def test_acquire_after_another_thread_released_the_hold_is_a_first_one(toy):
    """The look at the owner's holds is a step of the protocol, not of its caller."""
    first = toy.take()
    steps = acquire(toy.session, toy.request(), toy.now)
    toy.give_back(first)
    state = toy.play(steps, ("ask lock_acquire", toy.all_say(NEW)))
    assert state is not first
    assert (state.count, state.valid(toy.now)) == (1, True)
