"""Slots that nodes chose differently, on virtual nodes: a renewal makes them equal, so that each can be acquired."""

import pytest

from redsync.exceptions import QuorumError
from tests.protocols import conftest
from tests.support.hunting import break_script
from tests.support.virtual import World

PERMITS = 3
LEASE = 30.0


class Program(conftest.Program):
    """A client of one semaphore; `reach`: the only nodes that it can reach."""

    def __init__(self, world, reach=(0, 1, 2)):
        super().__init__(world, PERMITS)
        world.reach[self.owner.client_id] = reach

    def asking_for(self, *slots):
        """Return the steps of an ask for that many permits; it prefers these slots."""
        return self.asking(len(slots), start=slots[0] / PERMITS)

    def take(self, slot):
        return self.world.run(self.asking_for(slot))

    def slots(self):
        """Return the slots that each node keeps for it."""
        found = [store.peek(conftest.SLOT_KEYS.slots) for store in self.world.stores]
        permit = self.owner.claim(1)
        return [value[0].get(permit, b"-").decode() if value else "-" for value in found]


def make_world(scripts=None):
    world = World(3, lambda client, node: "ok" if node in world.reach[client] else "lost", scripts=scripts)
    world.reach = {}
    return world


def choose_differently(world):
    """Make two hold two of three permits, and each of them have the third slot on another node.

    Each gets its slot while a client that reaches a single node has the preferred one there, and then releases it.
    """
    holders = []
    for slot, passing, node in [(0, (0, 1), 2), (1, (1,), 1)]:
        passer_by = Program(world, reach=(node,))
        steps = world.play(passer_by.asking_for(*passing))
        next(steps)
        next(steps)  # It has asked, and the node has granted.
        holder = Program(world)
        holders.append((holder, holder.take(slot)))
        with pytest.raises(QuorumError):
            list(steps)
        assert passer_by.slots() == ["-", "-", "-"]
    (one, first), (other, second) = holders
    assert (first.slots, one.slots()) == ((0,), ["0", "0", "2"])
    assert (second.slots, other.slots()) == ((1,), ["1", "2", "1"])
    return holders


def takes_the_last_permit(world):
    """Return whether another client can get it within a lease, while two hold theirs and renew them in time."""
    holders = choose_differently(world)
    newcomer, end = Program(world), world.now + LEASE
    while world.now < end:
        # Each node has a free slot, but no slot is free on two of them.
        if newcomer.take(2):
            return True
        world.now += LEASE / 3
        assert all(holder.renew(state) for holder, state in holders)
    return False


def test_last_permit_can_be_acquired_within_a_lease_although_nodes_chose_differently():
    assert takes_the_last_permit(make_world())


def test_last_permit_can_not_be_acquired_if_renewals_leave_other_slots():
    """This schedule does put the promise to the test."""
    broken = break_script("semaphore_renew", ("if mine ~= wanted then", "if not mine then"))
    assert not takes_the_last_permit(make_world(broken))
