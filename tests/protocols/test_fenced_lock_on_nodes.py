"""Fencing tokens in difficult schedules: the shipped scripts on virtual nodes."""

import pytest

from redsync._core.keys import LockKeys
from redsync._protocols import fenced_lock, lock
from redsync._protocols.claims import AcquireRequest
from redsync._protocols.fenced_lock import FENCED_LOCK, Fence
from redsync._protocols.holding import release
from redsync._protocols.lock import LOCK
from redsync.exceptions import KeyTypeError, QuorumError
from redsync.testing.simulator.scripting import run_script
from tests.simulation.stores import execute
from tests.support.virtual import World

KEYS = LockKeys.of(b"redsync:", b"x")
A, B, C = range(3)


class Fenced(World):
    def __init__(self, n=3, **options):
        super().__init__(n, **options)
        self.clients = {}

    def client(self, who, **timing):
        if who not in self.clients:
            self.clients[who] = (*self.session(**timing), Fence())
        return self.clients[who]

    def acquire(self, who="ada", *reach, fresh=False, timeout=0.0, **timing):
        """Acquire; return the hold, or None."""
        session, owner, fence = self.client(who, **timing)
        request = AcquireRequest(name="x", kind=FENCED_LOCK, keys=KEYS, owner=owner, timeout=timeout)
        return self.run(fenced_lock.acquire(session, request, self.now, Fence() if fresh else fence), *reach)

    def release(self, who, hold, *reach):
        self.run(release(self.client(who)[0], hold, self.now), *reach)

    def take(self, who, *reach, **options):
        """Acquire and release; return the token."""
        hold = self.acquire(who, *reach, **options)
        self.release(who, hold)
        return hold.fencing_token

    def put(self, *tokens):
        for store, token in zip(self.stores, tokens, strict=True):
            execute(store, b"SET", KEYS.token, b"%d" % token)

    @property
    def tokens(self):
        return [int(execute(store, b"GET", KEYS.token) or 0) for store in self.stores]

    def owners(self):
        return [execute(store, b"HKEYS", KEYS.lock) for store in self.stores]

    def come_back(self, node, data):
        """Make a node return as another process with old data; the next client that connects notices."""
        self.stores[node].load(data)
        execute(self.stores[node], b"SET", b"redsync_birth", b"newborn %d -" % self.stores[node].now_ms)


@pytest.fixture
def world():
    """Nodes that never forgot anything."""
    world = Fenced()
    world.initialize()
    return world


YEARS = 5 * 365 * 86_400 * 10**6


def test_token_of_one_node_that_no_clock_shows_is_never_handed_out(world):
    before = world.take("ada")
    execute(world.stores[A], b"SET", KEYS.token, b"%d" % (1 << 52))
    first = world.take("ada")
    assert before < first < before + YEARS
    assert world.take("bob") > first
    assert max(world.tokens[B:]) < before + YEARS
    execute(world.stores[A], b"DEL", KEYS.token)
    assert first < world.take("ada") < before + YEARS


def test_node_that_does_not_keep_the_claim_does_not_stand_for_the_token(world):
    """C has granted to Bob already, and with B it becomes his quorum: his token would be lower than Ada's."""
    world.put(10, 2, 2)
    bob, keys = world.client("bob")[1], (KEYS.lock, KEYS.foreign_token, KEYS.token)
    late = [run_script(FENCED_LOCK.acquire, world.stores[C], keys, (bob.claim(1), 1, 30_000, b"0,-,", 0))]
    with pytest.raises(QuorumError, match="UNCLAIMED"):
        world.acquire("ada", {A, B}, {A, C})
    assert world.owners()[:2] == [[], []], "a token that is not handed out is rolled back"
    late.append(run_script(FENCED_LOCK.acquire, world.stores[B], keys, (bob.claim(1), 1, 30_000, b"0,-,", 0)))
    assert max(late) < 11, "Bob's token would be lower than Ada's"


@pytest.mark.parametrize("wiped", [{A}, {B, C}, {A, B, C}])
def test_tokens_grow_when_nodes_forgot_them(world, wiped):
    before = world.take("ada")
    for node in wiped:
        world.stores[node].flush()
    world.now += 1.0
    tokens = [world.take(who, reach, reach, fresh=True) for who in ("bob", "ada") for reach in ({A, B}, {B, C}, {A, C})]
    assert [before, *tokens] == sorted({before, *tokens})


def test_tokens_grow_for_a_client_that_has_seen_one_if_all_nodes_forgot_and_clocks_were_set_back(world):
    before = world.take("ada")
    world.offsets = [-3600.0] * 3
    for store in world.stores:
        store.flush()
    assert world.take("bob", fresh=True) < before, "no other client knows"
    assert world.take("ada") > before


def test_clocks_that_differ_do_not_matter_while_nodes_remember(world):
    world.offsets = [0.0, -7200.0, 7200.0]
    tokens = [world.take(who, reach, reach, fresh=True) for who in ("ada", "bob") for reach in ({A, B}, {B, C}, {A, C})]
    world.offsets.reverse()
    tokens += [world.take("bob", reach, reach, fresh=True) for reach in ({A, B}, {B, C}, {A, C})]
    assert tokens == sorted(set(tokens))
    assert tokens[-1] < 2**53


def test_plain_hold_of_the_same_owner_is_not_taken_for_a_fenced_one(world):
    session, owner, fence = world.client("ada")
    world.run(lock.acquire(session, AcquireRequest(name="x", kind=LOCK, keys=KEYS, owner=owner), world.now))
    with pytest.raises(KeyTypeError, match="no token"):
        fenced_lock.acquire(
            session,
            AcquireRequest(name="x", kind=FENCED_LOCK, keys=KEYS, owner=owner),
            world.now,
            fence,
        )


# Old data.


@pytest.mark.parametrize("guard", [0.0, 30.0])
@pytest.mark.parametrize("n", [1, 3])
def test_tokens_grow_if_nodes_return_with_old_data(n, guard):
    """From snapshots; with one node, and with a majority of three while the third is silent."""
    world = Fenced(n)
    world.initialize()
    tokens = [world.take("ada", restart_guard=guard)]
    snapshots = [store.copy() for store in world.stores]
    for _ in range(5):
        world.now += 0.01
        tokens.append(world.take("ada"))
    world.now += 0.5
    for node in range(n // 2 + 1):
        world.come_back(node, snapshots[node])
    world.now += guard
    heard = set(range(n // 2 + 1))
    tokens += [world.take("bob", *[heard] * 3, restart_guard=guard) for _ in range(3)]
    assert tokens == sorted(set(tokens))


def test_tokens_grow_if_the_clock_of_the_node_that_returns_is_behind(world):
    """By less than the guard: B has given tokens by its clock, which is ahead, and A stood at them."""
    world.offsets[B] = 20.0
    snapshot = world.stores[A].copy()
    first = world.take("ada", {A, B}, {A, B}, restart_guard=30.0)
    world.come_back(A, snapshot)
    world.now += 30.0
    assert world.take("bob", {A, C}, {A, C}, restart_guard=30.0) > first
