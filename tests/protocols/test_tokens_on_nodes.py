"""Fencing tokens, the schedules that make them hard: the shipped scripts on virtual nodes, each round where it is wanted."""

import pytest

from redsync._core.keys import LockKeys
from redsync._protocols import fenced_lock
from redsync._protocols.claim import Demand, Receipt
from redsync._protocols.fenced_lock import FENCED_LOCK
from redsync._protocols.holding import release
from redsync._protocols.tokens import Fence
from redsync.exceptions import QuorumError
from tests.support.virtual import World

KEYS = LockKeys.of(b"redsync:", b"x")
A, B, C = range(3)


class Fenced(World):
    def __init__(self, n=3, **options):
        super().__init__(n, **options)
        self.clients = {}

    def client(self, who, **timing):
        if who not in self.clients:
            self.clients[who] = (*self.session(**timing), Fence(KEYS))
        return self.clients[who]

    def acquire(self, who="ada", *reach, fresh=False, timeout=0.0, **timing):
        """Acquire; return the hold, or None."""
        session, owner, fence = self.client(who, **timing)
        demand = Demand(
            "x", FENCED_LOCK, KEYS, owner, Receipt(), timeout=timeout, fence=Fence(KEYS) if fresh else fence
        )
        return self.run(fenced_lock.acquire(session, demand, self.now), *reach)

    def release(self, who, hold, *reach):
        self.run(release(self.client(who)[0], hold, self.now), *reach)

    def take(self, who, *reach, **options):
        """Acquire and release; return the token."""
        hold = self.acquire(who, *reach, **options)
        self.release(who, hold)
        return hold.fencing_token

    def put(self, *tokens):
        for store, token in zip(self.stores, tokens, strict=True):
            store.execute(b"SET", KEYS.token, b"%d" % token)

    @property
    def tokens(self):
        return [int(store.execute(b"GET", KEYS.token) or 0) for store in self.stores]

    def owners(self):
        return [store.execute(b"HKEYS", KEYS.lock) for store in self.stores]


@pytest.fixture
def world():
    return Fenced()


def take_the_maximum(fence, tally, owner, token, patience):
    return tally
    yield


def ab_then_bc(world):
    """A at 10, B and C at 1; two clients that know of no token, each with a quorum of its own."""
    world.put(10, 1, 1)
    first = world.take("ada", {A, B}, {A, B})
    return first, world.take("bob", {B, C}, {B, C})


def test_tokens_grow_where_the_quorums_share_the_node_that_lags(world):
    first, second = ab_then_bc(world)
    assert second > first > 10


def test_the_maximum_alone_would_not_grow_there(world, monkeypatch):
    monkeypatch.setattr(Fence, "level", take_the_maximum)
    world.put(10, 1, 1)
    assert world.take("ada", {A, B}) == 11
    assert world.take("bob", {B, C}) == 3


def test_steady_state_takes_one_round(world):
    """Once the nodes agree; and each client's acquisitions grow by one."""
    first = world.take("ada")
    for i in range(1, 4):
        hold = world.acquire("bob", {A, B, C})
        assert hold.fencing_token == first + i
        world.release("bob", hold)
    assert len(set(world.tokens)) == 1


def test_write_back_levels_all_nodes_that_it_reaches(world):
    world.put(10, 1, 1)
    hold = world.acquire("ada", {A, B}, {A, B, C})
    assert hold.fencing_token == 11
    assert world.tokens == [11, 11, 11]
    assert world.owners() == [[b"client-1:1"], [b"client-1:1"], []]


def test_node_that_does_not_keep_the_claim_does_not_stand_for_the_token(world):
    """C has granted to Bob before, with a lower token, and B will: together they would make a quorum for him."""
    world.put(10, 1, 1)
    session, owner, _ = world.client("bob")
    granted = []
    world.fate = lambda client, node: "ok" if node == C else "late"
    demand = Demand("x", FENCED_LOCK, KEYS, owner, Receipt(), timeout=0.0, fence=Fence(KEYS))
    bob = world.play(fenced_lock.acquire(session, demand, world.now))
    next(bob)
    # Bob's round is under way: C has granted, the others have not got it.
    command = Fence(KEYS).ask(demand_command(demand))
    from redsync.testing.simulator.scripting import run_script

    granted.append(run_script(command.script, world.stores[C], command.keys, command.args))
    assert granted == [[1, 2]]
    with pytest.raises(QuorumError, match="UNCLAIMED"):
        world.acquire("ada", {A, B}, {A, C})
    assert world.owners()[:2] == [[], []], "what is not handed out is undone"
    bob.close()
