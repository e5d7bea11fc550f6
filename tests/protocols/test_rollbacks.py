"""Rollbacks of an acquire: after a lost round, and wherever it is interrupted."""

import pytest

from redsync._protocols.queue_policies import FifoByArrival, FifoByTicket
from redsync.exceptions import QuorumError
from tests.support.toy_replies import NEW, WRONG_TYPE, A, B, busy, held, without_quorum, won

ALL, LEASE = 0b11111, 30.0


# With or without a rollback.


@pytest.mark.parametrize(
    ("replies", "sent"),
    [
        ([held(by=A)] * 5, ALL),
        ([held(by=A), held(by=A), held(by=A), held(by=B), held(by=B)], ALL),
        ([held(by=A), held(by=A), held(by=A), held(by=A), WRONG_TYPE], ALL),
        ([held(by=A), held(by=A), held(by=B), held(by=B), held(by=b"client-c:1:1")], ALL),
        ([held(by=A), held(by=A), held(by=A), "kept out", "kept out"], 0b00111),
    ],
)
def test_round_is_not_rolled_back_if_each_node_that_got_it_has_refused(toy, replies, sent):
    """There is nothing to roll back, and a hand-over in between must stay."""
    toy.acquire(
        ("ask lock_acquire for a place", toy.answers(*replies, sent=sent)),
        ("wait for wake-up", toy.slept()),
        ("ask lock_acquire for a place", won(toy)),
        crowded=True,
    )
    assert toy.waits[0].ask_id == b"1"


def test_round_with_a_place_hears_all_nodes_before_it_is_lost(toy):
    """A node that grants after three have refused would need a rollback anyway, so the round waits for its vote."""
    replies = (held(), held(), held(), NEW, NEW)
    toy.acquire(
        ("ask lock_acquire", toy.answers(*replies)),
        ("ask lock_acquire for a place", toy.answers(*replies)),
        "tell lock_release, stay",
        ("wait for wake-up", toy.slept()),
        ("ask lock_acquire for a place", won(toy)),
    )
    first, second, _ = toy.tallies
    assert (first.refused, first.granted) == (3, 0)
    assert (second.refused, second.granted) == (3, 2)


def test_round_is_rolled_back_for_a_node_that_granted_and_that_the_next_round_did_not_reach(toy):
    toy.acquire(
        ("ask lock_acquire", toy.answers(NEW, held(), held(), held(), held())),
        ("ask lock_acquire for a place", toy.answers("kept out", held(), held(), held(), held(), sent=0b11110)),
        "tell lock_release, stay",
        ("wait for wake-up", toy.slept()),
        ("ask lock_acquire for a place", toy.all_say(NEW)),
    )


def test_waiter_leaves_the_queues_even_if_its_next_round_reached_no_node(toy):
    """Else it would get the lock there as long as its place lasts."""
    toy.acquire(
        ("ask lock_acquire for a place", busy(toy)),
        ("wait for wake-up", toy.slept()),
        ("ask lock_acquire for a place", without_quorum(toy)),
        "tell lock_release",
        ("wait", toy.slept()),
        ("ask lock_acquire", without_quorum(toy)),
        ("wait", toy.slept()),
        ("ask lock_acquire", won(toy)),
        crowded=True,
    )
    assert toy.told[0].deliver_to == 0b11111


def test_rollback_is_also_pending_for_nodes_that_did_not_answer(toy):
    answers = toy.answers(NEW, None, None, None, "down", sent=0b01111)
    with pytest.raises(QuorumError):
        toy.acquire(("ask lock_acquire", answers), "tell lock_release", timeout=0.0)
    assert toy.told[0].deliver_to == 0b01111


@pytest.mark.parametrize("queue", [FifoByArrival, FifoByTicket])
def test_rollback_without_a_place_is_pending_only_for_nodes_that_got_the_claim(toy, queue):
    """Else each try in an outage would leave another release for each node that is down."""
    ask, tries = f"ask lock_acquire{' for a place' * (queue is FifoByTicket)}", [0b11111, 0b00001, 0b00001]
    undone = [
        step
        for sent in tries
        for step in ((ask, toy.answers(NEW, *["down"] * 4, sent=sent)), "tell lock_release", ("wait", toy.slept()))
    ]
    toy.acquire(*undone, (ask, won(toy)), queue=queue)
    assert [told.deliver_to for told in toy.told] == tries


# Interruptions.


@pytest.mark.parametrize("at", [0, 1, 2])
def test_acquire_interrupted_while_it_gives_up_leaves_its_queues(toy, at):
    script = [
        ("ask lock_acquire", busy(toy)),
        ("ask lock_acquire for a place", toy.all_say(held(), takes=0.2)),
        "tell lock_release",
    ]
    cleanup = toy.interrupt(toy.acquiring(timeout=0.1), script, at)
    assert cleanup == ["tell lock_release"]


WINS = {
    "by a grant": lambda toy: [("ask lock_acquire", won(toy)), "tell lock_release"],
    "by a hand-over": lambda toy: [
        ("ask lock_acquire for a place", busy(toy)),
        ("wait for wake-up", toy.slept(0.2, handed=0b00111)),
        "tell lock_release",
    ],
}


@pytest.mark.parametrize("way", WINS)
def test_acquire_interrupted_in_the_step_of_its_win_releases_the_claim(toy, way):
    """The alarm is a call, at the end of which Python checks for signals; by then the hold is in the table."""

    def interrupt():
        assert len(toy.session.holds) == 1
        raise KeyboardInterrupt

    toy.on_alarm = interrupt
    with pytest.raises(KeyboardInterrupt):
        toy.acquire(*WINS[way](toy), crowded=way == "by a hand-over")
    assert len(toy.session.holds) == 0
    assert toy.requested.state is None
    assert toy.told[-1].deliver_to == ALL
