"""Repair: the watchdog brings a hold on a minimal quorum to the nodes that lack it."""

import math

import pytest

from redsync._protocols.renewal import extend, is_minimal, renew, repair

NEW = 1
OURS, REPAIRED, THEIRS = 2, 1, 0
ALL = 0b11111
LEASE, DRIFT = 30.0, 0.302
BARE = (NEW, NEW, NEW, "down", "down")


def take_bare(toy, **fields):
    """Acquire on a minimal quorum of five nodes, and wait until the watchdog looks at it."""
    state = toy.acquire(("ask lock_acquire", toy.answers(*BARE, sent=0b00111)), **fields)
    toy.now = state.repair_at
    return state


def run_fill_up(toy, holds, *script):
    return toy.play(repair(toy.session, holds, toy.now), *script)


@pytest.mark.parametrize(
    ("n", "missing", "expected"),
    [
        (5, 0, False),
        (5, 1, False),  # It can spare another one.
        (5, 2, True),
        (4, 0, False),
        (4, 1, True),
        (3, 0, False),
        (3, 1, True),
        # There are no more nodes than a quorum: nothing can be filled up.
        (2, 0, False),
        (2, 1, False),
        (1, 0, False),
    ],
)
def test_hold_is_bare_if_it_can_spare_no_node_although_there_are_more(make_toy, n, missing, expected):
    assert is_minimal(make_toy(n).session, missing) is expected


# The ask.


def test_fill_up_renews_on_all_nodes(toy):
    state = take_bare(toy, holds=3)
    now = toy.now
    run_fill_up(toy, [state], ("ask lock_renew", toy.codes(OURS, OURS, OURS, REPAIRED, REPAIRED)))
    assert toy.commands[-1].keys == (toy.keys.lock,)
    assert toy.commands[-1].args == (toy.owner.claim(1), 3, 30_000)
    effect = toy.asked[-1]
    assert (effect.owner, effect.guard, effect.timeout) == (toy.owner, 0.0, 0.25)
    assert state.touched == ALL
    assert state.kept_until >= now + LEASE
    assert state.valid_until == pytest.approx(now + LEASE - DRIFT), "it is a renewal"
    assert state.renew_at == pytest.approx(now + LEASE / 3)
    assert (state.repair_at, state.repair_pause) == (math.inf, 0.0)


def test_fill_up_waits_for_all_nodes(toy):
    """No caller waits for the result, and the purpose is to learn which nodes lack the hold."""
    state = take_bare(toy)
    began = toy.now
    run_fill_up(toy, [state], ("ask lock_renew", toy.codes(OURS, OURS, OURS, REPAIRED, None)))
    assert toy.now == pytest.approx(began + 0.25)
    assert toy.tallies[-1].granted == 4
    assert state.repair_at == math.inf


def test_fill_up_of_an_explicit_lease_lasts_for_the_rest_of_it(toy):
    state = take_bare(toy, lease=10.0)
    toy.now = 1004.0
    before = state.valid_until
    run_fill_up(toy, [state], ("ask lock_renew", toy.codes(OURS, OURS, OURS, REPAIRED, REPAIRED, takes=0.2)))
    rest = toy.commands[-1].args[2] / 1000
    assert before < 1004.0 + rest <= 1010.0, "at least as long as it is believed, and no longer than the lease"
    assert state.valid_until == before, "never lengthened"
    assert not state.renewed
    assert state.repair_at == math.inf


def test_fill_up_brings_many_holds_with_one_command(toy):
    renewed, given = take_bare(toy, name="a"), take_bare(toy, name="b", lease=2.0)
    answers = toy.answers([2, 2], [2, 2], [2, 2], [1, 1], [1, "down"])
    run_fill_up(toy, [renewed, given], ("ask lock_renew", answers))
    assert toy.commands[-1].keys == (b"redsync:a", b"redsync:b")
    assert toy.commands[-1].args[2] == 30_000
    assert toy.commands[-1].args[5] < 2_000
    assert toy.asked[-1].owner is None
    assert toy.asked[-1].timeout < 0.25, "no longer than the shortest lease allows"
    assert [state.repair_at for state in (renewed, given)] == [math.inf, math.inf]


# The result.


@pytest.mark.parametrize(
    "answers",
    [
        (OURS, OURS, OURS, "down", "down"),
        (OURS, OURS, OURS, "down", None),
        (OURS, OURS, OURS, THEIRS, THEIRS),
        (OURS, OURS, OURS, THEIRS, "down"),
    ],
)
def test_hold_that_stays_minimal_is_filled_up_again_after_growing_pauses(toy, answers):
    state = take_bare(toy)
    pauses = []
    for _ in range(7):
        began = toy.now
        run_fill_up(toy, [state], ("ask lock_renew", toy.codes(*answers)))
        assert state.lost is None
        pauses.append(state.repair_at - began)
        toy.now = state.repair_at
    assert pauses == pytest.approx([0.25, 0.5, 1.0, 2.0, 2.5, 2.5, 2.5]), "a twelfth of the lease at most"


def test_hold_with_a_short_lease_is_filled_up_after_short_pauses(make_toy):
    toy = make_toy(lease=0.6)
    state = take_bare(toy)
    pauses = []
    for _ in range(3):
        began = toy.now
        run_fill_up(toy, [state], ("ask lock_renew", toy.codes(OURS, OURS, OURS, "down", "down")))
        pauses.append(state.repair_at - began)
        toy.now = state.repair_at
    assert pauses == pytest.approx([0.03, 0.05, 0.05])


def test_pauses_start_over_if_the_hold_was_on_enough_nodes_in_between(toy):
    state = take_bare(toy)
    for _ in range(4):
        run_fill_up(toy, [state], ("ask lock_renew", toy.codes(OURS, OURS, OURS, "down", "down")))
        toy.now = state.repair_at
    run_fill_up(toy, [state], ("ask lock_renew", toy.codes(OURS, OURS, OURS, OURS, REPAIRED)))
    assert state.repair_pause == 0.0
    began = toy.now
    run_fill_up(toy, [state], ("ask lock_renew", toy.codes(OURS, OURS, OURS, "down", "down")))
    assert state.repair_at - began == pytest.approx(0.25)


def test_healed_node_counts_the_next_time(toy):
    """One of the three that granted has forgotten the claim: no quorum has it until that node is repaired."""
    state = take_bare(toy)
    before = state.valid_until
    run_fill_up(toy, [state], ("ask lock_renew", toy.codes(OURS, OURS, REPAIRED, "down", "down")))
    assert state.lost is None
    assert state.valid_until == before
    toy.now = state.repair_at
    now = toy.now
    run_fill_up(toy, [state], ("ask lock_renew", toy.codes(OURS, OURS, OURS, REPAIRED, "down")))
    assert state.valid_until == pytest.approx(now + LEASE - DRIFT)
    assert state.repair_at == math.inf


# The findings of a plain renewal.


def test_renewal_that_finds_a_bare_majority_makes_it_due_for_filling_up_at_once(toy):
    state = toy.take()
    state.repair_at, state.tally = math.inf, None
    toy.now = 1010.0
    toy.play(renew(toy.session, [state]), ("ask lock_renew", toy.codes("down", "down", OURS, OURS, OURS)))
    assert state.repair_at == toy.now


def test_renewal_that_finds_a_bare_majority_does_not_cut_a_pause_short(toy):
    state = take_bare(toy)
    run_fill_up(toy, [state], ("ask lock_renew", toy.codes(OURS, OURS, OURS, "down", "down")))
    pending = state.repair_at
    toy.play(renew(toy.session, [state]), ("ask lock_renew", toy.codes("down", "down", OURS, OURS, OURS)))
    assert state.repair_at == pending


@pytest.mark.parametrize("answers", [(OURS, OURS, OURS, None, None), (OURS, OURS, OURS, REPAIRED, "down")])
def test_renewal_counts_nodes_that_were_too_late_or_healed_as_keeping_it(toy, answers):
    state = take_bare(toy)
    toy.play(renew(toy.session, [state]), ("ask lock_renew", toy.codes(*answers)))
    assert (state.repair_at, state.repair_pause) == (math.inf, 0.0)


def test_renewal_without_a_quorum_does_not_change_the_filling_up(toy):
    state = take_bare(toy)
    pending = state.repair_at
    toy.play(renew(toy.session, [state]), ("ask lock_renew", toy.codes(OURS, OURS, "down", "down", "down")))
    assert state.repair_at == pending


def test_renewal_makes_the_tally_of_the_acquire_obsolete(toy):
    """Else the watchdog would look at its votes when a later renewal finds that nodes have gone."""
    state = toy.take()
    toy.play(extend(toy.session, state, None, toy.now), ("ask lock_renew", toy.codes(*[OURS] * 5)))
    assert (state.repair_at, state.tally) == (math.inf, None)


@pytest.mark.parametrize("answer", [[2], "down"])
def test_hold_that_is_released_while_it_is_filled_up_is_rolled_back(toy, answer):
    """Its release may have gone out first, over other connections, and the command made the claim again."""
    state = toy.take()
    answers = toy.all_say(answer, meanwhile=lambda: toy.give_back(state))
    run_fill_up(toy, [state], ("ask lock_renew", answers), "tell lock_abandon, leave")
    assert state.lost is None
