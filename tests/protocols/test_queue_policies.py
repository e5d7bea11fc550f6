"""How waiters queue: by arrival, by ticket, or not at all. `test_acquiring_waiting.py` has the common parts."""

from functools import partial

import pytest

from redsync._protocols.lock import FAIR_LOCK
from redsync._protocols.queue_policies import NoQueue, highest_ticket
from tests.support.toy_replies import NEW, WRONG_TYPE, A, B, held

ASK = "ask fair_lock_acquire for a place"


def knows(highest, by=A, remaining=20_000):
    """A refusal by a node with that highest ticket."""
    return [remaining, by, highest]


def drew(ticket, by=A, ahead=1):
    """A refusal by a node where we have that ticket."""
    return [20_000, by, ticket, ahead]


def fair(toy, *script, **fields):
    return toy.acquire(*script, kind=FAIR_LOCK, **fields)


def tickets(toy):
    return [command.args[5] for command in toy.commands if command.script.name == "fair_lock_acquire"]


# By ticket.


def test_free_fair_lock_is_won_in_one_round_without_a_place(toy):
    state = fair(toy, (ASK, toy.all_say(NEW)))
    assert state.valid(toy.now)
    (effect,) = toy.effects
    assert effect.command.keys == toy.keys.all, "waiters go first, so the node looks at its queue"
    assert effect.command.args == (toy.owner.claim(1), 1, 30_000, 0, 3_000, 0, toy.owner.channel, b"0")
    assert effect.subscribe is None, "nothing wakes an owner without a place"


def test_ticket_is_one_more_than_the_highest_of_a_quorum_and_is_written_back_at_once(toy):
    fair(
        toy,
        (ASK, toy.answers(knows(0), knows(7), knows(3), None, None)),
        (ASK, toy.all_say(knows(8))),
        ("wait for wake-up", toy.slept(signals=3)),
        (ASK, toy.all_say(NEW)),
    )
    assert tickets(toy) == [0, 8, 8], "one ticket for the whole wait"
    assert toy.asked[1].subscribe == toy.owner.wire + b" " + toy.keys.lock
    assert toy.waits[0].enough == 3


@pytest.mark.parametrize(
    ("told", "highest"),
    [
        ([0], 0),
        ([3, 7, 5], 7),
        ([0, 0, 1 << 40], 1 << 40),
        ([0, 7, (1 << 40) + 8], 7),
        ([0, 7, 1 << 60, 1 << 61], 7),
        ([1 << 60, 1 << 60], 0),
        ([-(1 << 60), 4], 4),
        ([1 << 39, (1 << 39) + 5, 1 << 40], 1 << 40),
    ],
)
def test_ticket_of_absurd_size_is_not_believed(told, highest):
    assert highest_ticket(told) == highest


@pytest.mark.parametrize("n", [2, 4, 6])
def test_ticket_is_drawn_from_a_quorum_even_if_fewer_refusals_rule_a_grant_out(make_toy, n):
    """Of four nodes two refusals suffice to lose, but two of four do not meet the other two."""
    toy = make_toy(n)
    quorum = n // 2 + 1
    answers = [knows(0)] * (quorum - 1) + [knows(9)] + [None] * (n - quorum)
    fair(toy, (ASK, toy.answers(*answers)), (ASK, toy.all_say(NEW)))
    assert tickets(toy) == [0, 10]


def test_ticket_is_drawn_again_if_no_quorum_reports_one(toy):
    """In a split vote the nodes that granted reported none."""
    fair(
        toy,
        (ASK, toy.answers(NEW, NEW, knows(4, A), knows(4, B), "down")),
        "tell lock_release, stay",
        ("wait", toy.slept()),
        (ASK, toy.all_say(knows(4))),
        (ASK, toy.all_say(NEW)),
    )
    assert tickets(toy) == [0, 0, 5]


def test_acquire_that_does_not_wait_draws_no_ticket(toy):
    assert fair(toy, (ASK, toy.all_say(knows(4))), "tell lock_release", timeout=0.0) is None
    assert [command.args[4] for command in toy.commands[:1]] == [0], "it asks for no place"


# Without a quorum.


def test_ticket_is_not_renewed_while_too_few_answer_and_presented_again_when_they_do(toy):
    """Its place ends as if it had stopped, but it keeps its ticket."""
    state = fair(
        toy,
        (ASK, toy.all_say(knows(4))),
        (ASK, toy.answers(drew(5), NEW, "down", "down", "down")),
        "tell lock_release, stay",
        ("wait", toy.slept(handed=0b11111)),
        (ASK, toy.answers(drew(5), NEW, "down", "down", "down")),
        "tell lock_release, stay",
        ("wait", toy.slept()),
        (ASK, toy.all_say(knows(9))),
        (ASK, toy.all_say(drew(5))),
        ("wait for wake-up", toy.slept()),
        (ASK, toy.all_say(NEW)),
    )
    assert state.valid(toy.now)
    assert tickets(toy) == [0, 5, 0, 0, 5, 5]
    assert [command.args[7] for command in toy.commands if command.script.name == "fair_lock_acquire"][2:4] == [
        b"0"
    ] * 2


def test_waiter_by_arrival_leaves_while_too_few_answer_and_returns_with_its_arrival(toy):
    ask = "ask lock_acquire for a place"
    toy.acquire(
        (ask, toy.answers(held(), held(), "down", "down", "down")),
        "tell lock_release",
        ("wait", toy.slept()),
        ("ask lock_acquire", toy.all_say("down", takes=2.0)),
        "tell lock_release",
        ("wait", toy.slept()),
        ("ask lock_acquire", toy.all_say(held())),
        (ask, toy.all_say(held())),
        ("wait for wake-up", toy.slept()),
        (ask, toy.all_say(NEW)),
        crowded=True,
    )
    waited = [command.args[5] for command in toy.commands if len(command.args) > 4]
    assert waited[0] == 0
    assert waited[1] >= 2_000


@pytest.mark.parametrize(("lease", "kept"), [(0.2, 200), (2.5, 2_500), (30.0, 3_000)])
@pytest.mark.parametrize("own", [False, True])
def test_place_lasts_no_longer_than_the_requested_lease(make_toy, lease, kept, own):
    toy = make_toy(random=0.999, **({} if own else {"lease": lease}))
    fair(
        toy,
        (ASK, toy.all_say(knows(4))),
        (ASK, toy.all_say(drew(5))),
        ("wait for wake-up", toy.slept()),
        (ASK, toy.all_say(NEW)),
        lease=lease if own else None,
    )
    assert toy.commands[1].args[4] == kept
    assert toy.waits[0].until - toy.tallies[1].at <= 0.7 * kept / 1000, "it is renewed in time"


# Leaving.


@pytest.mark.parametrize("at", range(3))
def test_waiter_that_was_interrupted_leaves_the_places_that_it_may_have(toy, at):
    script = [
        (ASK, toy.all_say(knows(6))),
        (ASK, toy.all_say(drew(7))),
        ("wait for wake-up", toy.slept(handed=0b11111)),
    ]
    assert toy.interrupt(toy.acquiring(kind=FAIR_LOCK), script, at) == ["tell lock_release"]


# Sleeping.


DIFFERENT_HEADS = [knows(5, A), knows(5, A), knows(5, B), knows(5, B), "down"]
"""Some did not know the other's ticket when they answered, and neither owner would be woken."""


@pytest.mark.parametrize(
    ("replies", "most"),
    [
        pytest.param(DIFFERENT_HEADS, 0.06, id="nodes with different heads"),
        pytest.param([knows(5, B, remaining=300)] * 5, 0.4, id="a free lock whose silent head has a place for 0.3 s"),
        pytest.param([drew(5, ahead=ahead) for ahead in (900, 2, 900, 900, 900)], 1.1, id="near the head somewhere"),
    ],
)
def test_waiter_with_a_ticket_looks_again_soon(toy, replies, most):
    fair(
        toy,
        (ASK, toy.all_say(knows(4))),
        (ASK, toy.answers(*replies)),
        *(["tell lock_release, stay"] if "down" in replies else []),
        ("wait for wake-up", toy.slept()),
        (ASK, toy.all_say(NEW)),
    )
    assert toy.waits[0].until - toy.tallies[1].at < most


def test_foreign_values_do_not_count_for_a_ticket(toy):
    """Nor does such a node replace one that can report a ticket."""
    fair(toy, (ASK, toy.answers(WRONG_TYPE, knows(1), knows(2), knows(3), None)), (ASK, toy.all_say(NEW)))
    assert tickets(toy) == [0, 4]


REDISSON = b"285475da-9152-4c83-822a-67ee2f116a79:52"


@pytest.mark.parametrize(
    ("by", "ahead", "longest"),
    [
        *((A, *row) for row in [(0, 1.5), (3, 1.6), (20, 2.0), (64, 2.1), (2000, 2.1)]),
        # A lock of another library: nothing wakes us.
        *((REDISSON, *row) for row in [(0, 0.05), (9, 0.5)]),
    ],
)
def test_waiter_far_behind_looks_seldom_but_before_its_place_ends(make_toy, by, ahead, longest):
    toy = make_toy(random=0.999)
    toy.acquire(
        ("ask lock_acquire for a place", toy.all_say([20_000, by, 0, ahead])),
        ("wait for wake-up", toy.slept(0.01)),
        ("ask lock_acquire for a place", toy.all_say(NEW)),
        crowded=True,
    )
    assert (
        longest - min(0.1, longest / 10) < toy.waits[0].until - toy.tallies[0].at <= longest + min(0.01, longest / 10)
    )


# No place.


def test_spinning_waits_for_nodes_like_others_when_too_few_answer(toy):
    outage = ("ask lock_acquire", toy.all_say("down", sent=0))
    toy.acquire(
        outage,
        ("wait", toy.slept()),
        ("ask lock_acquire", toy.all_say(NEW)),
        queue=partial(NoQueue, lambda tries, random: pytest.fail("that is for a lock that others hold")),
    )


def test_spinning_sleeps_by_its_backoff_which_rolls_the_attempt_back_if_it_raises(toy):
    def backoff(tries, random):
        if tries == 2:
            raise ValueError("no such pause")
        return tries / 10

    refused, undo = ("ask lock_acquire", toy.all_say([20_000, A, 0])), "tell lock_release, stay"
    with pytest.raises(ValueError, match="no such pause"):
        toy.acquire(
            refused, undo, ("wait", toy.slept()), refused, undo, "tell lock_release", queue=partial(NoQueue, backoff)
        )
    assert toy.waits[0].until == pytest.approx(toy.tallies[0].at + 0.1)
    assert len(toy.session.holds) == 0
