"""The scripts of the fair lock on a real server: tickets and turns. `test_lua_waiting` has the common parts."""

import pytest

from tests.core.conftest import KEYS, LEASE, NEW, PLACE, Claims, guard_of, wake_channel

A, B, C, D = (f"client-{sent_command}:1".encode() for sent_command in "abcd")


class FairNode(Claims):
    """A node to ask by ticket; 0: none yet."""

    def ask(self, owner, ticket=0, *, guard=0, keep=PLACE, ask_id=0):
        words = owner, 1, LEASE, guard_of(guard), keep, ticket, wake_channel(owner), ask_id
        return self.node.run("fair_lock_acquire", KEYS.all, *words)

    def line(self):
        """Return the claims of the waiters with their tickets."""
        tickets = [int(ticket) for _, ticket in self.redis.zrange(KEYS.queue, 0, -1, withscores=True)]
        return list(zip(self.waiters(), tickets, strict=True))


@pytest.fixture
def fair(node):
    """A node with listeners for A, B and C."""
    with node.listening(*map(wake_channel, (A, B, C))):
        yield FairNode(node, "fair_lock")


def test_refusal_without_a_ticket_returns_the_highest_and_leaves_no_place(fair, lasts):
    fair.ask(A)
    remaining, holder, highest = fair.ask(B)
    assert (holder, highest) == (A, 0)
    assert lasts(remaining, LEASE)
    assert fair.line() == []
    fair.ask(B, 7)
    assert fair.ask(C)[2] == 7
    assert fair.line() == [(B, 7)]


def test_ticket_takes_a_place_and_a_later_one_replaces_it(fair, lasts):
    fair.ask(A)
    assert fair.ask(B, 3)[1] == A
    assert fair.ask(B, 3, guard=1000, ask_id=7)[2] == 3
    assert fair.line() == [(B, 3)]
    expiry, *words = fair.place(B)
    assert lasts(expiry - fair.now(), PLACE)
    assert words == [7, 1000, wake_channel(B)]
    assert fair.ask(B, 9)[2:] == [9, 0]
    assert fair.line() == [(B, 9)]


def test_owner_that_gets_a_free_lock_keeps_its_ticket_for_a_rollback(fair):
    """Tickets drawn until then come after it."""
    assert fair.ask(A, 1) == NEW
    assert fair.ask(B, 2)[1:] == [A, 2, 1]
    assert fair.ask(C)[2] == 2
    assert fair.abandon(A) == 1
    assert fair.line() == [(A, 1), (B, 2)]
    assert fair.ask(B, 2)[1] == A
    assert fair.ask(A, 1) == NEW


def test_free_lock_is_granted_to_the_head_only(fair):
    fair.ask(A)
    fair.ask(B, 1)
    fair.ask(C, 2)
    assert fair.release(A) == 1
    remaining, holder, highest, ahead = fair.ask(C, 2)
    assert (holder, highest, ahead) == (B, 2, 1)
    assert 0 < remaining <= PLACE, "as long as the head's place lasts"
    assert fair.ask(D)[1] == B, "a newcomer does not barge"
    assert fair.ask(D, 3, keep=0)[1:] == [B, 2], "nor does an acquire that does not wait, which gets no place"
    assert fair.holder() is None
    assert fair.ask(B, 1) == NEW
    assert fair.line() == [(B, 1), (C, 2)]
    assert fair.release(B) == 1
    assert fair.line() == [(C, 2)]


def test_repeated_ask_of_the_holder_makes_no_new_claim_but_takes_its_place(fair):
    """It had too few nodes, and asks again with its ticket."""
    fair.ask(A)
    assert fair.ask(A, 3) == 2
    assert fair.line() == [(A, 3)]
    assert fair.ask(B)[1:3] == [A, 3]


def test_node_without_memory_grants_nothing_but_takes_places(fair):
    with pytest.raises(Exception, match="FORGETFUL -1"):
        fair.ask(A, 1, guard=1000)
    assert fair.line() == [(A, 1)]
    fair.redis.set("redsync_birth", "original 1 -")
    assert fair.ask(A, 1, guard=1000) == NEW
