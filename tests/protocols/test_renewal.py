"""Renewal: one command lengthens many claims, and a quorum's answers decide on each of them."""

import math

import pytest

from redsync._core.quorum import Choice
from redsync._protocols.holding import lose
from redsync._protocols.renewal import extend, renew
from redsync.exceptions import LeaseLostError, NotOwnedError, QuorumError
from tests.support.toy_replies import LOSS

OURS, REPAIRED, THEIRS, WRONG_TYPE = 2, 1, 0, -1
ALL = 0b11111
LEASE, DRIFT = 30.0, 0.302
ROLLBACK = "tell lock_release"
"""After a hold ended during its renewal: its end may have gone out first, and the renewal made the claim again."""


def run_renew(toy, holds, *script):
    return toy.play(renew(toy.session, {state: state.lease for state in holds}), *script)


# Renewing one hold.


def test_renew_asks_for_the_current_claim(toy):
    state = toy.take(holds=3)
    toy.now = 1010.0
    confirmed, tally = run_renew(toy, [state], ("ask lock_renew", toy.codes(*[OURS] * 5)))
    assert confirmed == [state]
    assert tally.won
    assert toy.commands[-1].keys == (b"redsync:x",)
    assert toy.commands[-1].args == (toy.owner.claim(1), 3, 30_000)
    effect = toy.asked[-1]
    assert (effect.owner, effect.guard) == (toy.owner, 0.0)
    assert effect.timeout == 0.25


@pytest.mark.parametrize(("guard", "flag"), [(30.0, (1,)), (0.0, ())])
def test_renew_says_whether_memory_is_guarded(make_toy, guard, flag):
    """A node that forgot a claim which is renewed is not a new one, and gets its record by the renewal."""
    toy = make_toy(restart_guard=guard)
    one, other = toy.take("one"), toy.take("other")
    run_renew(toy, [one, other], ("ask lock_renew", toy.answers(*[[OURS, OURS]] * 5)))
    assert toy.commands[-1].args == (one.claim, 1, 30_000, other.claim, 1, 30_000, *flag)
    assert toy.asked[-1].guard == 0.0


CONFIRMED, UNDECIDED, LOST = "confirmed", "undecided", "lost"


@pytest.mark.parametrize(
    ("answers", "result"),
    [
        ((OURS, OURS, OURS, OURS, OURS), CONFIRMED),
        ((OURS, OURS, OURS, "down", "down"), CONFIRMED),
        ((REPAIRED, REPAIRED, OURS, OURS, OURS), CONFIRMED),
        ((THEIRS, WRONG_TYPE, OURS, OURS, OURS), CONFIRMED),
        (("down", OURS, THEIRS, OURS, OURS), CONFIRMED),
        ((REPAIRED, REPAIRED, OURS, OURS, "down"), UNDECIDED),
        ((REPAIRED, THEIRS, OURS, OURS, "down"), UNDECIDED),
        ((OURS, OURS, "down", "down", "down"), UNDECIDED),
        (("down", "down", "down", "down", "down"), UNDECIDED),
        ((REPAIRED, REPAIRED, "down", "down", "down"), UNDECIDED),
        ((None, None, None, None, None), UNDECIDED),
        ((REPAIRED, REPAIRED, REPAIRED, OURS, OURS), LOST),
        ((THEIRS, THEIRS, THEIRS, "down", "down"), LOST),
        ((WRONG_TYPE, THEIRS, REPAIRED, OURS, OURS), LOST),
        ((REPAIRED, REPAIRED, REPAIRED, REPAIRED, REPAIRED), LOST),
    ],
)
def test_quorum_of_existing_renews_too_many_others_lose_at_once_and_all_else_is_retried_soon(toy, answers, result):
    state = toy.take()
    before = state.valid_until
    toy.now = 1010.0
    told = LOSS if result == LOST else ()
    confirmed, _ = run_renew(toy, [state], ("ask lock_renew", toy.codes(*answers, takes=0.2)), *told)
    assert confirmed == [state] * (result == CONFIRMED)
    if result == LOST:
        assert "3 of 5 nodes" in state.lost
        assert not state.valid(toy.now)
        return
    assert state.lost is None
    if result == CONFIRMED:
        assert state.valid_until == pytest.approx(1010.0 + LEASE - DRIFT), "from its sending on"
        assert state.renew_at == pytest.approx(1010.0 + LEASE / 3)
    else:
        assert state.valid_until == before, "repaired nodes do not count"
        assert toy.now < state.renew_at <= toy.now + 1.0


def test_healed_claims_of_a_lost_hold_are_rolled_back(toy):
    """Even on the nodes that did not keep it before: the renewal has just created claims there."""
    steps = toy.acquiring()
    state = toy.play(steps, ("ask lock_acquire", toy.answers(1, 1, 1, "down", "down", sent=0b00111)))
    answers = toy.codes(REPAIRED, REPAIRED, "down", REPAIRED, None, sent=0b11011)
    run_renew(toy, [state], ("ask lock_renew", answers), *LOSS)
    assert toy.told[-1].deliver_to == ALL


@pytest.mark.parametrize("answer", [[OURS, OURS], "down", [REPAIRED, REPAIRED]])
def test_renewal_answered_after_the_old_end_is_lost(toy, answer):
    """Never won back: others may have held it in between."""
    states = [toy.take("x"), toy.take("y")]
    ends = [state.valid_until for state in states]
    toy.now = ends[1] - 0.01
    confirmed, _ = run_renew(toy, states, ("ask lock_renew", toy.all_say(answer, takes=0.01)), *LOSS, *LOSS)
    assert confirmed == []
    assert all(state.lost for state in states)
    assert [state.valid_until for state in states] == ends


def test_renewal_answered_in_the_last_instant_counts(toy):
    state = toy.take()
    toy.now = state.valid_until - 0.01
    confirmed, _ = run_renew(toy, [state], ("ask lock_renew", toy.codes(*[OURS] * 5, takes=0.009)))
    assert confirmed == [state]


def test_renewal_of_an_unrenewed_hold_does_not_begin_to_renew_it(toy):
    state = toy.take(lease=2.0)
    run_renew(toy, [state], ("ask lock_renew", toy.codes(*[OURS] * 5)))
    assert state.renew_at == math.inf
    run_renew(toy, [state], ("ask lock_renew", toy.codes(*["down"] * 5)))
    assert state.renew_at == math.inf


# Renewing and releasing exclude each other.


def release_it(toy, state):
    toy.give_back(state)


def lose_it(toy, state):
    toy.play(lose(state, "a reason"), *LOSS)


def count_it(toy, state):
    state.count = 7


@pytest.mark.parametrize(
    ("change", "names", "counts"),
    [
        pytest.param(release_it, ("x", "y"), {b"redsync:y": 1}, id="one of two released"),
        pytest.param(release_it, ("x",), None, id="released"),
        pytest.param(lose_it, ("x",), None, id="lost"),
        pytest.param(count_it, ("x",), {b"redsync:x": 7}, id="acquired again"),
    ],
)
def test_renewal_says_what_is_so_in_the_instant_of_sending(toy, change, names, counts):
    first, *others = holds = [toy.take(name) for name in names]
    steps = renew(toy.session, {state: state.lease for state in holds})
    effect = next(steps)
    change(toy, first)
    command = effect.command()
    toy.commands.append(command)
    assert (command and dict(zip(command.keys, command.args[1::3], strict=True))) == counts
    answers = toy.codes(*[OURS] * 5) if counts else toy.codes(*[None] * 5, sent=0)
    with pytest.raises(StopIteration) as stop:
        steps.send(toy.perform(effect, answers))
    assert stop.value.value[0] == (others or [first] * bool(counts))
    assert first.lost == ("a reason" if change is lose_it else None)


@pytest.mark.parametrize(
    ("change", "answer", "lost"), [(release_it, THEIRS, None), (release_it, OURS, None), (lose_it, OURS, "a reason")]
)
def test_hold_that_ended_while_its_renewal_travels_is_neither_renewed_nor_lost_again(toy, change, answer, lost):
    states = one, ended, other = [toy.take(name) for name in ("x", "y", "z")]
    before = ended.valid_until
    toy.now = 1010.0
    replies = toy.answers(*[[OURS, answer, OURS]] * 5, meanwhile=lambda: change(toy, ended))
    confirmed, _ = run_renew(toy, states, ("ask lock_renew", replies), ROLLBACK)
    assert confirmed == [one, other]
    assert (ended.lost, ended.valid_until) == (lost, before)


# Renewing many holds.


def test_hold_that_is_released_while_the_loss_of_another_is_told_is_not_lost(toy):
    lost, released = toy.take("x"), toy.take("y")

    def answer(described, _):
        if described == LOSS[1]:
            toy.give_back(released)
        return toy.all_say([THEIRS, THEIRS]) if described == "ask lock_renew" else None

    toy.drive(renew(toy.session, {lost: LEASE, released: LEASE}), answer)
    assert (lost.lost is not None, released.lost) == (True, None)


def test_renewal_decides_on_many_holds_each_by_itself(toy):
    names = [b"kept", b"lost", b"unsure", b"also kept"]
    kept, lost, unsure, also = holds = [toy.take(name) for name in names]
    toy.now = 1010.0
    answers = toy.answers([2, 1, 2, 2], [2, 0, 1, 2], "down", [2, -1, 2, 2], [1, 2, 1, 2])
    confirmed, _ = run_renew(toy, holds, ("ask lock_renew", answers), *LOSS)
    assert confirmed == [kept, also]
    assert [state.lost is not None for state in holds] == [False, True, False, False]
    assert toy.events[-1].state is lost
    assert toy.asked[-1].owner is None
    assert unsure.renew_at < 1012.0 < kept.renew_at
    assert toy.commands[-2].keys == tuple(b"redsync:" + name for name in names)


def test_renewal_of_many_holds_is_open_until_each_is_decided(toy):
    one, other = holds = [toy.take("one"), toy.take("other")]
    answers = toy.answers([2, 2], [2, 1], [2, 1], [2, 2], [2, 2])
    confirmed, tally = run_renew(toy, holds, ("ask lock_renew", answers))
    assert confirmed == [one, other]
    assert None not in tally.choices, "the last node decided about the other"
    decided_early = toy.answers([2, 2], [2, 2], [2, 2], None, None)
    _, tally = run_renew(toy, holds, ("ask lock_renew", decided_early))
    assert tally.choices.count(Choice.GRANTED) == 3
    assert tally.at == tally.sent_at + 0.001, "it waited for no further node"


def test_release_that_overtakes_the_answer_of_a_renewal_is_pending_for_nodes_it_may_have_repaired(toy):
    """The renewal may repair a node that had no claim, and its connection may break before the release arrives."""
    state = toy.take()
    state.may_keep = 0b00111
    answers = toy.codes(*[OURS] * 5, meanwhile=lambda: toy.give_back(state))
    run_renew(toy, [state], ("ask lock_renew", answers), ROLLBACK)
    released = next(effect for effect in toy.asked if effect.deliver_to)
    assert released.deliver_to == 0b11111


# Extending.


@pytest.mark.parametrize(
    ("lease", "lease_ms", "timeout", "lasts"), [(60.0, 60_000, 0.25, 60.0 - 0.602), (None, 2_000, 0.1, 2.0 - 0.022)]
)
def test_extend_lengthens_now_on_a_quorum_for_its_lease_or_the_holds_own(toy, lease, lease_ms, timeout, lasts):
    state = toy.take(lease=2.0)
    toy.now = 1001.0
    answers = toy.answers([2], [2], [2], "down", "down")
    toy.play(extend(toy.session, state, lease, toy.now), ("ask lock_renew", answers))
    assert toy.commands[-1].args == (toy.owner.claim(1), 1, lease_ms)
    assert toy.asked[-1].timeout == pytest.approx(timeout), "no longer than the lease allows"
    assert toy.asked[-1].guard == 0.0, "it repairs nodes that lost their memory"
    assert state.valid_until == pytest.approx(1001.0 + lasts)
    assert not state.renewed, "an extension is not a renewal"
    assert state.lease == 2.0


def test_extend_without_a_quorum_leaves_the_hold_unchanged(toy):
    state = toy.take()
    before = state.valid_until
    with pytest.raises(QuorumError) as caught:
        toy.play(
            extend(toy.session, state, 60.0, toy.now), ("ask lock_renew", toy.answers([2], [2], "down", "down", "down"))
        )
    assert len(caught.value.votes) == 5
    assert state.valid_until == before
    assert state.lost is None


def test_extend_of_a_hold_that_nodes_no_longer_keep_is_a_loss(toy):
    state = toy.take()
    with pytest.raises(LeaseLostError):
        toy.play(
            extend(toy.session, state, 60.0, toy.now),
            ("ask lock_renew", toy.answers([0], [1], [-1], [2], [2])),
            *LOSS,
        )
    assert not state.valid(toy.now)


@pytest.mark.parametrize("answer", [[2], [0], "down"])
def test_extend_of_a_hold_released_meanwhile_is_an_error(toy, answer):
    """By another thread, through its Hold: neither an outage nor a loss.

    Its release may have come before this renewal, which then made the claim again, so the claim is rolled back.
    """
    state = toy.take()
    answers = toy.all_say(answer, meanwhile=lambda: toy.give_back(state))
    steps = extend(toy.session, state, 60.0, toy.now)
    with pytest.raises(NotOwnedError):
        toy.play(steps, ("ask lock_renew", answers), "tell lock_release")
    assert state.lost is None


def test_extend_wakes_the_watchdog_if_its_look_is_due_earlier(toy):
    state = toy.take()
    state.renew_at = 1010.0
    table = toy.session.holds
    table.begin_watch()
    assert (table.take_ended(toy.now), table.due(toy.now, toy.now)) == ([], [])
    alarms = toy.alarms
    toy.play(extend(toy.session, state, 3.0, toy.now), ("ask lock_renew", toy.all_say([2])))
    assert state.renew_at < 1010.0
    assert toy.alarms == alarms + 1


def test_repeated_round_counts_each_node_once(toy):
    """With asyncio, an interruption may cost the connections in the middle of a round, which then begins again."""
    state = toy.take()
    effect = toy.start(renew(toy.session, {state: state.lease}))
    toy.begin(effect)
    names = [f"node{i}" for i in range(5)]
    first = effect.tally(names)
    for node in range(2):
        first.record(node, [OURS])
    second = effect.tally(names)
    for node, code in enumerate((OURS, OURS, REPAIRED)):
        assert second.record(node, [code]) is False, "no quorum has kept it"
    assert (second.record(3, [OURS]), second.won) == (True, True)
