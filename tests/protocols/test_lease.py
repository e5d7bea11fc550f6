"""What all leased things share: renewing, losing, the watchdog, and waiting for the end."""

import math
import random
from itertools import pairwise

import pytest

from redsync._core import ownership
from redsync._core.effects import Broadcast, Notify, Wait
from redsync._core.events import HoldLost
from redsync._core.keys import LockKeys
from redsync._core.ownership import LANES
from redsync._core.quorum import Choice
from redsync._protocols.lease import abandon, lose, milliseconds, renew, renew_at, wait_end, watchdog
from redsync._protocols.lock import acquire, release
from redsync.exceptions import LeaseLostError

OURS, HEALED, THEIRS, FOREIGN = 2, 1, 0, -1
ALL = 0b11111
LEASE, DRIFT = 30.0, 0.302


def take(toy, name=b"x", **fields):
    """Acquire a lock and return the hold."""
    demand = toy.demand(name=name, keys=LockKeys.of(b"redsync:", name), **fields)
    steps = acquire(toy.session, demand, toy.now)
    return toy.play(steps, ("ask lock_acquire", toy.answers(*[1] * toy.n)))


def codes(toy, *each_node, **options):
    """What the nodes say of one hold."""
    return toy.answers(*[code if code is None or isinstance(code, str) else [code] for code in each_node], **options)


def run_renew(toy, holds, *script, **options):
    return toy.play(renew(toy.session, holds, **options), *script)


def give_back(toy, state):
    toy.play(release(toy.session, state, toy.now), ("ask lock_release", toy.answers(*[1] * toy.n)))


def sleep(toy, state, timeout=None, released=lambda: False):
    """Sleep until the hold ends, as `Hold.wait_lost` does."""
    return wait_end(state, released, toy.now, timeout)


LOSS = ("tell lock_abandon", "notify HoldLost")


# Small things.


@pytest.mark.parametrize(("seconds", "expected"), [(30.0, 30_000), (0.0001, 1), (1.0001, 1_001), (0.0, 0), (2, 2_000)])
def test_milliseconds_are_whole_and_rounded_up(seconds, expected):
    result = milliseconds(seconds)
    assert result == expected
    assert type(result) is int


def test_renewal_is_due_a_third_of_the_lease_after_sending():
    assert renew_at(1000.0, 30.0) == 1010.0


@pytest.mark.parametrize("leave", [False, True])
def test_abandon_is_for_the_owners_lane_and_all_keys(toy, leave):
    effect = abandon(toy.keys, toy.owner, leave=leave, owed_to=0b101, owed_until=7.0)
    assert effect.command.script.name == "lock_abandon"
    assert effect.command.keys == toy.keys.all
    assert effect.command.args == (toy.owner.wire, int(leave))
    assert (effect.lane, effect.owner, effect.owed_to, effect.owed_until) == (toy.owner.lane, toy.owner, 0b101, 7.0)


# Losing.


def test_lose_ends_a_hold_once_on_all_nodes_and_says_so(toy):
    state = take(toy)
    toy.play(lose(state, "a reason"), *LOSS)
    assert state.lost == "a reason"
    assert not state.valid(0.0)
    (undo,) = toy.told
    assert undo.command.args == (toy.owner.wire, 0)
    assert undo.owed_to == ALL
    assert undo.owed_until == pytest.approx(1000.0 + LEASE)
    assert toy.events == [HoldLost(b"x", str(toy.owner), "a reason", state)]
    assert list(toy.session.holds) == [state], "its owner has yet to be told"
    toy.play(lose(state, "another reason"))
    assert state.lost == "a reason"


def test_lose_leaves_a_released_hold_alone(toy):
    state = take(toy)
    give_back(toy, state)
    toy.play(lose(state, "a reason"))
    assert state.lost is None


def test_lose_wakes_who_sleeps_until_the_end_before_it_tells(toy):
    state = take(toy)
    toy.start(sleep(toy, state, None))
    toy.play(lose(state, "a reason"), "tell lock_abandon", "signal", "notify HoldLost")


def test_loss_is_told_even_if_it_is_interrupted(make_toy):
    """Loss is loud: once `lost` is set, nobody else would tell it."""
    for at, cleanup in [(0, ["signal", "notify HoldLost"]), (1, ["notify HoldLost"])]:
        toy = make_toy()
        state = take(toy)
        toy.start(sleep(toy, state, None))
        script = ["tell lock_abandon", "signal", "notify HoldLost"]
        done = toy.interrupt(lose(state, "a reason"), script, at)
        assert [step for step in done if not step.startswith("tell")] == cleanup


# Renewing one hold.


def test_renew_asks_for_the_claim_as_it_is_now(toy):
    state = take(toy, holds=3)
    toy.now = 1010.0
    confirmed, tally = run_renew(toy, [state], ("ask lock_renew", codes(toy, *[OURS] * 5)))
    assert confirmed == [state]
    assert tally.won
    assert toy.commands[-1].keys == (b"redsync:x",)
    assert toy.commands[-1].args == (toy.owner.wire, 3, 30_000)
    effect = toy.asked[-1]
    assert (effect.lane, effect.owner, effect.fresh) == (toy.owner.lane, toy.owner, False)
    assert effect.timeout == 0.25


def test_renewal_counts_from_sending(toy):
    state = take(toy)
    toy.now = 1010.0
    run_renew(toy, [state], ("ask lock_renew", codes(toy, *[OURS] * 5, takes=0.2)))
    assert state.valid_until == pytest.approx(1010.0 + LEASE - DRIFT)
    assert state.renew_at == pytest.approx(1010.0 + LEASE / 3)


@pytest.mark.parametrize(
    "answers",
    [
        (OURS, OURS, OURS, OURS, OURS),
        (OURS, OURS, OURS, "down", "down"),
        (HEALED, HEALED, OURS, OURS, OURS),
        (THEIRS, FOREIGN, OURS, OURS, OURS),
        ("down", OURS, THEIRS, OURS, OURS),
    ],
)
def test_renewal_counts_with_a_quorum_of_existing(toy, answers):
    state = take(toy)
    toy.now = 1010.0
    confirmed, _ = run_renew(toy, [state], ("ask lock_renew", codes(toy, *answers)))
    assert confirmed == [state]
    assert state.lost is None
    assert state.valid_until == pytest.approx(1010.0 + LEASE - DRIFT)


@pytest.mark.parametrize(
    "answers",
    [
        (HEALED, HEALED, OURS, OURS, "down"),
        (HEALED, THEIRS, OURS, OURS, "down"),
        (OURS, OURS, "down", "down", "down"),
        ("down", "down", "down", "down", "down"),
        (HEALED, HEALED, "down", "down", "down"),
        (None, None, None, None, None),
    ],
)
def test_renewal_without_a_quorum_either_way_is_tried_again_soon(toy, answers):
    state = take(toy)
    before = state.valid_until
    toy.now = 1010.0
    confirmed, _ = run_renew(toy, [state], ("ask lock_renew", codes(toy, *answers)))
    assert confirmed == []
    assert state.lost is None
    assert state.valid_until == before, "healed nodes do not count"
    assert toy.now < state.renew_at <= toy.now + 1.0


@pytest.mark.parametrize(
    "answers",
    [
        (HEALED, HEALED, HEALED, OURS, OURS),
        (THEIRS, THEIRS, THEIRS, "down", "down"),
        (FOREIGN, THEIRS, HEALED, OURS, OURS),
        (HEALED, HEALED, HEALED, HEALED, HEALED),
    ],
)
def test_hold_that_too_many_nodes_no_longer_keep_is_lost_at_once(toy, answers):
    state = take(toy)
    toy.now = 1010.0
    confirmed, _ = run_renew(toy, [state], ("ask lock_renew", codes(toy, *answers)), *LOSS)
    assert confirmed == []
    assert "3 of 5 nodes" in state.lost
    assert not state.valid(toy.now)


def test_healed_claims_of_a_lost_hold_are_undone(toy):
    """Also on the nodes that did not keep it before: the renewal has just created claims there."""
    steps = acquire(toy.session, toy.demand(), toy.now)
    state = toy.play(steps, ("ask lock_acquire", toy.answers(1, 1, 1, "down", "down", sent=0b00111)))
    answers = codes(toy, HEALED, HEALED, "down", HEALED, None, sent=0b11011)
    run_renew(toy, [state], ("ask lock_renew", answers), *LOSS)
    assert toy.told[-1].owed_to == ALL


@pytest.mark.parametrize("n", range(1, 8))
def test_renewal_is_decided_as_a_dumb_count_does(make_toy, n):
    seed = random.randrange(2**32)
    print("seed", seed)
    rng = random.Random(seed)
    quorum = n // 2 + 1
    for _ in range(200):
        toy = make_toy(n)
        state = take(toy)
        toy.now = 1010.0
        answers = [rng.choice([OURS, OURS, OURS, HEALED, THEIRS, FOREIGN, "down"]) for _ in range(n)]
        ours, failed = answers.count(OURS), answers.count("down")
        lost = n - ours - failed > n - quorum
        script = [("ask lock_renew", codes(toy, *answers)), *(LOSS if lost else ())]
        confirmed, _ = run_renew(toy, [state], *script)
        assert confirmed == ([state] if ours >= quorum else []), answers
        assert (state.lost is not None) == lost, answers


@pytest.mark.parametrize("answers", [[OURS] * 5, ["down"] * 5, [HEALED] * 5])
def test_renewal_answered_after_the_old_end_is_lost(toy, answers):
    """Never won back: others may have held it in between."""
    state = take(toy)
    toy.now = state.valid_until - 0.01
    confirmed, _ = run_renew(toy, [state], ("ask lock_renew", codes(toy, *answers, takes=0.01)), *LOSS)
    assert confirmed == []
    assert state.lost
    assert state.valid_until == pytest.approx(1000.0 + LEASE - DRIFT)


def test_renewal_answered_in_the_last_instant_counts(toy):
    state = take(toy)
    toy.now = state.valid_until - 0.01
    confirmed, _ = run_renew(toy, [state], ("ask lock_renew", codes(toy, *[OURS] * 5, takes=0.009)))
    assert confirmed == [state]


def test_renewal_never_outlasts_max_hold(toy):
    state = take(toy, max_hold=35.0)
    toy.now = 1010.0
    run_renew(toy, [state], ("ask lock_renew", codes(toy, *[OURS] * 5)))
    assert state.valid_until == pytest.approx(1035.0)


def test_renewal_never_shortens_what_was_extended(toy):
    state = take(toy)
    run_renew(toy, [state], ("ask lock_renew", codes(toy, *[OURS] * 5)), lease_of=lambda _: 600.0)
    extended = state.valid_until
    assert extended == pytest.approx(toy.now - 0.001 + 600.0 - 6.002)
    toy.now = 1010.0
    run_renew(toy, [state], ("ask lock_renew", codes(toy, *[OURS] * 5)))
    assert state.valid_until == extended


def test_renewal_of_an_unrenewed_hold_does_not_begin_to_renew_it(toy):
    state = take(toy, lease=2.0)
    run_renew(toy, [state], ("ask lock_renew", codes(toy, *[OURS] * 5)))
    assert state.renew_at == math.inf
    run_renew(toy, [state], ("ask lock_renew", codes(toy, *["down"] * 5)))
    assert state.renew_at == math.inf


def test_renewal_counts_on_every_node_to_keep_the_claim(toy):
    """Also on those it was not sent to: what was noted before the sending is never taken back."""
    steps = acquire(toy.session, toy.demand(), toy.now)
    state = toy.play(steps, ("ask lock_acquire", toy.answers(1, 1, 1, "down", "down", sent=0b00111)))
    run_renew(toy, [state], ("ask lock_renew", codes(toy, OURS, OURS, OURS, HEALED, "down", sent=0b01111)))
    assert state.touched == toy.session.all_nodes


@pytest.mark.parametrize("garbage", [[], [2, 2], None, "text", 2, [b"2"], ["2"], [2.0], [None], {}])
def test_renewal_answered_by_garbage_is_no_answer(toy, garbage):
    state = take(toy)
    toy.now = 1010.0
    effect = toy.start(renew(toy.session, [state]))
    with pytest.raises((TypeError, ValueError)):
        effect.judge(garbage)


# Renewing and releasing exclude each other.


def test_renewal_composed_after_a_release_began_leaves_the_hold_out(toy):
    state, other = take(toy, b"x"), take(toy, b"y")
    steps = renew(toy.session, [state, other])
    effect = next(steps)
    toy.start(release(toy.session, state, toy.now))
    command = effect.command()
    assert command.keys == (b"redsync:y",)
    assert command.args == (toy.owner.wire, 1, 30_000)
    toy.commands.append(command)
    tally = toy.perform(effect, codes(toy, *[OURS] * 5))
    with pytest.raises(StopIteration) as stop:
        steps.send(tally)
    assert stop.value.value[0] == [other]


def test_renewal_of_nothing_but_released_holds_is_not_sent(toy):
    state = take(toy)
    steps = renew(toy.session, [state])
    effect = next(steps)
    give_back(toy, state)
    assert effect.command() is None
    toy.commands.append(None)
    tally = toy.perform(effect, codes(toy, *[None] * 5, sent=0))
    with pytest.raises(StopIteration) as stop:
        steps.send(tally)
    assert stop.value.value[0] == []
    assert state.lost is None


def test_renewal_composed_after_a_loss_leaves_the_hold_out(toy):
    state = take(toy)
    steps = renew(toy.session, [state])
    effect = next(steps)
    toy.play(lose(state, "a reason"), *LOSS)
    assert effect.command() is None
    toy.commands.append(None)
    with pytest.raises(StopIteration):
        steps.send(toy.perform(effect, codes(toy, *[None] * 5, sent=0)))


def test_renewal_takes_in_the_count_of_the_instant_of_sending(toy):
    state = take(toy)
    steps = renew(toy.session, [state])
    effect = next(steps)
    state.count = 7
    assert effect.command().args[1] == 7
    toy.commands.append(effect.command())
    with pytest.raises(StopIteration):
        steps.send(toy.perform(effect, codes(toy, *[OURS] * 5)))


def test_hold_released_while_its_renewal_travels_is_neither_renewed_nor_lost(toy):
    state = take(toy)
    toy.now = 1010.0
    before = state.valid_until
    answers = codes(toy, *[THEIRS] * 5, meanwhile=lambda: give_back(toy, state))
    confirmed, _ = run_renew(toy, [state], ("ask lock_renew", answers))
    assert confirmed == []
    assert state.lost is None
    assert state.valid_until == before


def test_hold_lost_while_its_renewal_travels_stays_lost(toy):
    state = take(toy)
    toy.now = 1010.0
    before = state.valid_until

    def lose_it():
        toy.play(lose(state, "a reason"), *LOSS)

    confirmed, _ = run_renew(toy, [state], ("ask lock_renew", codes(toy, *[OURS] * 5, meanwhile=lose_it)))
    assert confirmed == []
    assert state.lost == "a reason"
    assert state.valid_until == before


# Renewing many holds.


def test_renewal_settles_many_holds_each_by_itself(toy):
    names = [b"kept", b"lost", b"unsure", b"also kept"]
    kept, lost, unsure, also = holds = [take(toy, name) for name in names]
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
    one, other = holds = [take(toy, b"one"), take(toy, b"other")]
    answers = toy.answers([2, 2], [2, 1], [2, 1], [2, 2], [2, 2])
    confirmed, tally = run_renew(toy, holds, ("ask lock_renew", answers))
    assert confirmed == [one, other]
    assert None not in tally.choices, "the last node decided about the other"
    decided_early = toy.answers([2, 2], [2, 2], [2, 2], None, None)
    _, tally = run_renew(toy, holds, ("ask lock_renew", decided_early))
    assert tally.choices.count(Choice.GRANTED) == 3
    assert tally.at == tally.sent_at + 0.001, "nobody was waited for"


def test_renewal_waits_no_longer_than_its_shortest_lease_allows(toy):
    long, short = take(toy, b"long"), take(toy, b"short", lease=2.0)
    run_renew(toy, [long, short], ("ask lock_renew", toy.answers(*[[2, 2]] * 5)))
    assert toy.asked[-1].timeout == pytest.approx(0.1)
    assert toy.commands[-1].args == (toy.owner.wire, 1, 30_000, toy.owner.wire, 1, 2_000)


def test_several_losses_in_one_renewal_are_all_told(toy):
    holds = [take(toy, b"a"), take(toy, b"b")]
    run_renew(toy, holds, ("ask lock_renew", toy.answers(*[[0, 0]] * 5)), *LOSS, *LOSS)
    assert [event.state for event in toy.events] == holds


# The watchdog.


class Watch:
    """Answers a watchdog; stops it at its so-manyth sleep."""

    def __init__(self, toy, answer, sleeps):
        self.toy, self.answer, self.sleeps = toy, answer, sleeps
        self.steps = []

    def __call__(self, described, effect):
        self.steps.append(described)
        if isinstance(effect, Wait):
            self.sleeps -= 1
            if not self.sleeps:
                return Stop()
            return self.toy.slept()
        if isinstance(effect, Broadcast):
            command = self.toy.commands[-1]
            return self.toy.answers(*[self.answer(command)] * self.toy.n)
        return None


class Stop(BaseException):
    pass


def all_ours(command):
    return [OURS] * len(command.keys)


def run_watchdog(toy, answer=all_ours, sleeps=1):
    watch = Watch(toy, answer, sleeps)
    with pytest.raises(Stop):
        toy.drive(watchdog(toy.session, toy.now), watch)
    return watch.steps


def test_watchdog_without_holds_sleeps_until_it_is_called(toy):
    assert run_watchdog(toy) == ["wait"]
    assert toy.waits[0].until == math.inf
    assert toy.waits[0].key is None


def test_watchdog_sleeps_until_the_next_renewal_is_due(toy):
    state = take(toy)
    assert run_watchdog(toy) == ["wait"]
    assert toy.waits[-1].until == state.renew_at
    assert toy.session.holds.watched_until == state.renew_at


def test_watchdog_renews_every_third_of_the_lease(toy):
    state = take(toy)
    steps = run_watchdog(toy, sleeps=4)
    assert steps == ["wait", "ask lock_renew", "wait", "ask lock_renew", "wait", "ask lock_renew", "wait"]
    assert [tally.sent_at for tally in toy.tallies[1:]] == pytest.approx([1010.0, 1020.0, 1030.0])
    assert state.valid_until == pytest.approx(1030.0 + LEASE - DRIFT)


def test_watchdog_does_not_renew_a_lease_that_was_given(toy):
    state = take(toy, lease=2.0)
    steps = run_watchdog(toy, sleeps=2)
    assert steps == ["wait", *LOSS, "wait"]
    assert toy.waits[0].until == state.valid_until
    assert toy.told[0].owed_to == ALL
    assert state.lost
    assert toy.events[0].state is state
    assert toy.waits[-1].until == math.inf, "a lost hold is told once"


def test_watchdog_retries_silence_and_gives_up_when_the_validity_is_over(toy):
    state = take(toy)

    def answer(described, effect):
        if described == "wait":
            return toy.slept() if state.lost is None else Stop()
        return codes(toy, *["down"] * 5) if described == "ask lock_renew" else None

    with pytest.raises(Stop):
        toy.drive(watchdog(toy.session, toy.now), answer)
    end = 1000.0 + LEASE - DRIFT
    assert end <= toy.now <= end + 0.01, "lost at the end of its validity, neither earlier nor later"
    asked = [tally.sent_at for tally in toy.tallies[1:]]
    assert asked[0] == pytest.approx(1010.0)
    assert all(0 < later - earlier <= 1.3 for earlier, later in pairwise(asked))
    assert len(asked) < 200
    assert toy.events[-1] == HoldLost(b"x", str(toy.owner), state.lost, state)


def test_watchdog_loses_at_once_what_nodes_no_longer_keep(toy):
    state = take(toy)
    steps = run_watchdog(toy, lambda command: [THEIRS], sleeps=2)
    assert steps == ["wait", "ask lock_renew", *LOSS, "wait"]
    assert toy.now == pytest.approx(1010.0, abs=0.01)
    assert state.lost


def test_watchdog_keeps_a_hold_over_a_rolling_restart(toy):
    """Healed nodes count from the next renewal on, so a node at a time may forget."""
    state = take(toy)
    rounds = iter(
        [[HEALED, 2, 2, 2, 2], [2, HEALED, 2, 2, 2], [2, 2, HEALED, 2, 2], [2, 2, 2, HEALED, 2], [2, 2, 2, 2, HEALED]]
    )

    def answer(described, effect):
        if described == "wait":
            return toy.slept() if len(toy.asked) < 6 else Stop()
        return codes(toy, *next(rounds))

    with pytest.raises(Stop):
        toy.drive(watchdog(toy.session, toy.now), answer)
    assert state.valid(toy.now + 20.0)


def test_watchdog_ends_a_hold_when_max_hold_is_over(toy):
    state = take(toy, max_hold=25.0)
    steps = run_watchdog(toy, sleeps=4)
    assert steps == ["wait", "ask lock_renew", "wait", "ask lock_renew", "wait", *LOSS, "wait"]
    assert toy.now == pytest.approx(1025.0)
    assert "max_hold" in state.lost


def test_watchdog_batches_what_is_due_by_lane(toy):
    owners = [toy.owner, *[toy.new_owner() for _ in range(2 * LANES - 1)]]
    states = [take(toy, b"lock %d" % i, owner=owner) for i, owner in enumerate(owners)]
    toy.now = 1010.5
    steps = run_watchdog(toy)
    assert steps == [*["ask lock_renew"] * LANES, "wait"]
    renewals = toy.asked[len(states) :]
    assert sorted(effect.lane for effect in renewals) == list(range(LANES))
    for effect, command in zip(renewals, toy.commands[len(states) :], strict=True):
        expected = [state for state in states if state.owner.lane == effect.lane]
        assert command.keys == tuple(state.keys.lock for state in expected)
        assert effect.owner is None, "it is on behalf of several owners"


def test_watchdog_sends_no_more_than_200_claims_in_a_command(toy):
    for i in range(450):
        take(toy, b"lock %d" % i)
    toy.now = 1010.5
    run_watchdog(toy, sleeps=1)
    sizes = [len(command.keys) for command in toy.commands if command.script.name == "lock_renew"]
    assert sorted(sizes) == [50, 200, 200]


def test_watchdog_takes_along_what_is_due_soon(toy):
    first, soon, later = take(toy, b"first"), take(toy, b"soon"), take(toy, b"later")
    soon.renew_at = first.renew_at + LEASE / 13
    later.renew_at = first.renew_at + LEASE / 11
    run_watchdog(toy, sleeps=2)
    assert toy.commands[-1].keys == (b"redsync:first", b"redsync:soon")
    assert toy.waits[-1].until == later.renew_at


def test_watchdog_sends_nothing_while_all_is_only_due_soon(toy):
    state = take(toy)
    toy.now = state.renew_at - 0.01
    assert run_watchdog(toy) == ["wait"]
    assert toy.waits[-1].until == state.renew_at


def test_watchdog_called_early_goes_to_sleep_again(toy):
    state = take(toy)
    sleeps = []

    def answer(described, effect):
        assert described == "wait"
        sleeps.append(effect.until)
        return toy.slept(0.5) if len(sleeps) < 4 else Stop()

    with pytest.raises(Stop):
        toy.drive(watchdog(toy.session, toy.now), answer)
    assert sleeps == [state.renew_at] * 4


def test_watchdog_takes_up_what_was_acquired_while_it_slept(toy):
    states = []

    def answer(described, effect):
        if described == "ask lock_renew":
            return codes(toy, *[OURS] * 5)
        if states:
            return Stop() if len(toy.asked) == 2 else toy.slept()
        return toy.slept(5.0, meanwhile=lambda: states.append(take(toy)))

    with pytest.raises(Stop):
        toy.drive(watchdog(toy.session, toy.now), answer)
    assert toy.alarms == 1
    assert toy.tallies[-1].sent_at == pytest.approx(1010.0)
    assert states[0].valid_until == pytest.approx(1010.0 + LEASE - DRIFT)


def test_watchdog_leaves_alone_what_is_released_while_it_works(make_toy, monkeypatch):
    monkeypatch.setattr(ownership, "LANES", 2)
    toy = make_toy()
    states = [take(toy, b"a"), take(toy, b"b", owner=toy.new_owner())]
    toy.now = 1010.5

    def answer(described, effect):
        if described == "wait":
            return Stop()
        if len(states) == 2:
            gone = states.pop()
            return codes(toy, *[OURS] * 5, meanwhile=lambda: give_back(toy, gone))
        return toy.answers(*["nothing"] * 5, sent=0)

    with pytest.raises(Stop):
        toy.drive(watchdog(toy.session, toy.now), answer)
    assert toy.commands[-1] is None, "the second lane's command had nothing left to say"
    assert list(toy.session.holds) == states
    assert toy.events == []


def test_watchdog_tells_several_losses_and_goes_on(toy):
    gone = [take(toy, b"a", lease=2.0), take(toy, b"b", lease=2.0)]
    kept = take(toy, b"c")
    toy.now = 1010.5
    steps = run_watchdog(toy)
    assert steps == [*LOSS, *LOSS, "ask lock_renew", "wait"]
    assert [event.state for event in toy.events] == gone
    assert kept.valid(toy.now + 25)


def test_watchdog_never_renews_what_has_expired(toy):
    """The process was stopped for longer than the lease."""
    state = take(toy)
    toy.now = state.valid_until
    assert run_watchdog(toy) == [*LOSS, "wait"]
    assert not any(command.script.name == "lock_renew" for command in toy.commands)


def test_lost_hold_keeps_no_watchdog_busy(toy):
    state = take(toy)
    toy.play(lose(state, "a reason"), *LOSS)
    toy.now = 5000.0
    assert run_watchdog(toy) == ["wait"]
    assert toy.waits[-1].until == math.inf


# Waiting for the end.


def test_wait_end_sleeps_until_the_validity_is_over_and_tells_the_loss(toy):
    state = take(toy, lease=2.0)
    end = state.valid_until
    toy.play(sleep(toy, state, None), ("wait for end", toy.slept()), *LOSS)
    assert toy.waits[0].until == end
    assert toy.waits[0].key == state.end_key
    assert toy.waits[0].lane == state.owner.lane
    assert state.lost
    assert state.watchers == 0


def test_wait_end_returns_at_its_timeout(toy):
    state = take(toy)
    toy.play(sleep(toy, state, 0.5), ("wait for end", toy.slept()))
    assert toy.now == pytest.approx(1000.501)
    assert state.lost is None
    assert state.watchers == 0


def test_wait_end_goes_on_while_the_hold_is_renewed(toy):
    state = take(toy)

    def renewed():
        state.lengthen(2000.0)

    toy.play(
        sleep(toy, state, 60.0),
        ("wait for end", toy.slept(meanwhile=renewed)),
        ("wait for end", toy.slept()),
    )
    assert toy.now == pytest.approx(1060.001)


def test_wait_end_returns_when_the_hold_is_released(toy):
    state = take(toy)

    def released():
        toy.play(release(toy.session, state, toy.now), ("ask lock_release", toy.answers(*[1] * 5)), "signal")

    toy.play(sleep(toy, state, None), ("wait for end", toy.slept(0.1, meanwhile=released)))
    assert state.lost is None


def test_wait_end_returns_when_this_acquisition_is_released_though_others_are_not(toy):
    state, done = take(toy, holds=2), []

    def released():
        done.append(True)
        toy.play(release(toy.session, state, toy.now), ("ask lock_release", toy.answers(*[1] * 5)), "signal")

    steps = sleep(toy, state, released=lambda: bool(done))
    toy.play(steps, ("wait for end", toy.slept(0.1, meanwhile=released)))
    assert state.valid(toy.now)
    assert state.lost is None


def test_wait_end_goes_on_when_another_acquisition_is_released(toy):
    state = take(toy, holds=2)

    def released():
        toy.play(release(toy.session, state, toy.now), ("ask lock_release", toy.answers(*[1] * 5)), "signal")

    steps = sleep(toy, state, 0.5)
    toy.play(steps, ("wait for end", toy.slept(0.1, meanwhile=released)), ("wait for end", toy.slept()))
    assert state.watchers == 0


def test_wait_end_of_a_released_acquisition_does_not_sleep(toy):
    state = take(toy, holds=2)
    toy.play(sleep(toy, state, released=lambda: True))
    assert state.lost is None


def test_wait_end_of_a_released_acquisition_tells_no_loss_of_the_others(toy):
    """That is told to who holds them: by the watchdog, or when they are used."""
    state = take(toy, holds=2, lease=2.0)
    toy.now = state.valid_until
    toy.play(sleep(toy, state, released=lambda: True))
    assert state.lost is None


def test_wait_end_of_what_has_ended_does_not_sleep(toy):
    lost, released = take(toy, b"a"), take(toy, b"b")
    toy.play(lose(lost, "a reason"), *LOSS)
    give_back(toy, released)
    for state in (lost, released):
        toy.play(sleep(toy, state, None))
    assert toy.waits == []


def test_wait_end_looks_again_when_the_driver_has_begun_to_listen(toy):
    """A signal that was given before that instant is not heard."""
    state = take(toy)
    effect = toy.start(sleep(toy, state, None))
    assert effect.unless() is False
    state.lost = "a reason"
    assert effect.unless() is True
    state.lost, state.live = None, False
    assert effect.unless() is True


def test_wait_end_interrupted_leaves_no_watcher(toy):
    state = take(toy)
    toy.interrupt(sleep(toy, state, None), [("wait for end", toy.slept())], 0)
    assert state.watchers == 0
    give_back(toy, state)


def test_all_who_sleep_are_woken_by_one_signal(toy):
    state = take(toy)
    for _ in range(3):
        toy.start(sleep(toy, state, None))
    assert state.watchers == 3
    toy.play(lose(state, "a reason"), "tell lock_abandon", "signal", "notify HoldLost")


# All together.


class ForgetfulNodes:
    """Nodes that keep a claim until `expiry`, unless they forget it before, and are down now and then."""

    def __init__(self, toy, state, rng):
        self.toy, self.state, self.rng = toy, state, rng
        self.harm = rng.choice([0.0, 0.05, 0.3])
        self.expiry = [1000.0 + LEASE] * toy.n
        self.kept = toy.n
        self.believed = state.valid_until

    def says(self, node):
        if self.rng.random() < self.harm:
            self.expiry[node] = 0.0
        if self.rng.random() < self.harm:
            return "down"
        ours = self.expiry[node] > self.toy.now
        self.kept += ours
        self.expiry[node] = self.toy.now + LEASE
        return OURS if ours else HEALED

    def __call__(self, described, effect):
        if described == "ask lock_renew":
            self.kept = 0
            return codes(self.toy, *[self.says(node) for node in range(self.toy.n)])
        if described == "wait":
            if self.state.valid_until != self.believed:
                # Longer than before: only if a quorum had kept it, which now keeps it for longer than we believe.
                self.believed = self.state.valid_until
                assert self.kept >= self.toy.n // 2 + 1
                assert sum(end > self.believed for end in self.expiry) >= self.toy.n // 2 + 1
            return self.toy.slept() if self.state.lost is None and len(self.toy.asked) < 20 else Stop()
        return None


def test_hold_is_believed_only_while_a_quorum_of_nodes_keeps_it(make_toy):
    """A random life of one hold over nodes that forget it and are down, checked against a plain model."""
    seed = random.randrange(2**32)
    print("seed", seed)
    lives = set()
    for i in range(300):
        rng = random.Random(seed + i)
        print("life", i)
        toy = make_toy(rng.choice([1, 3, 4, 5]))
        state = take(toy)
        with pytest.raises(Stop):
            toy.drive(watchdog(toy.session, toy.now), ForgetfulNodes(toy, state, rng))
        if state.lost is not None:
            assert isinstance(toy.effects[-2], Notify)
            with pytest.raises(LeaseLostError):
                toy.play(release(toy.session, state, toy.now))
        lives.add(state.lost is None)
    assert lives == {True, False}


def test_release_that_overtakes_the_answer_of_a_renewal_is_owed_to_whom_it_may_have_healed(toy):
    """A node that had no claim may be healed by the renewal and lose its connection before the release arrives."""
    state = take(toy)
    state.touched = 0b00111
    run_renew(toy, [state], ("ask lock_renew", codes(toy, *[OURS] * 5, meanwhile=lambda: give_back(toy, state))))
    released = next(effect for effect in toy.asked if effect.owed_to)
    assert released.owed_to == 0b11111
