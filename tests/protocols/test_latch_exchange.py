"""The exchange between clients and nodes of a latch: write-backs, and the answers of nodes that forgot."""

import pytest

from redsync._core.keys import LatchKeys
from redsync._protocols.latch import Latch, count_left
from redsync.exceptions import QuorumError
from tests.protocols.conftest import GARBAGE
from tests.support.latches import LatchCaller, told

A, B, C = range(3)


def test_knowledge_of_only_one_node_is_written_back_before_it_is_returned(world, ada, bob):
    """Else the next caller might find the latch closed again."""
    ada.set(1)
    with pytest.raises(QuorumError):
        ada.down({A, B, C}, {A}, n=1)
    assert [state.count for state in told(world, A, B, C)] == [0, 1, 1]
    assert bob.count({A, B}, {A, B}) == 0
    assert [state.count for state in told(world, A, B)] == [0, 0]
    assert LatchCaller(world).count({B, C}) == 0


def test_answer_that_can_not_be_written_back_is_an_error(world, ada, bob):
    ada.set(1)
    with pytest.raises(QuorumError):
        ada.down({A, B, C}, {A}, n=1)
    with pytest.raises(QuorumError):
        bob.count({A, B}, {A})


def test_node_that_was_missed_is_repaired_by_a_look(world, ada, bob):
    ada.set(2)
    world.stores[C].flush()
    ada.count()
    assert told(world, C) == told(world, A)


def test_new_client_does_not_see_it_open_on_nodes_that_forgot(world):
    world.initialize()
    ada, bob = LatchCaller(world, restart_guard=30.0), LatchCaller(world, restart_guard=30.0)
    assert bob.count() == 0, "nodes that never forgot anything know that it was never set"
    ada.set(2)
    for node in (A, B):
        world.stores[node].flush()
    with pytest.raises(QuorumError, match="FORGETFUL"):
        LatchCaller(world, restart_guard=30.0).wait(0.0, {A, B})
    for node in (A, B):
        world.stores[node].execute(b"SET", b"redsync_birth", b"newborn %d -" % world.stores[node].now_ms)
    world.now += 40.0
    with pytest.raises(QuorumError, match="FORGETFUL"):
        bob.count({A, B})
    ada.count()
    assert bob.count() == 2
    with pytest.raises(QuorumError, match="2 of 3 nodes may have forgotten it"):
        bob.count({A, B})
    ada.count()
    assert bob.count({A, B}) == 2, "the setter knows, and has told them"


def test_latch_can_be_set_where_nodes_forgot_as_soon_as_they_may_grant(world):
    for store in world.stores:
        store.execute(b"SET", b"redsync_birth", b"newborn %d -" % store.now_ms)
    ada = LatchCaller(world, restart_guard=30.0)
    with pytest.raises(QuorumError, match="FORGETFUL"):
        ada.set(2)
    world.now += 40.0
    with pytest.raises(QuorumError, match="FORGETFUL"):
        ada.count()
    assert ada.set(2) is True
    assert ada.count() == 2


def test_latch_that_was_not_used_for_a_day_is_forgotten_everywhere(world, ada):
    ada.set(2)
    world.now += 86_000.0
    assert ada.count() == 2
    world.now += 86_000.0
    assert ada.count() == 2
    world.now += 86_401.0
    assert ada.count() == 0
    assert ada.set(1) is True


def test_nonsense_about_a_latch_is_not_believed(make_toy):
    for reply in (1, *GARBAGE):
        if reply in ([5, 7], [1, 2, 3]):
            continue  # Generation, size, and since when the node remembers.
        toy = make_toy()
        latch = Latch("x", LatchKeys.of(b"redsync:", b"x"), 60.0)
        tally = toy.perform(toy.start(count_left(toy.session, latch, toy.owner, toy.now)), toy.all_say(reply))
        assert tally.without_quorum, reply
