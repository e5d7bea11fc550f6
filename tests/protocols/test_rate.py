"""The rate limiter: its asks, its leftovers, and when the next success is possible."""

import math

import pytest

from redsync._core.permits import Limit, SlotKeys
from redsync._protocols import rate as protocol
from redsync._protocols.semaphore import Pool
from redsync._protocols.windows import Window
from redsync.exceptions import ConfigurationError, QuorumError
from tests.support.slots import V1, got

ASK = "ask semaphore_acquire for a place"
UNDO = "tell semaphore_abandon, stay"
LEAVE = "tell semaphore_abandon"
CONFIRM = "tell semaphore_confirm"
CLOCK = "wait"
"""A look at the clock."""
LOOK = "ask semaphore_inspect"
NEEDED = b"1012.939"
"""Milliseconds that nodes must keep a slot from the instant at which its round is over: 1.01 * 1.0029 s + 10 us."""
FULL = [700, b"full", 0, 0, b""]


class Limiter:
    """A toy client's rate limiter of 3 per second."""

    def __init__(self, toy, rate=3):
        self.toy = toy
        self.keys = SlotKeys.of(b"redsync:", b"x")
        self.pool = Pool("x", self.keys, Limit(rate, 1_000_000))
        self.rates = [protocol.Rate(self.pool, Window(1.0, toy.session.timing))]

    def steps(self, n=1, timeout=0.0):
        toy, owner = self.toy, self.toy.new_owner()
        request = toy.request(kind=protocol.RATE, keys=self.keys, owner=owner, timeout=timeout, holds=n)
        return protocol.acquire(toy.session, request, toy.now, self.rates)

    def play(self, *script, n=1, timeout=0.0):
        return self.toy.play(self.steps(n, timeout), *script)

    def retry_after(self, *looks, n=1):
        toy = self.toy
        steps = protocol.retry_after(toy.session, self.rates, toy.new_owner(), n)
        return toy.play(steps, (LOOK, toy.answers(*looks)))


def look(*left_ms, rate=3, per_us=1_000_000, awaited=0, first=0):
    """Return the look of a node whose slots are taken from `first` on, for that long."""
    bits = sum(1 << (7 - first - i) for i in range(len(left_ms)))
    holders = [[b"c:%d" % (first + i), b"%d" % (first + i), left, b""] for i, left in enumerate(left_ms)]
    return [0, rate, bytes([bits]), holders, per_us, awaited, 1_700_000_000_000]


@pytest.fixture
def toy(make_toy):
    """On three nodes, starting from slot 0."""
    return make_toy(3, random=0.0)


@pytest.fixture
def limiter(toy):
    return Limiter(toy)


def success(limiter, *answers, **how):
    """Return the steps of a round in time, all of whose nodes answer alike if there is one answer."""
    toy = limiter.toy
    replies = toy.all_say(*answers, **how) if len(answers) == 1 else toy.answers(*answers, **how)
    return (ASK, replies), CONFIRM, (CLOCK, toy.slept())


def served(limiter, *answers):
    """Return the steps of such a round for a waiter, whose place ends."""
    ask, confirm, clock = success(limiter, *answers)
    return ask, LEAVE, confirm, clock


def late(limiter, seconds, *answers, place=()):
    """Return the steps of a round after which it took that long to tell nodes; `place`: how a place ends before."""
    toy = limiter.toy
    ask, confirm, _ = success(limiter, *(answers or (got(0),)))
    return ask, *place, confirm, (CLOCK, toy.slept(meanwhile=lambda: toy.pass_time(seconds))), UNDO


def refused(limiter, sleeps=0.1):
    """Return the steps of a waiter up to the end of its first sleep; None: that lasts as long as it may."""
    toy = limiter.toy
    return (ASK, toy.all_say(FULL)), (ASK, toy.all_say(FULL)), ("wait for wake-up", toy.slept(sleeps))


def told_to_keep(limiter):
    """Return for how many seconds each message of a success lets nodes keep its slots."""
    return [
        float(command.args[2]) / 1000 for command in limiter.toy.commands if command.script.name.endswith("confirm")
    ]


def test_success_leaves_no_hold_and_is_kept_for_more_than_the_window(toy, limiter):
    assert limiter.play(*success(limiter, got(0), got(0), None))
    ask, confirm = toy.commands
    assert ask.args[2] > 1_000 + 500, "however long its round takes"
    assert ask.args[7:] == (0, 3, b"", 0, 1_000_000)
    assert confirm.args == (ask.args[0], b"0", NEEDED)
    assert toy.told[-1].deliver_to == 0, "a node that hangs does not have to know"
    assert len(toy.session.holds) == 0


def test_late_round_is_repeated(toy, limiter):
    assert limiter.play((ASK, toy.all_say(got(0), takes=0.7)), *success(limiter, got(0)))
    first, second, _ = toy.commands
    assert first.args[0] == second.args[0]
    assert second.args[9] == b"0", "the same slots"


def test_late_round_with_a_place_is_repeated_with_another_claim_if_a_node_may_execute_it_later(toy, limiter):
    """Over an abandoned connection: if others wait there, the node would drop the slots that it has granted since."""
    late = ASK, toy.answers(got(0), got(0), "down", takes=0.7)
    script = *refused(limiter, 0.1), late, UNDO, UNDO, *served(limiter, got(0))
    assert limiter.play(*script, timeout=5.0)
    *_, first, _, _, second, _, _ = toy.commands
    assert first.args[0] != second.args[0]


def test_rounds_that_are_always_late_are_rolled_back_and_raise(toy, limiter):
    late = ASK, toy.all_say(got(0), takes=0.7)
    with pytest.raises(QuorumError, match="answered too late"):
        limiter.play(late, late, UNDO, late, UNDO, late, LEAVE)


def test_slow_nodes_do_not_make_them_keep_later_successes_longer(toy, limiter):
    for _ in range(2):
        assert limiter.play(*success(limiter, got(0), takes=0.4))
    first, second = told_to_keep(limiter)
    assert first == second


def test_several_slots_are_won_one_by_one(toy, limiter):
    """Nothing renews them, and a node that keeps others for the success continues."""
    assert limiter.play(*success(limiter, got(0, 1), got(1, 2), got(2, 0)), n=2)
    assert toy.commands[-1].args[1] == b"0,1"


def test_waiter_sleeps_until_its_turn_may_have_come(toy, limiter):
    assert limiter.play(*refused(limiter, None), (ASK, toy.all_say(FULL)), LEAVE, timeout=0.702) is None
    assert toy.waits[0].until == pytest.approx(1000.701), "an ask as quick as the last one is in time"


def test_success_of_a_waiter_tells_nodes_its_slots_until_they_know(toy, limiter):
    last = served(limiter, got(0, 1), got(0, 1), got(1, 2))
    assert limiter.play(*refused(limiter), *last, n=2, timeout=5.0)
    left, confirmed = toy.told
    assert confirmed.command.args[1:] == (b"0,1", NEEDED)
    assert confirmed.deliver_to == 0, "a node that got it late would keep the slots from then on"
    assert left.deliver_to == 0b111, "a node that hangs keeps the place"
    assert left.command.args[0] != confirmed.command.args[0], "it ends no claim"


def test_node_that_granted_another_slot_or_none_learns_the_right_one(limiter):
    for other in (got(1), FULL):
        assert limiter.play(*success(limiter, other, got(0), got(0)))
        assert limiter.toy.told[-1].command.args[1:] == (b"0", NEEDED)


@pytest.mark.parametrize("at", range(4))
def test_interruption_before_the_success_rolls_everything_back(toy, limiter, at):
    script = *refused(limiter), (ASK, toy.answers(got(0), FULL, FULL))
    assert toy.interrupt(limiter.steps(timeout=5.0), script, at) == [LEAVE]


@pytest.mark.parametrize("at", [1, 2])
def test_interruption_while_nodes_are_told_of_a_round_that_does_not_count_yet_rolls_it_back(toy, limiter, at):
    assert toy.interrupt(limiter.steps(), success(limiter, got(1), got(0), got(0)), at) == [LEAVE]


@pytest.mark.parametrize("timeout", [0.0, 5.0])
def test_round_after_which_nodes_were_told_too_slowly_is_repeated_with_another_claim_for_longer(limiter, timeout):
    """Else the message might shorten the second claim, if it came after that ask."""
    slow = late(limiter, 0.003, got(1), got(0), got(0))
    assert limiter.play(*slow, *success(limiter, got(0)), timeout=timeout)
    first, confirm, undo, second, _ = limiter.toy.commands
    assert first.args[0] == confirm.args[0] == undo.args[0] != second.args[0]
    assert second.args[9] == b"0", "the same slots"
    assert second.args[2] > first.args[2]


def test_one_pause_of_the_process_keeps_no_slot_longer_than_retry_after_says(limiter):
    assert limiter.play(*late(limiter, 4.0), *success(limiter, got(0)))
    before, after = told_to_keep(limiter)
    assert before < after < limiter.rates[0].window.room_after(math.inf)
    assert limiter.play(*success(limiter, got(1)))
    assert told_to_keep(limiter)[2] == before, "the next success does not pay for it"


def test_waiter_that_was_told_of_too_slowly_keeps_its_place(limiter):
    script = *refused(limiter), *late(limiter, 0.003, place=[LEAVE]), UNDO, *served(limiter, got(0))
    assert limiter.play(*script, timeout=5.0)
    _, back, *_ = [command.args for command in limiter.toy.commands if command.script.name == "semaphore_abandon"]
    assert back[2:6] == (1, 0, 3000, 1), "the rollback restores it"


def test_rollback_after_slow_telling_is_pending_for_nodes_that_only_the_message_may_have_reached(toy, limiter):
    no, yes = ((ASK, toy.answers(answer, answer, None, sent=0b011)) for answer in (FULL, got(0)))
    slow = yes, LEAVE, CONFIRM, (CLOCK, toy.slept(meanwhile=lambda: toy.pass_time(0.003))), UNDO, UNDO
    script = no, no, ("wait for wake-up", toy.slept(0.1)), *slow, yes, LEAVE, CONFIRM, (CLOCK, toy.slept())
    assert limiter.play(*script, timeout=5.0)
    assert [told.deliver_to for told in toy.told] == [0b111, 0, 0, 0b111, 0b111, 0]


LONGEST = 1.015
"""The window, its drift and 5 ms, whichever client took the slots: another one may have asked for more allowance."""
SILENT = [0, 3, bytes([0b1110_0000]), [], 1_000_000, 0, 1_700_000_000_000]
"""The look of a node that reports no expiries."""


@pytest.mark.parametrize(
    ("looks", "n", "seconds"),
    [
        pytest.param([look(), look(5, 5, 5), look(5)], 1, 0.0, id="free on a quorum"),
        pytest.param([look(100, 200, 300), look(110, 190, 310), look(120, 210, 290)], 1, 0.1111, id="one soon"),
        pytest.param([look(100, 200, 300), look(110, 190, 310), "down"], 2, 0.202, id="two a little later"),
        pytest.param([look(500, 600), look(400, 300, first=1), "down"], 1, 0.303, id="another one is free on each"),
        # At 74 ms slot 0 is free on two nodes, and so is slot 2, but not on the same ones.
        pytest.param([look(74), look(81), look(91, first=2)], 3, 0.08181, id="several on one quorum"),
        pytest.param([look(1016, 1016, 1016)] * 3, 1, LONGEST, id="taken a moment ago"),
        pytest.param([look(1200, 1200, 1200)] * 3, 1, LONGEST, id="taken with a long allowance"),
        pytest.param([look(100, 200, 300, awaited=1)] * 3, 1, 0.202, id="a waiter is served first"),
        # All that is taken now has run out by then. If more wait than one window serves, that is when to ask again.
        pytest.param([look(990, 990, 990, awaited=1)] * 3, 1, 0.9999, id="one more waits"),
        pytest.param([look(100, 100, 100, awaited=9)] * 3, 1, LONGEST, id="more wait than a window serves"),
        pytest.param([SILENT] * 3, 1, LONGEST, id="expiries are unknown"),
        # After the rate was lowered, slots beyond it take the place of others.
        pytest.param([look(100, 200, 300, 400, 500)] * 3, 1, 0.303, id="two beyond the rate"),
        pytest.param([look(100, 200, 300, 400, 500)] * 3, 2, 0.404, id="two beyond the rate, for two"),
        pytest.param([look(100, 200, first=3)] * 3, 1, 0.0, id="two beyond the rate leave one place"),
        pytest.param([look(100, 200, first=3), look(100, 200, first=3), look()], 2, 0.101, id="beyond it on most"),
    ],
)
def test_retry_after_is_when_a_quorum_has_the_same_slots(limiter, looks, n, seconds):
    assert limiter.retry_after(*looks, n=n) == pytest.approx(seconds)


def test_retry_after_asks_for_as_many_slots_as_many_waiters_will_take(make_toy):
    limiter = Limiter(toy := make_toy(3, random=0.0), rate=88)

    def all_list(count):
        holders = [[b"c:%d" % slot, b"%d" % slot, 100 + slot, b""] for slot in range(count)]
        return LOOK, toy.all_say([0, 88, b"\xff" * 11, holders, 1_000_000, 80, 1_700_000_000_000])

    steps = protocol.retry_after(toy.session, limiter.rates, toy.new_owner(), 1)
    assert toy.play(steps, all_list(65), all_list(88)) == pytest.approx(0.18 * 1.01)
    assert [ask.command.args[0] for ask in toy.asked] == [65, 145]


@pytest.mark.parametrize("present", [b"", b"1"])
def test_retry_after_knows_that_a_slot_is_due_to_a_success_that_has_it_on_other_nodes(limiter, present):
    """A node passes it on: it is free there when that success has run out as well."""
    other, rest = look(80, 500, 900), look(170, 800, 900)
    other[3][0][0], other[3][1] = b"the one before", [b"c:0", present, 190, b""]
    assert limiter.retry_after(other, rest, "down") == pytest.approx(0.19 * 1.01)
    assert limiter.retry_after(other, rest, rest) == pytest.approx(0.17 * 1.01)


def test_limit_of_another_kind_is_an_error_however_new_it_is(toy, limiter):
    other = [-1, b"limit", 0, 0, b"4294967296 3"]
    with pytest.raises(ConfigurationError, match="has a semaphore on its nodes, not 3 per 1 s"):
        limiter.play((ASK, toy.all_say(other)))
    assert limiter.pool.limit.version == 0
    with pytest.raises(ConfigurationError, match="has 3 per 2 s on its nodes"):
        limiter.retry_after(*[look(per_us=2_000_000)] * 3)


# A rate that changes.


def test_round_under_a_rate_that_has_changed_is_not_repeated_for_its_slots(toy, limiter):
    """Nodes would grant them again, though they may be beyond the new rate."""
    answers = toy.all_say(got(2), takes=0.7, meanwhile=lambda: limiter.pool.limit.learn(V1, 2))
    assert limiter.play((ASK, answers), UNDO, *success(limiter, got(0)))
    first, _, second, _ = toy.commands
    assert first.args[0] != second.args[0]
    assert second.args[7:10] == (V1, 2, b"")


# Several rates.


class Several(Limiter):
    """A toy client's limiter of 3 per second and 5 per minute."""

    def __init__(self, toy):
        super().__init__(toy)
        self.minute = SlotKeys.of(b"redsync:", b"x (window 2)")
        self.rates.append(protocol.Rate(Pool("x", self.minute, Limit(5, 60_000_000)), Window(60.0, toy.session.timing)))

    def asked(self, number):
        """Return that command's script, the number of its window, and its claim."""
        command = self.toy.commands[number]
        return (
            command.script.name.removeprefix("semaphore_"),
            1 + (command.keys[0] == self.minute.lock),
            command.args[0],
        )


@pytest.fixture
def several(toy):
    return Several(toy)


@pytest.fixture
def granted(toy):
    """A round that all nodes grant."""
    return ASK, toy.all_say(got(0))


def test_success_under_several_rates_has_slots_of_each_and_one_look_at_the_clock(toy, granted, several):
    assert several.play(granted, granted, CONFIRM, CONFIRM, (CLOCK, toy.slept()))
    scripts = [several.asked(i)[:2] for i in range(4)]
    assert scripts == [("acquire", 2), ("acquire", 1), ("confirm", 2), ("confirm", 1)]
    minute, second = (float(toy.commands[i].args[2]) / 1000 for i in (2, 3))
    assert (minute, second) == pytest.approx((1.01 * 60.0029, 1.01 * 1.0029), abs=1e-4)


def test_asks_are_for_nodes_that_remember_the_window_and_wait_for_them_for_a_second_at_most(make_toy):
    several = Several(toy := make_toy(3, random=0.0, restart_guard=30.0, node_timeout=5.0))
    grant = ASK, toy.all_say(got(0))
    assert several.play(grant, grant, CONFIRM, CONFIRM, (CLOCK, toy.slept()))
    assert [(ask.guard > 60.0, ask.timeout) for ask in toy.asked] == [(True, 1.0), (False, 1.0)]


def test_refusal_by_one_of_several_rates_takes_nothing_of_the_others(toy, several):
    full = ASK, toy.all_say(FULL)
    assert several.play(full, LEAVE) is None, "the shorter window is not even asked"
    assert several.play((ASK, toy.all_say(got(0))), full, LEAVE, LEAVE) is None
    (_, _, reserved), (_, window, dropped) = several.asked(2), several.asked(5)
    assert (window, dropped) == (2, reserved)
    assert toy.told[-1].deliver_to == 0b111


def test_wait_for_several_rates_ends_with_the_one_timeout(toy, several):
    waits = refused(several, None)
    script = *waits, (ASK, toy.all_say(got(0))), *waits, (ASK, toy.all_say(FULL)), LEAVE, LEAVE
    assert several.play(*script, timeout=1.0) is None
    assert toy.waits[-1].until == pytest.approx(1001.0)


def test_slots_reserved_long_ago_are_asked_for_again_before_they_count(toy, granted, several):
    script = granted, *refused(several, None), granted, granted, CONFIRM, LEAVE, CONFIRM, (CLOCK, toy.slept())
    assert several.play(*script, timeout=5.0)
    (_, window, claim), (_, again, same) = several.asked(0), several.asked(4)
    assert (window, again, same) == (2, 2, claim)
    assert toy.commands[4].args[9] == b"", "nodes that have the slots keep them, even if others wait"
    assert toy.asked[-1].guard == several.rates[1].window.guard


def test_success_that_waited_too_long_for_reserved_slots_is_told_to_no_node(toy, granted, several):
    """It does not count, so its slots need no longer time: that is for a process that is slow to tell nodes."""
    slowly = ASK, toy.all_say(got(0), takes=0.6)
    script = granted, *refused(several, None), granted, slowly, UNDO, UNDO, granted, granted, CONFIRM, LEAVE, CONFIRM
    assert several.play(*script, (CLOCK, toy.slept()), timeout=None)
    assert told_to_keep(several) == pytest.approx([1.01 * 60.0029, 1.01 * 1.0029], abs=1e-4)


def test_node_that_may_execute_an_ask_with_a_place_later_does_not_count_for_reserved_slots(toy, granted, several):
    """Over an abandoned connection: if others wait there, the node would drop the slots that it has granted since."""
    script = *refused(several), (ASK, toy.answers(got(0), got(0), "down")), *refused(several, None), granted
    gone = ASK, toy.answers("down", got(0), got(0))
    met = ("wait", toy.slept()), granted
    again = *met, *met, CONFIRM, CONFIRM, (CLOCK, toy.slept())
    assert several.play(*script, gone, LEAVE, LEAVE, *again, timeout=9.0)


@pytest.mark.parametrize(("answer", "timeout"), [(FULL, 5.0), (FULL, 0.702), ("down", 0.702)])
def test_acquire_whose_reserved_slots_are_gone_begins_anew_while_it_has_time(toy, granted, several, answer, timeout):
    script = granted, *refused(several, None), granted, (ASK, toy.all_say(answer)), LEAVE, LEAVE
    if timeout == 5.0:
        script += granted, ("wait", toy.slept()), granted, CONFIRM, CONFIRM, (CLOCK, toy.slept())
        assert several.play(*script, timeout=timeout)
        assert several.asked(7)[1] == 2
        assert several.asked(7)[2] != several.asked(0)[2]
    elif answer == FULL:
        assert several.play(*script, timeout=timeout) is None
    else:
        with pytest.raises(QuorumError, match="2 of 3 nodes failed"):
            several.play(*script, timeout=timeout)


def test_slots_reserved_under_a_rate_that_has_changed_are_not_asked_for_again(toy, granted, several):
    learn = toy.all_say(got(0), meanwhile=lambda: several.rates[1].pool.limit.learn(V1, 4))
    script = granted, *refused(several, None), (ASK, learn), LEAVE, LEAVE
    script += granted, ("wait", toy.slept()), granted, CONFIRM, CONFIRM, (CLOCK, toy.slept())
    assert several.play(*script, timeout=5.0)
    assert toy.commands[6].args[7:9] == (V1, 4)


def test_slow_telling_of_several_rates_is_repeated_with_other_claims_for_each(toy, granted, several):
    told = CONFIRM, CONFIRM, (CLOCK, toy.slept(meanwhile=lambda: toy.pass_time(0.003)))
    script = granted, granted, *told, UNDO, granted, UNDO, granted, CONFIRM, CONFIRM, (CLOCK, toy.slept())
    assert several.play(*script)
    claims = {several.asked(i)[1:] for i in (0, 1, 5, 7)}
    assert len(claims) == 4
    assert {several.asked(i)[1:] for i in (8, 9)} == {several.asked(i)[1:] for i in (5, 7)}
    assert float(toy.commands[8].args[2]) > float(toy.commands[2].args[2])


def test_rate_that_allowed_enough_time_to_tell_nodes_allows_no_more_because_another_did_not(toy, granted, several):
    several.rates[1].window.note(0.08, 1.0)  # a slow success before: now it allows 20 ms
    told = CONFIRM, CONFIRM, (CLOCK, toy.slept(meanwhile=lambda: toy.pass_time(0.003)))
    assert several.play(granted, granted, *told, UNDO, granted, UNDO, granted, CONFIRM, CONFIRM, (CLOCK, toy.slept()))
    before, _, after, _ = told_to_keep(several)
    assert 1.01 * 60.01 < after < before


def test_slots_reserved_once_more_after_slow_telling_need_no_other_claim(toy, granted, several):
    told = CONFIRM, CONFIRM, (CLOCK, toy.slept(meanwhile=lambda: toy.pass_time(0.003)))
    lost = UNDO, granted, UNDO, (ASK, toy.all_say(FULL)), LEAVE, LEAVE
    again = granted, granted, CONFIRM, CONFIRM, (CLOCK, toy.slept())
    assert several.play(granted, granted, *told, *lost, *again, timeout=5.0)


@pytest.mark.parametrize("at", range(5))
def test_interruption_between_two_rates_gives_everything_back(toy, granted, several, at):
    script = granted, granted, CONFIRM, CONFIRM, (CLOCK, toy.slept())
    assert toy.interrupt(several.steps(), script, at) == [LEAVE] * (2 if at else 1)
    assert all(told.deliver_to == 0b111 for told in toy.told if told.command.script.name.endswith("abandon"))


def test_interruption_of_giving_back_gives_back_again(toy, several):
    script = (ASK, toy.all_say(got(0))), (ASK, toy.all_say(FULL)), LEAVE, LEAVE
    assert toy.interrupt(several.steps(), script, 3) == [LEAVE]


@pytest.mark.parametrize("at", [None, 0, 1])
def test_cancelled_success_is_rolled_back_on_all_nodes_whatever_interrupts_that(toy, granted, several, at):
    permits = several.play(granted, granted, CONFIRM, CONFIRM, (CLOCK, toy.slept()))
    toy.effects.clear()
    steps = protocol.cancel(permits)
    if at is None:
        toy.play(steps, LEAVE, LEAVE)
    else:
        assert toy.interrupt(steps, (LEAVE, LEAVE), at) == [LEAVE, LEAVE]
    assert [told.deliver_to for told in toy.told[-2:]] == [0b111, 0b111]
    assert [told.command.args[0] for told in toy.told[-2:]] == [permit.claim for permit in permits]


def test_several_rates_tell_the_longest_time_until_room_and_the_fewest_free(toy, several):
    minute = look(7000, 7000, 7000, 7000, 7000, rate=5, per_us=60_000_000)
    looks = (LOOK, toy.all_say(look(100))), (LOOK, toy.all_say(minute))
    owner = toy.new_owner()
    assert toy.play(protocol.retry_after(toy.session, several.rates, owner, 1), *looks) == pytest.approx(7.07)
    assert toy.play(protocol.available(toy.session, several.rates, owner), *looks) == 0
