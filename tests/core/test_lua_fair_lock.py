"""The scripts of the fair lock on a real server: tickets, whose turn it is, and who loses it."""

import time

import pytest

from redsync._core.keys import LockKeys
from tests.core.conftest import guard_of

KEYS = LockKeys.of(b"redsync:", b"x")
A, B, C, D = (f"client-{letter}:1".encode() for letter in "abcd")
WAKE = {owner: b"redsync:wake:" + owner.replace(b":", b"-") for owner in (A, B, C, D)}
LEASE, KEEP = 30_000, 5_000
NEW, EXISTING, FOREIGN = 1, 2, 0


def woken(owner):
    return WAKE[owner], b"0 " + owner.rpartition(b":")[0] + b" " + KEYS.lock


class FairNode:
    def __init__(self, node):
        self.node, self.redis = node, node.redis

    def ask(self, owner, ticket=0, *, count=1, lease=LEASE, guard=0, keep=KEEP, mark=0):
        args = (owner, count, lease, guard_of(guard), keep, ticket, WAKE[owner], mark)
        return self.node.run("fair_lock_acquire", KEYS.all, *args)

    def release(self, owner, count=0):
        return self.node.run("fair_lock_release", KEYS.all, owner, count, KEYS.channel)

    def abandon(self, owner, *, leave=True):
        return self.node.run("fair_lock_abandon", KEYS.all, owner, int(leave))

    def queue(self):
        """Return the claims of those who wait, which are all the first of their owners, with their tickets."""
        return [(owner + b":1", int(ticket)) for owner, ticket in self.redis.zrange(KEYS.queue, 0, -1, withscores=True)]


@pytest.fixture
def fair(node):
    """A node on which somebody listens for A, B and C."""
    with node.listening(WAKE[A], WAKE[B], WAKE[C]):
        yield FairNode(node)


@pytest.fixture
def unheard(node):
    return FairNode(node)


def test_free_lock_without_a_queue_is_granted_at_once(fair):
    assert fair.ask(A) == NEW
    assert fair.redis.hgetall(KEYS.lock) == {A: b"1"}
    assert LEASE - 2000 < fair.redis.pttl(KEYS.lock) <= LEASE
    assert fair.redis.keys() == [KEYS.lock]


def test_refusal_without_a_ticket_tells_the_highest_and_leaves_no_place(fair):
    fair.ask(A)
    remaining, holder, highest = fair.ask(B)
    assert (holder, highest) == (A, 0)
    assert LEASE - 2000 < remaining <= LEASE
    assert fair.queue() == []
    fair.ask(B, 7)
    assert fair.ask(C)[2] == 7
    assert fair.queue() == [(B, 7)]


def test_ticket_takes_a_place_and_keeps_it(fair):
    fair.ask(A)
    assert fair.ask(B, 3)[1] == A
    assert fair.ask(B, 3, guard=1000, mark=7)[2] == 3
    assert fair.queue() == [(B, 3)]
    expiry, _, *words = fair.redis.hget(KEYS.places, b"client-b").split(b" ")
    seconds, _ = fair.redis.time()
    assert abs(int(expiry) - (seconds * 1000 + KEEP)) < 3000
    assert words == [b"7", guard_of(1000), WAKE[B]]
    assert 0 < fair.redis.pttl(KEYS.queue) <= KEEP
    assert 0 < fair.redis.pttl(KEYS.places) <= KEEP


def test_node_draws_the_ticket_after_the_highest_that_it_knows(fair):
    fair.ask(A)
    assert fair.ask(B, "+")[2:] == [1, 0]
    fair.ask(C, 7)
    assert fair.ask(D, "+")[2:] == [8, 2]
    assert fair.queue() == [(B, 1), (C, 7), (D, 8)]


def test_node_draws_the_ticket_that_one_has_already(fair):
    """The reply to the first was lost, or the place is kept for longer; its turn stays the same."""
    fair.ask(A)
    fair.ask(B, "+", keep=50)
    fair.ask(C, "+")
    assert fair.ask(B, "+", mark=7)[2:] == [1, 0]
    assert fair.queue() == [(B, 1), (C, 2)]
    expiry, _, mark, *_ = fair.redis.hget(KEYS.places, b"client-b").split(b" ")
    seconds, _ = fair.redis.time()
    assert int(expiry) > seconds * 1000 + KEEP - 3000
    assert mark == b"7"


def test_ticket_of_the_quorum_replaces_the_one_that_was_drawn_here(fair):
    fair.ask(A)
    fair.ask(B, "+")
    assert fair.ask(B, 9)[2:] == [9, 0]
    assert fair.queue() == [(B, 9)]


def test_who_is_granted_a_free_lock_draws_a_ticket_too(fair):
    """The grant may be undone; whoever draws until then comes after it."""
    assert fair.ask(A, "+") == NEW
    assert fair.ask(B, "+")[1:] == [A, 2, 1]
    assert fair.queue() == [(A, 1), (B, 2)]


def test_who_draws_comes_after_the_head_of_a_free_lock(fair):
    fair.ask(A)
    fair.ask(B, 4)
    fair.release(A)
    assert fair.ask(C, "+")[1:] == [B, 5, 1]
    assert fair.redis.exists(KEYS.lock) == 0


@pytest.mark.parametrize("ticket", [3, "+"])
def test_who_does_not_wait_takes_no_place(fair, ticket):
    fair.ask(A)
    assert fair.ask(B, ticket, keep=0)[1:] == [A, 0]
    assert fair.queue() == []


def test_equal_tickets_are_ordered_by_owner(fair):
    fair.ask(D)
    for owner in (C, A, B):
        fair.ask(owner, 5)
    assert fair.queue() == [(A, 5), (B, 5), (C, 5)]


def test_free_lock_is_granted_to_the_head_only(fair):
    fair.ask(A)
    fair.ask(B, 1)
    fair.ask(C, 2)
    assert fair.release(A) == 1
    remaining, holder, highest, ahead = fair.ask(C, 2)
    assert (holder, highest, ahead) == (B, 2, 1)
    assert 0 < remaining <= KEEP, "as long as the head's place lasts"
    assert fair.ask(D)[1] == B, "a newcomer does not barge"
    assert fair.ask(D, keep=0)[1] == B, "nor does who would not wait"
    assert fair.redis.exists(KEYS.lock) == 0
    assert fair.ask(B, 1) == NEW
    assert fair.queue() == [(B, 1), (C, 2)]
    assert fair.release(B) == 1
    assert fair.queue() == [(C, 2)]


def test_head_whose_place_has_expired_is_passed_over(fair):
    fair.ask(A)
    fair.ask(B, 1, keep=30)
    fair.ask(C, 2)
    fair.release(A)
    time.sleep(0.05)
    assert fair.ask(C, 2) == NEW
    assert fair.queue() == [(C, 2)]
    assert fair.release(C) == 1
    assert fair.redis.keys() == []


def test_renewed_place_does_not_expire(fair):
    fair.ask(A)
    fair.ask(B, 1, keep=30)
    fair.ask(B, 1)
    fair.ask(C, 2)
    fair.release(A)
    time.sleep(0.05)
    assert fair.ask(C, 2)[1] == B


def test_place_without_its_entry_is_passed_over(fair):
    fair.redis.zadd(KEYS.queue, {B: 1})
    assert fair.ask(A) == NEW
    assert fair.queue() == []


@pytest.mark.parametrize("way", ["release", "abandon"])
def test_end_of_a_claim_wakes_the_head_which_keeps_its_place(fair, way):
    fair.ask(A)
    fair.ask(B, 1)
    fair.ask(C, 2)
    with fair.node.listening(WAKE[B], WAKE[C]) as subscription:
        fair.release(A) if way == "release" else fair.abandon(A)
        assert fair.node.messages(subscription) == [woken(B)]
    assert fair.queue() == [(B, 1), (C, 2)]


def test_head_that_nobody_listens_for_loses_its_place(unheard):
    unheard.ask(A)
    unheard.ask(B, 1)
    unheard.ask(C, 2)
    with unheard.node.listening(WAKE[C]) as subscription:
        unheard.release(A)
        assert unheard.node.messages(subscription) == [woken(C)]
    assert unheard.queue() == [(C, 2)]


def test_release_that_finds_no_live_waiter_ends_with_an_empty_queue(unheard):
    unheard.ask(A)
    unheard.ask(B, 1)
    unheard.ask(C, 2, keep=1)
    time.sleep(0.01)
    assert unheard.release(A) == 1
    assert unheard.redis.keys() == []


def test_head_that_leaves_a_free_lock_wakes_the_next(fair):
    fair.ask(A)
    fair.ask(B, 1)
    fair.ask(C, 2)
    fair.release(A)
    with fair.node.listening(WAKE[B], WAKE[C]) as subscription:
        fair.abandon(B)
        assert fair.node.messages(subscription) == [woken(C)]


def test_waiter_that_leaves_a_held_lock_wakes_nobody(fair):
    fair.ask(A)
    fair.ask(B, 1)
    fair.ask(C, 2)
    with fair.node.listening(WAKE[B], WAKE[C]) as subscription:
        fair.abandon(B)
        assert fair.node.messages(subscription) == []
    assert fair.queue() == [(C, 2)]


def test_waiter_that_goes_on_waiting_keeps_its_place_when_it_drops_a_claim(fair):
    assert fair.ask(A, 4) == NEW
    assert fair.abandon(A, leave=False) == 1
    assert fair.redis.exists(KEYS.lock) == 0
    assert fair.abandon(A, leave=False) == 0


def test_re_entry_sets_the_count_and_lengthens(fair):
    fair.ask(A)
    fair.redis.pexpire(KEYS.lock, 1000)
    assert fair.node.run("fair_lock_acquire", (KEYS.lock,), A, 2, LEASE, 0) == EXISTING
    assert fair.redis.hgetall(KEYS.lock) == {A: b"2"}
    assert fair.redis.pttl(KEYS.lock) > 2000
    assert fair.release(A, 1) == 1
    assert fair.redis.hgetall(KEYS.lock) == {A: b"1"}


def test_repeated_ask_of_the_holder_is_no_new_claim_but_takes_its_place(fair):
    """It had too few nodes, and asks again with its ticket."""
    fair.ask(A)
    assert fair.ask(A, 3) == EXISTING
    assert fair.queue() == [(A, 3)]
    assert fair.ask(B)[1:3] == [A, 3]


def test_grant_that_is_undone_leaves_the_place_as_it_was(fair):
    fair.ask(A, 1)
    fair.ask(B, 2)
    assert fair.ask(C)[2] == 2, "whoever draws meanwhile comes after them"
    assert fair.abandon(A, leave=False) == 1
    assert fair.ask(B, 2)[1] == A
    assert fair.ask(A, 1) == NEW


def test_holder_that_queued_is_not_woken_by_its_own_release(fair):
    fair.ask(A, 1)
    fair.ask(B, 2)
    with fair.node.listening(WAKE[A], WAKE[B]) as subscription:
        fair.release(A)
        assert fair.node.messages(subscription) == [woken(B)]


def test_release_of_another_changes_nothing_but_leaves_the_queue(fair):
    fair.ask(A)
    fair.ask(B, 1)
    assert fair.release(B) == 0
    assert fair.queue() == []
    assert fair.redis.hgetall(KEYS.lock) == {A: b"1"}


@pytest.mark.parametrize("value", ["string", "list"])
def test_foreign_value_is_told_and_left_as_it_is(fair, value):
    fair.redis.set(KEYS.lock, "mine") if value == "string" else fair.redis.rpush(KEYS.lock, "mine")
    before = fair.node.dump()
    assert fair.ask(A) == FOREIGN
    assert fair.ask(A, 3) == FOREIGN
    assert fair.release(A) == 0
    assert fair.node.dump() == before


def test_node_without_memory_grants_nothing_but_takes_places(fair):
    with pytest.raises(Exception, match="FORGETFUL -1"):
        fair.ask(A, guard=1000)
    fair.redis.set("redsync_birth", "original 1 -")
    assert fair.ask(A, guard=1000) == NEW


def test_force_release_takes_the_holder_out_of_the_queue_and_wakes_the_head_which_keeps_its_place(fair):
    fair.ask(A, 1)
    fair.ask(B, 2)
    with fair.node.listening(WAKE[B]) as subscription:
        assert fair.node.run("lock_force_release", KEYS.all, A, "hash", KEYS.channel) == 1
        assert fair.node.messages(subscription) == [woken(B)]
    assert fair.queue() == [(B, 2)]
