"""A new claim: won, lost, undone, interrupted; with a driver made of paper."""

import gc
import math
import weakref
from functools import partial

import pytest

from redsync._core.effects import Broadcast
from redsync._core.keys import LockKeys
from redsync._core.limits import Limit
from redsync._core.quorum import Choice
from redsync._core.slots import SlotKeys
from redsync._protocols.acquire_requests import Outcome
from redsync._protocols.claims import Claim
from redsync._protocols.fair_lock import FAIR_LOCK
from redsync._protocols.fenced_lock import FENCED_LOCK
from redsync._protocols.holding import release
from redsync._protocols.lock import LOCK
from redsync._protocols.semaphore import SEMAPHORE
from redsync._protocols.slot_claims import SlotClaim
from redsync._protocols.tokens import Fence, FencedClaim
from redsync.exceptions import KeyTypeError, QuorumError
from tests.support.replies import FOREIGN, NEW, SPLIT, A, B, busy, held, waiting_script, won

ALL = 0b11111
LEASE, DRIFT = 30.0, 0.302


# Won.


def test_acquire_asks_for_a_new_claim(toy):
    toy.take()
    (effect,) = toy.effects
    assert effect.command.script.name == "lock_acquire"
    assert effect.command.keys == (toy.keys.lock,)
    assert effect.command.args == (toy.owner.claim(1), 1, 30_000, 0)
    assert (effect.owner, effect.timeout) == (toy.owner, 0.25)
    assert effect.late, "who grants after the verdict keeps the claim too"


@pytest.mark.parametrize(
    ("guard", "lease", "expected"),
    [
        (0.0, None, 0.0),
        (0.0, 600.0, 0.0),  # not guarded at all
        (30.0, None, 30.0),
        (30.0, 10.0, 30.0),
        (30.0, 600.0, 600.0),  # others may believe for as long
        (45.0, 40.0, 45.0),
    ],
)
@pytest.mark.parametrize("crowded", [False, True])
def test_acquire_asks_only_nodes_that_remember_for_long_enough(make_toy, guard, lease, expected, crowded):
    toy = make_toy(restart_guard=guard)
    step = "ask lock_acquire for a place" if crowded else "ask lock_acquire"
    toy.acquire((step, won(toy)), lease=lease, crowded=crowded)
    (effect,) = toy.effects
    assert effect.guard == expected
    said = b"%d,-," % (expected * 1000) if expected else 0
    assert effect.command.words[3] == said, "the node's script looks as well"


def test_acquire_is_won_by_a_quorum_of_granted(toy):
    state = toy.acquire(("ask lock_acquire", toy.answers(NEW, "down", NEW, held(), NEW)))
    assert state.valid_until == pytest.approx(1000.0 + LEASE - DRIFT)
    assert state.renew_at == pytest.approx(1000.0 + LEASE / 3)
    assert (state.count, state.lease, state.live, state.lost) == (1, LEASE, True, None)
    assert list(toy.session.holds) == [state]
    assert toy.session.holds.get(toy.keys.lock, toy.owner) is state
    assert toy.alarms == 1


def test_acquire_leaves_the_tally_for_a_later_look_at_who_keeps_the_claim(toy):
    """Votes still on their way are not waited for; a round's patience later they have come or will not."""
    state = toy.acquire(("ask lock_acquire", toy.answers(NEW, NEW, NEW, None, held())))
    assert state.tally is toy.tallies[0]
    assert state.tally.backers == 0b00111
    assert state.fill_at == pytest.approx(1000.5), "between one and two timeouts later"
    assert state.due == state.fill_at


FENCED = partial(FencedClaim, fence=Fence(LockKeys.of(b"redsync:", b"x")))
SLOTS = partial(SlotClaim, limit=Limit(4))


@pytest.mark.parametrize(
    ("kind", "claims", "granted"),
    [(LOCK, Claim, 1), (FAIR_LOCK, Claim, 1), (FENCED_LOCK, FENCED, [1, 7]), (SEMAPHORE, SLOTS, b"2")],
)
def test_hold_that_was_given_back_is_freed_without_the_garbage_collector(toy, kind, claims, granted):
    """The votes are kept for a later look, so they must not lead back to the hold: it would outlive its release."""

    class Listener:
        def __call__(self, state):
            raise AssertionError("nothing is lost")

    listener = Listener()
    freed = weakref.ref(listener)
    keys = SlotKeys.of(b"redsync:", b"x") if kind is SEMAPHORE else toy.keys
    place = " for a place" if kind in (FAIR_LOCK, SEMAPHORE) else ""
    steps = toy.acquiring(kind=kind, claims=claims, keys=keys, on_lost=listener)
    gc.disable()
    try:
        state = toy.play(steps, (f"ask {kind.noun}_acquire{place}", toy.all_say(granted)))
        assert state.tally is not None
        toy.play(release(toy.session, state, toy.now), (f"ask {kind.release.name}", toy.all_say(1)))
        toy.effects.clear()
        toy.tallies.clear()
        del listener, state
        assert freed() is None
    finally:
        gc.enable()


@pytest.mark.parametrize("n", [1, 2])
def test_acquire_leaves_nothing_to_fill_up_where_all_nodes_are_a_quorum(make_toy, n):
    state = make_toy(n).take()
    assert (state.fill_at, state.tally) == (math.inf, None)


def test_acquire_notes_success_on_its_receipt_and_nothing_else(toy):
    outcome = Outcome()
    busy_then_won = [
        ("ask lock_acquire", busy(toy)),
        ("ask lock_acquire for a place", toy.all_say(NEW, meanwhile=lambda: noted.append(outcome.state))),
    ]
    noted = []
    state = toy.acquire(*busy_then_won, outcome=outcome)
    assert noted == [None]
    assert outcome.state is state


@pytest.mark.parametrize("n", range(1, 8))
def test_acquire_needs_more_than_half_of_any_number_of_nodes(make_toy, n):
    quorum = n // 2 + 1
    toy = make_toy(n)
    assert toy.acquire(("ask lock_acquire", toy.answers(*[NEW] * quorum, *[held()] * (n - quorum))))
    toy = make_toy(n)
    answers = toy.answers(*[NEW] * (quorum - 1), *[held()] * (n - quorum + 1))
    assert toy.acquire(("ask lock_acquire", answers), "tell lock_abandon", timeout=0.0) is None
    assert len(toy.session.holds) == 0


def test_acquire_remembers_which_nodes_may_keep_the_claim(toy):
    state = toy.acquire(
        ("ask lock_acquire", toy.answers(NEW, "down", "down", "down", "down", sent=0b00011)),
        "tell lock_abandon",
        ("wait", toy.slept()),
        ("ask lock_acquire", toy.answers(NEW, NEW, NEW, "down", "down", sent=0b00111)),
    )
    assert state.touched == 0b00111


def test_acquire_with_a_lease_is_not_renewed(toy):
    state = toy.take(lease=2.0)
    assert toy.asked[0].command.args[2] == 2_000
    assert toy.asked[0].timeout == pytest.approx(0.1)
    assert state.renew_at == math.inf
    assert not state.renewed
    assert state.valid_until == pytest.approx(1000.0 + 2.0 - 0.022)


@pytest.mark.parametrize(("max_hold", "valid_until"), [(5.0, 1005.0), (300.0, 1000.0 + LEASE - DRIFT)])
def test_max_hold_ends_the_hold_and_never_lengthens_the_lease(toy, max_hold, valid_until):
    state = toy.take(max_hold=max_hold)
    assert state.ends_at == pytest.approx(1000.0 + max_hold)
    assert state.valid_until == pytest.approx(valid_until)


def test_hold_that_acquire_returns_is_valid_at_that_instant(toy):
    """Also when max_hold is over before the nodes have answered."""
    late = toy.all_say(NEW, takes=0.2)
    script = [("ask lock_acquire", late), "tell lock_abandon"]
    with pytest.raises(QuorumError):
        toy.acquire(*script, max_hold=0.1, timeout=0.0)
    assert len(toy.session.holds) == 0


# Won too late.


@pytest.mark.parametrize("lateness", [0.0, 0.001, 60.0])
def test_acquire_won_too_late_is_undone_and_not_returned(toy, lateness):
    late = toy.answers(NEW, NEW, NEW, None, None, takes=LEASE - DRIFT + lateness)
    outcome = Outcome()
    with pytest.raises(QuorumError) as caught:
        toy.acquire(("ask lock_acquire", late), "tell lock_abandon", timeout=0.0, outcome=outcome)
    assert [vote.choice for vote in caught.value.votes].count(Choice.GRANTED) == 3
    assert "0 of 5 nodes failed" not in str(caught.value)
    assert len(toy.session.holds) == 0
    assert outcome.state is None
    assert toy.told[0].owed_to == ALL


def test_acquire_won_too_late_is_no_matter_of_foreign_values_on_a_minority(toy):
    late = toy.answers(FOREIGN, NEW, NEW, NEW, NEW, takes=LEASE)
    with pytest.raises(QuorumError):
        toy.acquire(("ask lock_acquire", late), "tell lock_abandon", timeout=0.0)


def test_acquire_won_in_the_last_instant_is_returned(toy):
    just = toy.all_say(NEW, takes=LEASE - DRIFT - 0.001)
    state = toy.acquire(("ask lock_acquire", just), timeout=0.0)
    assert state.valid(toy.now)


def test_acquire_won_too_late_is_tried_again_within_the_timeout(toy):
    state = toy.acquire(
        ("ask lock_acquire", toy.all_say(NEW, takes=LEASE)),
        "tell lock_abandon",
        ("wait", toy.slept()),
        ("ask lock_acquire", won(toy)),
        timeout=100.0,
    )
    assert state.valid_until == pytest.approx(toy.now - 0.001 + LEASE - DRIFT)


# Lost without waiting.


def test_busy_lock_is_none_at_once_without_blocking(toy):
    assert toy.acquire(("ask lock_acquire", busy(toy)), "tell lock_abandon", timeout=0.0) is None
    (undo,) = toy.told
    assert undo.command.keys == toy.keys.all
    assert undo.command.args == (toy.owner.claim(1), 0)
    assert (undo.owner, undo.owed_to) == (toy.owner, ALL)
    assert undo.owed_until >= toy.now + LEASE
    assert len(toy.session.holds) == 0


def test_no_quorum_is_an_error_at_once_without_blocking(toy):
    replies = ("connection refused", NEW, "no answer within 0.25 s", "quarantined for 12 s", held())
    with pytest.raises(QuorumError) as caught:
        toy.acquire(("ask lock_acquire", toy.answers(*replies)), "tell lock_abandon", timeout=0.0)
    error = caught.value
    assert error.name == "x"
    assert [vote.node for vote in error.votes] == ["node0", "node1", "node2", "node3", "node4"]
    assert [vote.choice.value for vote in error.votes] == ["failed", "granted", "failed", "failed", "refused"]
    assert "connection refused" in str(error)
    assert "quarantined for 12 s" in str(error)
    assert "'x'" in str(error)
    assert len(toy.session.holds) == 0


@pytest.mark.parametrize(
    "replies",
    [
        ("down", "down", held(), NEW, NEW),
        ("down", held(), held(), held(), "down"),
        (NEW, held(by=A), held(by=B), held(by=B), "down"),
    ],
)
def test_two_failures_of_five_and_split_votes_are_no_outage(toy, replies):
    assert toy.acquire(("ask lock_acquire", toy.answers(*replies)), "tell lock_abandon", timeout=0.0) is None


def test_undo_is_owed_to_nodes_that_did_not_answer_too(toy):
    answers = toy.answers(NEW, None, None, None, "down", sent=0b01111)
    with pytest.raises(QuorumError):
        toy.acquire(("ask lock_acquire", answers), "tell lock_abandon", timeout=0.0)
    assert toy.told[0].owed_to == 0b01111


# Foreign values.


def test_key_of_another_type_is_an_error_at_once_even_when_blocking(toy):
    with pytest.raises(KeyTypeError, match="another type") as caught:
        toy.acquire(("ask lock_acquire", toy.all_say(FOREIGN)), "tell lock_abandon")
    assert caught.value.name == "x"
    assert len(caught.value.votes) == 5


def test_foreign_values_on_a_minority_do_no_harm(toy):
    assert toy.acquire(("ask lock_acquire", toy.answers(FOREIGN, FOREIGN, NEW, NEW, NEW)))


def test_foreign_values_beside_a_holder_are_no_error(toy):
    answers = toy.answers(FOREIGN, held(), held(), held(), held())
    assert toy.acquire(("ask lock_acquire", answers), "tell lock_abandon", timeout=0.0) is None


def test_foreign_values_that_alone_keep_the_lock_away_are_an_error(toy):
    answers = toy.answers(FOREIGN, NEW, NEW, "down", "down")
    with pytest.raises(KeyTypeError):
        toy.acquire(("ask lock_acquire", answers), "tell lock_abandon")


def test_foreign_values_make_a_waiter_leave_its_queues(toy):
    with pytest.raises(KeyTypeError):
        toy.acquire(("ask lock_acquire for a place", toy.all_say(FOREIGN)), "tell lock_abandon, leave", crowded=True)


# Interruptions.


def acquire_scripts(toy):
    """Ways for an acquire to go, each up to its win."""
    outage_then_split = [
        ("ask lock_acquire", toy.answers(NEW, NEW, "down", "down", "down", sent=0b00011)),
        "tell lock_abandon",
        ("wait", toy.slept()),
        ("ask lock_acquire", toy.answers(*SPLIT)),
        "tell lock_abandon",
        ("wait", toy.slept()),
        ("ask lock_acquire for a place", won(toy)),
    ]
    undone_then_handed_over = [
        ("ask lock_acquire", busy(toy)),
        ("ask lock_acquire for a place", toy.answers(held(), held(), held(), held(), NEW)),
        "tell lock_abandon",
        ("wait for wake-up", toy.slept(0.05)),
        ("ask lock_acquire for a place", busy(toy)),
        ("wait for wake-up", toy.slept(0.05, handed=ALL)),
    ]
    return {
        "at once": [("ask lock_acquire", won(toy))],
        "waiting": waiting_script(toy),
        "unlucky": outage_then_split,
        "handed over": undone_then_handed_over,
    }


@pytest.mark.parametrize("way", ["at once", "waiting", "unlucky", "handed over"])
def test_acquire_interrupted_anywhere_leaves_nothing_behind(make_toy, way):
    script = acquire_scripts(make_toy())[way]
    for at in range(len(script)):
        toy = make_toy()
        outcome = Outcome()
        cleanup = toy.interrupt(toy.acquiring(outcome=outcome), acquire_scripts(toy)[way], at)
        queued = any(len(effect.command.keys) == 3 for effect in toy.asked)
        assert cleanup == ["tell lock_abandon, leave" if queued else "tell lock_abandon"], at
        assert len(toy.session.holds) == 0
        assert outcome.state is None, "nobody is told of a success that was undone"
        assert toy.alarms == 0
        undo = toy.told[-1]
        assert undo.command.args[0] == toy.commands[-1].args[0], "what was asked for last"
        assert undo.owner == toy.owner
        assert undo.owed_until >= toy.now + LEASE, "as long as a node may keep the claim"
        if isinstance(toy.effects[-2], Broadcast):
            assert undo.owed_to == ALL, "the interrupted round may have been sent to any node"


@pytest.mark.parametrize("at", [0, 1, 2])
def test_acquire_interrupted_while_it_gives_up_leaves_its_queues(toy, at):
    script = [
        ("ask lock_acquire", busy(toy)),
        ("ask lock_acquire for a place", toy.all_say(held(), takes=0.2)),
        "tell lock_abandon, leave",
    ]
    cleanup = toy.interrupt(toy.acquiring(timeout=0.1), script, at)
    assert cleanup == ["tell lock_abandon, leave" if at else "tell lock_abandon"]


def test_place_in_a_queue_is_owed_as_long_as_it_is_kept(make_toy):
    """A place is kept for 3 s, or for the lease that was asked for, if that is shorter."""
    toy = make_toy()
    script = [("ask lock_acquire for a place", busy(toy))]
    assert toy.interrupt(toy.acquiring(crowded=True, lease=1.0), script, 0)
    place_kept = toy.commands[0].args[4] / 1000
    assert place_kept == 1.0
    assert toy.told[-1].owed_until >= 1000.0 + place_kept


def test_release_of_who_has_queued_is_owed_as_long_as_its_place_is_kept(make_toy):
    """A node that was cut off when the others granted keeps the place."""
    toy = make_toy()
    state = toy.acquire(
        ("ask lock_acquire for a place", busy(toy)),
        ("wait for wake-up", toy.slept(0.5)),
        ("ask lock_acquire for a place", toy.answers(NEW, NEW, NEW, NEW, "down")),
        crowded=True,
        lease=1.0,
    )
    assert state.kept_until >= 1000.5 + 1.0


def test_acquire_interrupted_in_the_step_of_its_win_gives_the_claim_back(toy):
    """The alarm is a call, at the end of which Python looks for signals; the hold is in the table by then."""

    def interrupt():
        assert len(toy.session.holds) == 1
        raise KeyboardInterrupt

    toy.on_alarm = interrupt
    outcome = Outcome()
    with pytest.raises(KeyboardInterrupt):
        toy.acquire(("ask lock_acquire", won(toy)), "tell lock_abandon", outcome=outcome)
    assert len(toy.session.holds) == 0
    assert outcome.state is None
    assert toy.told[-1].owed_to == ALL


def test_garbage_is_no_answer_to_an_acquire(believed):
    assert believed(lambda toy: toy.acquiring(timeout=0.0)) == []
