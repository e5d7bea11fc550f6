"""Renewal: one command lengthens many claims, and a quorum's answers decide on each of them."""

import itertools
import math

import pytest

from redsync._core.quorum import Choice
from redsync._protocols.holding import lose, release
from redsync._protocols.renewal import extend, renew
from redsync.exceptions import LeaseLostError, NotOwnedError, QuorumError
from tests.support.toy_replies import LOSS

OURS, REPAIRED, THEIRS, WRONG_TYPE = 2, 1, 0, -1
ALL = 0b11111
LEASE, DRIFT = 30.0, 0.302
ROLLBACK = "tell lock_abandon, leave"
"""After a hold ended during its renewal: its end may have gone out first, and the renewal made the claim again."""


def run_renew(toy, holds, *script, **options):
    return toy.play(renew(toy.session, holds, **options), *script)


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


def test_renewal_counts_from_sending(toy):
    state = toy.take()
    toy.now = 1010.0
    run_renew(toy, [state], ("ask lock_renew", toy.codes(*[OURS] * 5, takes=0.2)))
    assert state.valid_until == pytest.approx(1010.0 + LEASE - DRIFT)
    assert state.renew_at == pytest.approx(1010.0 + LEASE / 3)


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
    confirmed, _ = run_renew(toy, [state], ("ask lock_renew", toy.codes(*answers)), *told)
    assert confirmed == [state] * (result == CONFIRMED)
    if result == LOST:
        assert "3 of 5 nodes" in state.lost
        assert not state.valid(toy.now)
        return
    assert state.lost is None
    if result == CONFIRMED:
        assert state.valid_until == pytest.approx(1010.0 + LEASE - DRIFT)
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


def test_renewal_never_outlasts_max_hold(toy):
    state = toy.take(max_hold=35.0)
    toy.now = 1010.0
    run_renew(toy, [state], ("ask lock_renew", toy.codes(*[OURS] * 5)))
    assert state.valid_until == pytest.approx(1035.0)


def test_renewal_never_shortens_an_extended_hold(toy):
    state = toy.take()
    run_renew(toy, [state], ("ask lock_renew", toy.codes(*[OURS] * 5)), lease=600.0)
    extended = state.valid_until
    assert extended == pytest.approx(toy.now - 0.001 + 600.0 - 6.002)
    toy.now = 1010.0
    run_renew(toy, [state], ("ask lock_renew", toy.codes(*[OURS] * 5)))
    assert state.valid_until == extended


def test_renewal_of_an_unrenewed_hold_does_not_begin_to_renew_it(toy):
    state = toy.take(lease=2.0)
    run_renew(toy, [state], ("ask lock_renew", toy.codes(*[OURS] * 5)))
    assert state.renew_at == math.inf
    run_renew(toy, [state], ("ask lock_renew", toy.codes(*["down"] * 5)))
    assert state.renew_at == math.inf


def test_renewal_counts_on_every_node_to_keep_the_claim(toy):
    """Even on a node that did not get it: the record made before the send stays."""
    steps = toy.acquiring()
    state = toy.play(steps, ("ask lock_acquire", toy.answers(1, 1, 1, "down", "down", sent=0b00111)))
    run_renew(toy, [state], ("ask lock_renew", toy.codes(OURS, OURS, OURS, REPAIRED, "down", sent=0b01111)))
    assert state.may_keep == toy.session.all_nodes


@pytest.mark.parametrize("garbage", [[], [2, 2], None, "text", 2, [b"2"], ["2"], [2.0], [None], {}])
def test_garbage_is_not_an_answer_to_a_renewal(toy, garbage):
    state = toy.take()
    toy.now = 1010.0
    effect = toy.start(renew(toy.session, [state]))
    with pytest.raises((TypeError, ValueError)):
        effect.parse(garbage)


# Renewing and releasing exclude each other.


def test_renewal_composed_after_a_release_began_leaves_the_hold_out(toy):
    state, other = toy.take("x"), toy.take("y")
    steps = renew(toy.session, [state, other])
    effect = next(steps)
    toy.start(release(toy.session, state, toy.now))
    command = effect.command()
    assert command.keys == (b"redsync:y",)
    assert command.args == (other.claim, 1, 30_000)
    toy.commands.append(command)
    tally = toy.perform(effect, toy.codes(*[OURS] * 5))
    with pytest.raises(StopIteration) as stop:
        steps.send(tally)
    assert stop.value.value[0] == [other]


@pytest.mark.parametrize("reason", [None, "a reason"])
def test_renewal_of_released_or_lost_holds_only_is_not_sent(toy, reason):
    state = toy.take()
    steps = renew(toy.session, [state])
    effect = next(steps)
    toy.play(lose(state, reason), *LOSS) if reason else toy.give_back(state)
    assert effect.command() is None
    toy.commands.append(None)
    tally = toy.perform(effect, toy.codes(*[None] * 5, sent=0))
    with pytest.raises(StopIteration) as stop:
        steps.send(tally)
    assert stop.value.value[0] == []
    assert state.lost == reason


def test_renewal_has_the_count_of_the_instant_of_sending(toy):
    state = toy.take()
    steps = renew(toy.session, [state])
    effect = next(steps)
    state.count = 7
    assert effect.command().args[1] == 7
    toy.commands.append(effect.command())
    with pytest.raises(StopIteration):
        steps.send(toy.perform(effect, toy.codes(*[OURS] * 5)))


def release_one(toy, states):
    toy.give_back(states[1])


def lose_one(toy, states):
    toy.play(lose(states[1], "a reason"), *LOSS)


@pytest.mark.parametrize("change", [None, release_one, lose_one])
def test_renewal_of_many_holds_is_the_same_for_the_others_whatever_happens_to_one(toy, change):
    states = [toy.take(name) for name in ("x", "y", "z")]
    toy.now = 1010.0
    meanwhile = (lambda: change(toy, states)) if change else None
    replies = toy.answers(*[[OURS] * 3] * 5, meanwhile=meanwhile)
    run_renew(toy, states, ("ask lock_renew", replies), *[ROLLBACK] * bool(change))
    for state in (states[0], states[2]):
        assert state.renew_at == pytest.approx(1020.0)
        assert state.valid_until == pytest.approx(1010.0 + LEASE - DRIFT)
    assert states[1].valid_until == pytest.approx((1030.0 if change else 1040.0) - DRIFT, abs=0.01)


@pytest.mark.parametrize(
    ("change", "answer", "lost"), [(release_one, THEIRS, None), (lose_one, OURS, "a reason")], ids=["released", "lost"]
)
def test_hold_that_ended_while_its_renewal_travels_is_neither_renewed_nor_lost_again(toy, change, answer, lost):
    state = toy.take()
    toy.now = 1010.0
    before = state.valid_until
    answers = toy.codes(*[answer] * 5, meanwhile=lambda: change(toy, [None, state]))
    confirmed, _ = run_renew(toy, [state], ("ask lock_renew", answers), ROLLBACK)
    assert confirmed == []
    assert state.lost == lost
    assert state.valid_until == before


# Renewing many holds.


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


def fate(toy, names, *answers):
    """Renew new holds; return the result for the first."""
    toy.now = 1000.0
    states = [toy.take(name, owner=toy.new_owner()) for name in names]
    first = states[0]
    toy.now = 1010.0
    replies = iter([toy.answers(*answers)])
    toy.drive(renew(toy.session, states), lambda described, effect: next(replies, None))
    for state in states:
        toy.session.holds.remove(state)
    return first.lost is None, round(first.valid_until, 1), round(first.renew_at)


CODES = [OURS, REPAIRED, THEIRS]
ANSWERS = [*CODES, "down"]


@pytest.mark.parametrize("first", ANSWERS)
@pytest.mark.parametrize("second", ANSWERS)
def test_hold_among_others_has_the_same_result_as_alone(make_toy, first, second):
    """Whatever nodes answer about the others, and in whatever order."""
    toy = make_toy(3)
    for third in ANSWERS:
        answers = first, second, third
        alone = fate(toy, ["alone"], *[code if code == "down" else [code] for code in answers])
        for others in itertools.product(CODES, repeat=3):
            both = [code if code == "down" else [code, other] for code, other in zip(answers, others, strict=True)]
            assert fate(toy, ["ours", "other"], *both) == alone, (answers, others)


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


@pytest.mark.parametrize(("lease", "timeout", "lease_ms"), [(2.0, 0.1, 2_000), (None, 0.25, 30_000)])
def test_renewal_waits_no_longer_than_its_lease_allows(toy, lease, timeout, lease_ms):
    one, other = toy.take("one"), toy.take("other")
    run_renew(toy, [one, other], ("ask lock_renew", toy.all_say([2, 2])), lease=lease)
    assert toy.asked[-1].timeout == pytest.approx(timeout)
    assert toy.commands[-1].args == (one.claim, 1, lease_ms, other.claim, 1, lease_ms)


def test_release_that_overtakes_the_answer_of_a_renewal_is_pending_for_nodes_it_may_have_repaired(toy):
    """The renewal may repair a node that had no claim, and its connection may break before the release arrives."""
    state = toy.take()
    state.may_keep = 0b00111
    answers = toy.codes(*[OURS] * 5, meanwhile=lambda: toy.give_back(state))
    run_renew(toy, [state], ("ask lock_renew", answers), ROLLBACK)
    released = next(effect for effect in toy.asked if effect.deliver_to)
    assert released.deliver_to == 0b11111


# Extending.


@pytest.mark.parametrize(("lease", "lease_ms", "lasts"), [(60.0, 60_000, 60.0 - 0.602), (None, 2_000, 2.0 - 0.022)])
def test_extend_lengthens_now_on_a_quorum_for_its_lease_or_the_holds_own(toy, lease, lease_ms, lasts):
    state = toy.take(lease=2.0)
    toy.now = 1001.0
    answers = toy.answers([2], [2], [2], "down", "down")
    toy.play(extend(toy.session, state, lease, toy.now), ("ask lock_renew", answers))
    assert toy.commands[-1].args == (toy.owner.claim(1), 1, lease_ms)
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
        toy.play(steps, ("ask lock_renew", answers), "tell lock_abandon, leave")
    assert state.lost is None


def test_extend_wakes_the_watchdog_if_its_look_is_due_earlier(toy):
    state = toy.take()
    toy.session.holds.watched_until = 1010.0
    alarms = toy.alarms
    toy.play(extend(toy.session, state, 3.0, toy.now), ("ask lock_renew", toy.all_say([2])))
    assert state.renew_at < 1010.0
    assert toy.alarms == alarms + 1


def test_repeated_round_counts_each_node_once(toy):
    """With asyncio, an interruption may cost the connections in the middle of a round, which then begins again."""
    state = toy.take()
    effect = toy.start(renew(toy.session, [state]))
    toy.begin(effect)
    names = [f"node{i}" for i in range(5)]
    first = effect.tally(names)
    for node in range(2):
        first.record(node, [OURS])
    second = effect.tally(names)
    for node, code in enumerate((OURS, OURS, REPAIRED)):
        assert second.record(node, [code]) is False, "no quorum has kept it"
    assert (second.record(3, [OURS]), second.won) == (True, True)
