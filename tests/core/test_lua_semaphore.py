"""The semaphore's scripts on a real server: granted slots, waiters, the limit, and leftovers."""

import math
import random

import pytest
import redis

from redsync._core.permits import SlotKeys
from tests.core.conftest import guard_of
from tests.support.trouble import read_only

KEYS = SlotKeys.of(b"redsync:", b"x")
OTHER = SlotKeys.of(b"redsync:", b"y")
HELD = KEYS.lock, KEYS.slots, KEYS.taken
A, B, C, D = (f"client-{sent_command}:1".encode() for sent_command in "abcd")
WAKE = {owner: b"redsync:wake:" + owner.replace(b":", b"-") for owner in (A, B, C, D)}
LEASE, KEEP = 30_000, 5_000
HAD, HEALED, NOT_OURS, WRONG_TYPE = 2, 1, 0, -1
V1 = 1 << 32


PTTL_OF_ALL = """
local left = {}
for i = 1, #KEYS + 1 do left[i] = redis.call('pttl', KEYS[(i - 1) % #KEYS + 1]) end
return left
"""


def said(claim):
    """Return the message that wakes the owner of a claim."""
    return b"0 " + claim.rpartition(b":")[0] + b" " + KEYS.lock


class SlotNode:
    """One node, and the commands to it; a semaphore of 4 permits by default."""

    def __init__(self, node):
        self.node, self.redis = node, node.redis

    def ask_raw(self, owner, n=1, *, lease=LEASE, guard=0, keep=0, ticket=0, keys=KEYS, window=(), **words):
        claim = owner, n, lease, guard_of(guard), keep, ticket, WAKE.get(owner, b"redsync:wake:unused")
        words = {"version": 0, "permits": 4, "exact": b"", "start": 0, **words}
        return self.node.run("semaphore_acquire", keys.all, *claim, *words.values(), *window)

    def ask(self, owner, n=1, **options):
        """Ask, and return the slots of a grant without those taken."""
        reply = self.ask_raw(owner, n, **options)
        return reply[0] if isinstance(reply, list) and isinstance(reply[0], bytes) else reply

    def wait(self, owner, ticket, n=1, **options):
        return self.ask(owner, n, ticket=ticket, keep=KEEP, **options)

    def release(self, owner, remain=b""):
        count = remain.count(b",") + 1 if remain else 0
        return self.node.run("semaphore_release", KEYS.all, owner, count, remain)

    def abandon(self, owner, *, leave=True, place=()):
        return self.node.run("semaphore_abandon", KEYS.all, owner, 0 if leave else -1, *place)

    def confirm(self, owner, slots, lease=LEASE):
        return self.node.run("semaphore_confirm", KEYS.all, owner, slots, lease)

    def renew(self, *permits, guarded=False, limits=(b"0 4", b"0 4")):
        """Renew permits, each a tuple: number of its semaphore, owner, slots, lease."""
        words = [word for permit in permits for word in permit]
        return self.node.run("semaphore_renew", KEYS.all + OTHER.all, *words, *limits, *([1] if guarded else []))

    def look(self, *, holders=-1, guard=0, start=0, version=0, permits=4, window=()):
        words = holders, guard_of(guard), start, version, permits, *window
        return self.node.run("semaphore_inspect", KEYS.all, *words)

    def resize(self, version, permits, window=()):
        return self.look(holders=0, version=version, permits=permits, window=window)[:2]

    def woken(self):
        """Return the waiters woken since the last call."""
        heard = self.node.messages(self.subscription)
        woken = [claim for claim in WAKE for channel, _ in heard if channel == WAKE[claim]]
        assert sorted(heard) == sorted((WAKE[claim], said(claim)) for claim in woken)
        return woken

    def slots(self, keys=KEYS):
        return {permit: slots for permit, slots in self.redis.hgetall(keys.slots).items() if permit[:1] != b">"}

    def taken(self, keys=KEYS):
        bits = self.redis.get(keys.taken) or b""
        return [8 * i + j for i, byte in enumerate(bits) for j in range(8) if byte >> (7 - j) & 1]

    def queued(self):
        """Return the claims of the waiters, the first ones of their owners, with their tickets."""
        return [(owner + b":1", int(ticket)) for owner, ticket in self.redis.zrange(KEYS.queue, 0, -1, withscores=True)]

    def now(self):
        """Return the node's time, ms to the microsecond."""
        seconds, microseconds = self.redis.time()
        return seconds * 1000 + microseconds / 1000

    def left(self, owner):
        return self.redis.zscore(KEYS.lock, owner) - self.now()

    def expire(self, owner):
        """Let a permit expire."""
        assert self.redis.zadd(KEYS.lock, {owner: 1}, xx=True, ch=True) == 1

    def ends(self, keys):
        """Return when the keys end, from the same instant. PEXPIRETIME would tell, but Redis 6 lacks it."""
        while True:
            first, *others = self.redis.eval(PTTL_OF_ALL, len(keys), *keys)
            if others[-1] == first:  # The clock has not advanced during the reads.
                return {first, *others}

    def is_sound(self, keys=KEYS):
        """Return whether each bit belongs to just one permit, and no key outlasts another."""
        slots = [int(slot) for text in self.slots(keys).values() for slot in text.split(b",") if slot]
        members = set(self.redis.zrange(keys.lock, 0, -1))
        ends = self.ends((keys.lock, keys.slots, keys.taken))
        return sorted(slots) == self.taken(keys) and members == set(self.slots(keys)) and len(ends) == 1


@pytest.fixture
def sem(node):
    """A node with listeners for A, B, C and D, whose records agree at the end of the test."""
    with node.listening(*WAKE.values()) as subscription:
        sem = SlotNode(node)
        sem.subscription = subscription
        yield sem
        assert sem.is_sound()


@pytest.fixture
def unheard(node):
    return SlotNode(node)


# Granting.


@pytest.mark.parametrize("seed", range(5))
def test_slots_are_the_first_free_ones_whatever_is_taken(sem, seed):
    rng = random.Random(seed)
    permits = rng.choice([1, 7, 8, 9, 64, 65, 300])
    taken = set(rng.sample(range(permits), rng.randint(0, permits - 1)))
    for slot in taken:
        sem.ask(b"owner-%d" % slot, permits=permits, exact=b"%d" % slot)
    start, n = rng.randrange(permits), rng.randint(1, permits - len(taken))
    free = [(start + i) % permits for i in range(permits) if (start + i) % permits not in taken]
    assert sem.ask(A, n, permits=permits, start=start) == b",".join(b"%d" % slot for slot in free[:n])


def test_refusal_of_a_rate_limiter_reports_no_longer_than_its_window(sem, lasts):
    """Until the node hears of a success, it keeps the slots for longer."""
    window = (20_000_000,)
    sem.ask(A, 4, lease=60_000, window=window)
    assert lasts(sem.ask(B, window=window)[0], 20_000)
    sem.confirm(A, b"0,1,2,3", 10_000)
    assert lasts(sem.ask(B, window=window)[0], 10_000)


@pytest.mark.parametrize("window", [(), (1_000_000,)])
def test_ask_that_comes_late_or_twice_takes_nothing_away_although_others_wait(sem, window):
    assert sem.ask(A, 2, permits=2, window=window) == b"0,1"
    assert sem.wait(B, 1, permits=2, window=window)[1] == b"full"
    assert sem.ask(A, 2, permits=2, window=window, start=1) == b"0,1"
    assert sem.slots() == {A: b"0,1"}
    assert sem.queued() == [(B, 1)]


@pytest.mark.parametrize(("asks", "knows"), [((0, 4), (V1, 2)), ((V1, 2), (2 * V1, 4)), ((V1, 4), (2 * V1, 3))])
def test_ask_that_comes_late_takes_nothing_away_although_the_limit_was_changed(sem, asks, knows):
    """It may come over an abandoned connection, after a later ask or a renewal has given the permit its slots here."""
    sem.resize(*knows)
    sem.renew((1, A, b"1", LEASE), limits=(b"%d %d" % knows, b"0 4"))
    late = {"version": asks[0], "permits": asks[1], "start": 1}
    for n in 1, 2:
        assert sem.ask(A, n, **late) == b"1"
    assert sem.slots() == {A: b"1"}
    assert sem.redis.get(KEYS.limit) == b"%d %d" % knows


@pytest.mark.parametrize(
    ("others", "has", "exact", "gets"),
    [
        pytest.param(b"", b"0,1", b"1,3", b"1,3", id="exchanges its own"),
        pytest.param(b"2", b"0,1", b"2,3", b"0,1", id="keeps its own if others have some"),
        pytest.param(b"2", b"", b"1,2", b"3,0", id="gets others if it has none"),
    ],
)
def test_further_try_gets_the_exact_slots_if_no_other_has_them(sem, others, has, exact, gets):
    for owner, slots in ((A, others), (B, has)):
        if slots:
            sem.ask(owner, slots.count(b",") + 1, exact=slots)
    for _ in range(2):
        assert sem.ask(B, 2, start=3, exact=exact, lease=2 * LEASE) == gets
    assert sem.slots()[B] == gets
    assert sem.left(B) > LEASE


def test_grant_shows_all_slots_taken(sem):
    sem.ask(A, start=2)
    assert sem.ask_raw(B, 2, start=3) == [b"3,0", bytes([0b1011_0000])]


# Expiry.


@pytest.mark.parametrize("gone", HELD)
def test_remains_of_expired_permits_on_a_promoted_replica_block_no_owner(sem, gone):
    """A master expires its keys one by one, and tells its replicas, whose clocks may be behind."""
    sem.ask(A, 3)
    sem.redis.delete(gone)
    assert sem.renew((1, A, b"0,1,2", LEASE)) == [HEALED]
    assert sem.slots() == {A: b"0,1,2"}
    sem.redis.delete(gone)
    assert sem.ask(B, 4) == b"0,1,2,3"


# The queue.


def test_no_waiter_is_overtaken_even_if_it_wants_more(sem):
    sem.ask(A, 4)
    assert sem.wait(B, 1, 3)[1:4] == [b"full", 1, 0]
    assert sem.wait(C, 2)[1:4] == [b"full", 2, 1]
    sem.release(A, b"0,1")
    assert sem.ask(D, ticket=3)[1] == b"full", "one that does not wait takes no place"
    assert sem.wait(C, 2)[1] == b"full"
    sem.release(A, b"0")
    assert sem.wait(B, 1, 3) == b"1,2,3"
    assert sem.queued() == [(C, 2)], "a waiter that is served leaves the queue"
    assert all(0 < sem.redis.pttl(key) <= KEEP for key in (KEYS.queue, KEYS.places))


def test_waiter_that_fits_beside_those_before_it_is_served_at_once(sem):
    sem.ask(A, 4)
    sem.wait(B, 1)
    sem.wait(C, 2)
    sem.release(A)
    assert sem.ask(D, 3)[1] == b"full"
    assert sem.ask(D, 2, start=0) == b"0,1"
    assert sem.wait(C, 2, start=0) == b"2"


ROOM = {
    "a release": (lambda sem: sem.release(A, b"0,1"), [B]),
    "a rollback": (lambda sem: sem.abandon(A), [B, C]),
    "a growth": (lambda sem: sem.resize(V1, 5), [B]),
    "an expiry, noticed by an ask": (lambda sem: (sem.expire(A), sem.ask(D)), [B, C]),
    "an expiry, noticed by a look": (lambda sem: (sem.expire(A), sem.look()), [B, C]),
}
"""Actions that make room, and the waiters that each one wakes."""


@pytest.mark.parametrize("what", ROOM)
def test_waiters_that_then_fit_are_woken_and_no_others(sem, what):
    make_room, woken = ROOM[what]
    sem.ask(A, 3)
    sem.ask(D)
    sem.wait(B, 1)
    sem.wait(C, 2, 2)
    make_room(sem)
    assert sem.woken() == woken
    assert sem.queued() == [(B, 1), (C, 2)], "they keep their places until they are served"


def test_waiter_whose_client_does_not_listen_loses_its_place_to_the_next(unheard):
    unheard.ask(A, 4)
    unheard.wait(B, 1)
    unheard.wait(C, 2)
    with unheard.node.listening(WAKE[C]) as subscription:
        unheard.release(A, b"0,1,2")
        assert unheard.node.messages(subscription) == [(WAKE[C], said(C))]
    assert unheard.queued() == [(C, 2)]


LEAVING = {
    "gives up": lambda sem: sem.abandon(B),
    "releases what other nodes granted": lambda sem: sem.release(B),
    "confirms what other nodes granted": lambda sem: sem.confirm(B, b"0,1"),
}


@pytest.mark.parametrize("how", LEAVING)
def test_waiter_that_leaves_the_queue_wakes_those_that_then_fit(sem, how):
    sem.ask(A, 3)
    sem.wait(B, 1, 2)
    sem.wait(C, 2)
    assert sem.woken() == []
    assert LEAVING[how](sem) == 0
    assert sem.woken() == [C]
    assert sem.queued() == [(C, 2)]
    assert sem.confirm(C, b"3") == 1
    assert sem.queued() == []


def test_rolled_back_grant_keeps_its_turn_and_wakes_the_next_only_when_it_leaves(sem):
    sem.ask(A, 1)
    assert sem.wait(B, 1, 3) == b"1,2,3"
    assert sem.abandon(B, leave=False, place=(3, 0, KEEP, 1, WAKE[B])) == 1
    assert sem.wait(C, 2, 2)[1] == b"full"
    assert sem.queued() == [(B, 1), (C, 2)]
    assert sem.woken() == []
    assert sem.abandon(B, leave=True) == 0
    assert sem.woken() == [C]


# Release.


@pytest.mark.parametrize(("remain", "rest"), [(b"", {}), (b"3", {A: b"3"}), (b"0", {})])
def test_release_keeps_those_that_remain_or_else_nothing_but_the_limit(sem, remain, rest):
    """A node that lacks all that remain drops the permit."""
    sem.ask(A, 3, start=1)
    assert sem.release(A, remain) == 1
    assert sem.slots() == rest
    assert rest or sem.redis.keys() == [KEYS.limit]
    assert 0 < sem.redis.pttl(KEYS.limit) <= 86_400_000
    assert sem.release(A, remain) == len(rest)


def test_release_that_a_node_refuses_is_an_error_even_without_the_permit(sem):
    sem.ask(B)
    with read_only([sem.redis]), pytest.raises(redis.exceptions.RedisError, match="read only replica"):
        sem.release(A)


@pytest.mark.parametrize("n", [1, 2])
def test_release_of_what_expired_is_told_once_others_may_have_its_slots(sem, n):
    sem.ask(A, n)
    sem.expire(A)
    assert sem.release(A) == 1, "no other owner got them"
    assert sem.redis.keys() == [KEYS.limit]
    sem.ask(A, n)
    sem.expire(A)
    sem.ask(B)
    assert sem.slots() == {B: b"0"}
    assert sem.release(A) == 0


# Renewal.


def test_renewal_lengthens_and_reports_and_keys_outlast_the_longest_lease(sem):
    sem.ask(A, 2, lease=1000)
    sem.ask(B)
    assert sem.renew((1, A, b"0,1", 100_000), (1, B, b"2", LEASE)) == [HAD, HAD]
    assert sem.left(A) > 2 * LEASE
    assert sem.renew((1, A, b"0,1", 1_000)) == [HAD]
    assert sem.left(A) > 2 * LEASE, "never shortened"
    assert all(100_000 < sem.redis.pttl(key) <= 200_000 for key in HELD)


def test_renewal_counts_no_expired_permit_and_wakes_the_waiters_that_fit(sem):
    late = [b"p%d:1" % i for i in range(5)]
    for owner in (A, *late):
        sem.ask(owner, permits=6)
    assert sem.wait(B, 1, permits=6)[1] == b"full"
    for owner in late:
        sem.expire(owner)
    limits = b"0 6", b"0 4"
    assert sem.renew((1, late[4], b"5", LEASE), limits=limits) == [HEALED], "the script removes only some"
    assert sem.woken() == [B]


def test_renewal_takes_the_slot_of_an_expired_permit(sem):
    sem.ask(A)
    sem.expire(A)
    assert sem.renew((1, B, b"0", LEASE)) == [HEALED]
    assert sem.slots() == {B: b"0"}


def test_renewal_that_heals_a_permit_removes_the_place_of_its_owner(sem):
    sem.ask(A, 4)
    sem.wait(B, 1)
    sem.release(A)
    assert sem.renew((1, B, b"1", LEASE)) == [HEALED]
    assert sem.queued() == []


def test_renewal_heals_a_forgotten_permit_but_does_not_count_it(sem):
    assert sem.renew((1, A, b"1,3", LEASE), (2, B, b"0", LEASE)) == [HEALED, HEALED]
    assert sem.slots() == {A: b"1,3"}
    assert sem.slots(OTHER) == {B: b"0"}
    assert sem.renew((1, A, b"1,3", LEASE), (2, B, b"0", LEASE)) == [HAD, HAD]
    assert sem.is_sound()
    assert sem.is_sound(OTHER)


@pytest.mark.parametrize(
    ("had", "others", "wanted", "code"),
    [
        pytest.param(b"0", b"", b"0", HEALED, id="expired and still there: does not count"),
        pytest.param(b"", b"1", b"0,1", NOT_OURS, id="takes none from another"),
        pytest.param(b"3", b"", b"0", HEALED, id="exchanges what the node gave"),
        pytest.param(b"0", b"3", b"3", NOT_OURS, id="frees what the node gave even so"),
        pytest.param(b"0,1,2", b"", b"0,2", HAD, id="was reduced: counts, and frees the rest"),
    ],
)
def test_renewal_makes_a_node_keep_exactly_the_wanted_slots_if_no_other_has_them(sem, had, others, wanted, code):
    for owner, text in ((A, had), (B, others)):
        if text:
            sem.ask(owner, text.count(b",") + 1, exact=text)
    if had == wanted:
        sem.expire(A)
    assert sem.renew((1, A, wanted, LEASE)) == [code]
    assert sem.slots() == ({B: others} if code == NOT_OURS else {A: wanted})
    assert sem.renew((1, A, wanted, LEASE)) == [NOT_OURS if code == NOT_OURS else HAD]


@pytest.mark.parametrize("others", [{}, {B: b"2"}], ids=["free", "taken"])
def test_renewal_that_a_release_of_some_slots_has_overtaken_changes_no_slot(sem, others):
    """They come over different connections. It must neither cost the permit its other slots, nor count as a loss."""
    sem.ask(A, 3)
    sem.release(A, remain=b"0,1")
    for owner, slots in others.items():
        sem.ask(owner, exact=slots)
    assert sem.renew((1, A, b"0,1,2", 2 * LEASE)) == [HAD]
    assert sem.slots() == {A: b"0,1", **others}
    assert sem.left(A) > LEASE
    assert sem.is_sound()


@pytest.mark.parametrize(
    ("known", "told", "kept"),
    [
        pytest.param((V1, 1), (0, 4), (V1, 1), id="reports a newer one, and keeps slots beyond it"),
        pytest.param((0, 4), (V1, 2), (V1, 2), id="learns a newer one"),
        pytest.param(None, (V1, 2), (V1, 2), id="restores a forgotten one"),
    ],
)
def test_renewal_leaves_the_node_with_the_newest_limit(sem, known, told, kept):
    sem.ask(A, start=3)
    if known:
        sem.resize(*known)
    else:
        sem.redis.delete(KEYS.limit)
    limits = [b"%d %d" % limit for limit in (known or told, told, kept)]
    news = [limits[0], b""] if kept != told else []
    assert sem.renew((1, A, b"3", LEASE), limits=(limits[1], b"0 4")) == [HAD, *news]
    assert sem.redis.get(KEYS.limit) == limits[2]
    assert sem.redis.pttl(KEYS.limit) == -1, "the limit of a resize stays"
    assert sem.redis.get(OTHER.limit) is None, "none of its permits was renewed"
    assert sem.renew((1, A, b"3", LEASE), limits=(limits[2], b"0 4")) == [HAD]


def test_renewal_keeps_the_limit_of_the_programs_as_long_as_permits(sem):
    sem.ask(A, lease=1_000)
    sem.renew((1, A, b"0", 10**9))
    assert sem.redis.get(KEYS.limit) == b"0 4"
    assert sem.redis.pttl(KEYS.limit) > 10**9


def test_renewal_writes_a_birth_record_if_memory_is_guarded(sem):
    sem.renew((1, A, b"0", LEASE))
    assert sem.redis.exists("redsync_birth") == 0
    sem.renew((1, A, b"0", LEASE), guarded=True)
    assert sem.redis.get("redsync_birth").startswith(b"newborn ")


def test_node_out_of_memory_renews_and_frees_but_grants_nothing(sem):
    sem.ask(A, 2, lease=1_000)
    sem.ask(B, lease=1_000)
    with sem.node.out_of_memory():
        with pytest.raises(redis.exceptions.ResponseError, match="not allowed when used memory"):
            sem.ask(C)
        assert sem.renew((1, A, b"0,1", LEASE)) == [HAD]
        assert sem.release(A, b"1") == 1
        assert sem.abandon(B) == 1
        assert sem.release(A) == 1
    assert sem.redis.keys() == [KEYS.limit]


# The limit.


def test_impossible_limit_of_a_node_does_not_count(sem):
    for text in (b"%d 2" % (1 << 53), b"%d 2" % (1 << 60), b"1 0", b"1 10001", b"nonsense"):
        sem.redis.set(KEYS.limit, text)
        assert sem.look()[:2] == [-1, 0]
        assert sem.ask(A) == b"0"
        assert sem.redis.get(KEYS.limit) == b"0 4"
        sem.release(A)


def test_limit_of_a_resize_is_learned_even_without_a_grant(sem):
    sem.ask(A, 4)
    version = (1 << 53) - 2
    assert sem.ask(B, version=version, permits=3)[1] == b"full"
    assert sem.redis.get(KEYS.limit) == b"%d 3" % version
    with pytest.raises(redis.ResponseError, match="FORGETFUL"):
        sem.ask(B, version=version + 1, permits=5, guard=1)
    assert sem.redis.get(KEYS.limit) == b"%d 5" % (version + 1)


def test_grant_teaches_a_newer_limit_and_under_any_other_it_is_refused(sem):
    sem.ask(A, permits=4)
    assert sem.redis.get(KEYS.limit) == b"0 4", "as the first use says"
    assert sem.ask(B, permits=5)[1:] == [b"limit", 0, 0, b"0 4"]
    assert sem.ask(B, permits=6, version=V1, start=5) == b"5"
    assert sem.redis.get(KEYS.limit) == b"%d 6" % V1
    assert sem.redis.pttl(KEYS.limit) == -1, "the limit of a resize is kept permanently"
    assert sem.ask(C, permits=4)[1:] == [b"limit", 0, 0, b"%d 6" % V1]
    assert sem.slots() == {A: b"0", B: b"5"}


def test_resize_keeps_the_newest(sem):
    low, high = (3 << 32) + 7, (3 << 32) + 8
    assert sem.resize(high, 5) == [high, 5]
    assert sem.resize(low, 9) == [high, 5]
    assert sem.resize(high, 6) == [high, 5]
    assert sem.resize(0, 4) == [high, 5]
    assert sem.redis.keys() == [KEYS.limit]
    assert sem.redis.pttl(KEYS.limit) == -1, "the limit of a resize stays"


def test_refused_permit_keeps_nothing_of_an_earlier_round_whatever_the_reason(sem):
    for refuse in (
        lambda: sem.ask(B, 2, exact=b"0,1", permits=3),
        lambda: (sem.wait(C, 1, 4), sem.wait(B, 2, 2))[1],
    ):
        assert sem.ask(B, 2, start=1) == b"1,2"
        sem.ask(A, start=3)
        assert isinstance(refuse(), list)
        assert sem.slots() == {A: b"3"}
        assert sem.is_sound()
        sem.release(A)


# Permits that only run out.


def test_refusal_reports_when_there_is_room_for_the_waiters_before_and_itself(sem, lasts):
    for owner, lease in ((A, 10_000), (B, 20_000), (C, 30_000)):
        sem.ask(owner, lease=lease, permits=3)
    remaining, *others = sem.ask(D, permits=3)
    assert lasts(remaining, 10_000)
    assert others == [b"full", 0, 0, b""]
    assert lasts(sem.ask(D, 2, permits=3)[0], 20_000)
    for ticket, left in enumerate((10_000, 20_000, 30_000, LEASE, LEASE), 1):
        assert lasts(sem.wait(b"w%d:1" % ticket, ticket, permits=3)[0], left)
    assert lasts(sem.ask(D, permits=3)[0], LEASE), "an asker without a place comes last"


def test_refusal_of_a_rate_limiter_counts_what_the_waiters_before_want(sem, lasts):
    words = {"permits": 3, "window": (60_000_000,)}
    for owner, lease in ((A, 10_000), (B, 20_000), (C, 30_000)):
        sem.ask(owner, lease=lease, **words)
    for ticket, wants, left in ((1, 2, 20_000), (2, 1, 30_000)):
        assert lasts(sem.wait(b"w%d:1" % ticket, ticket, wants, **words)[0], left)


def test_refusal_counts_free_slots_for_the_waiters_before(sem, lasts):
    """They have not asked since, but nothing wakes the waiters behind them when their permits have run out again."""
    sem.ask(A, 2, permits=2)
    for ticket, owner in enumerate((B, C), 1):
        assert sem.wait(owner, ticket, permits=2)[1] == b"full"
    sem.expire(A)
    for ticket in 3, 4, 5:
        assert sem.wait(D if ticket == 3 else b"w%d:1" % ticket, ticket, permits=2)[0] == LEASE


def test_thousands_of_expired_permits_are_removed_for_an_asker_of_as_many(sem):
    """Lua passes at most about 8,000 values to a command."""
    fill(sem, 9_010, lambda i: 1 if i < 9_005 else 10**15)
    granted = sem.ask(A, 9_000, permits=10_000)
    assert len(granted.split(b",")) == 9_000
    assert len(sem.slots()) == 6 + 1


def fill(sem, count, expiry_ms):
    """Give that many permits one slot each; `expiry_ms`: until when they last, by their slots."""
    with sem.redis.pipeline(transaction=False) as pipeline:
        for i in range(count):
            pipeline.zadd(KEYS.lock, {b"p:%d" % i: expiry_ms(i)})
            pipeline.hset(KEYS.slots, b"p:%d" % i, i)
            pipeline.setbit(KEYS.taken, i, 1)
        for key in HELD:
            pipeline.pexpireat(key, 10**15)
        pipeline.execute()


def test_look_at_many_lists_a_page_at_a_time(sem):
    fill(sem, 2_100, lambda i: 10**15 + i)
    pages = [{permit: slots for permit, slots, *_ in sem.look(start=start)[3]} for start in (0, 1_000, 2_000, 3_000)]
    assert [len(page) for page in pages] == [1_000, 1_000, 100, 0]
    assert set().union(*pages) == {b"p:%d" % i for i in range(2_100)}
    assert pages[1][b"p:1000"] == b"1000"


def test_look_removes_expired_permits_and_wakes_the_waiters_that_fit(sem):
    for i in range(1_200):
        sem.ask(b"p:%d" % i, permits=1_200)
    sem.wait(B, 1, 3, permits=1_200)
    sem.redis.zadd(KEYS.lock, {b"p:%d" % i: 1 for i in range(1_100)})
    assert sem.look(holders=0)[5] == 3
    assert sem.woken() == [B]
    assert len(sem.taken()) == 100


def test_limit_of_a_rate_limiter_has_its_window_and_is_resized_only_under_that(sem):
    sem.ask(A, window=(60,))
    for window in ((), (61,)):
        assert sem.resize(V1, 5, window) == [0, 4]
    assert sem.renew((1, A, b"0", LEASE)) == [HAD]
    assert sem.redis.get(KEYS.limit) == b"0 4 60"
    for options in ({}, {"window": (61,)}, {"window": (60,), "permits": 5}, {"version": 1 << 32}):
        assert sem.ask(B, **options)[1:] == [b"limit", 0, 0, b"0 4 60"]
    assert sem.look()[4] == 60
    assert sem.ask(B, window=(60,)) == b"1"
    assert sem.resize(V1, 5, (60,)) == [V1, 5]
    assert sem.renew((1, A, b"0", LEASE)) == [HAD], "a semaphore's permit does not learn it"
    assert sem.redis.get(KEYS.limit) == b"%d 5 60" % V1
    assert sem.redis.ttl(KEYS.limit) == -1, "permanently, like that of a semaphore"
    assert sem.ask(C, window=(60,))[1:] == [b"limit", 0, 0, b"%d 5 60" % V1]


def test_node_without_a_limit_learns_that_of_a_rate_limiter(sem):
    assert sem.look(version=V1, permits=5, window=(60,))[:2] == [V1, 5]
    assert sem.look()[4] == 60


@pytest.mark.parametrize(("lease", "kept"), [(60_000, 86_400_000), (40_000_000, 86_400_000), (90_000_000, 180_000_000)])
def test_limit_of_a_rate_limiter_is_kept_for_a_day_or_two_windows_from_a_use_on(sem, lasts, lease, kept):
    """Not from each use, but from the first after each window."""
    sem.ask(A, window=(60,), lease=lease)
    assert lasts(sem.redis.pttl(KEYS.limit), kept)
    for key in HELD:
        assert sem.redis.pexpire(key, lease - 1)
    sem.redis.pexpire(KEYS.limit, kept - lease)
    sem.ask(B, window=(60,), lease=lease)
    assert lasts(sem.redis.pttl(KEYS.limit), kept)


# Looks, memory, strangers.


def test_look_reports_limit_slots_and_clients(sem, lasts):
    *nothing, now_ms = sem.look()
    assert nothing == [-1, 0, b"", [], 0, 0]
    assert abs(sem.redis.time()[0] - now_ms / 1000) < 60
    client = b"285475da-9152-4c83-822a-67ee2f116a79"
    sem.redis.set(b"redsync:client:" + client, b"a record")
    sem.ask(client + b":7:1", 2, start=1, lease=20_000)
    sem.ask(B, lease=40_000)
    sem.ask(client + b":8:1", start=3, lease=40_000)
    version, permits, bits, holders, *_ = sem.look()
    assert (version, permits, bits) == (0, 4, bytes([0b1111_0000]))
    assert sorted((permit, slots) for permit, slots, _, _ in holders) == [
        (client + b":7:1", b"1,2"),
        (client + b":8:1", b"3"),
        (B, b"0"),
    ]
    assert sorted(record for *_, record in holders) == [b"", b"", b"a record"], "each record comes once"
    assert lasts(next(left for permit, _, left, _ in holders if permit.endswith(b":7:1")), 20_000)
    assert sem.look(holders=0)[3] == []
    assert [holder[0] for holder in sem.look(holders=1)[3]] == [client + b":7:1"]


def test_node_without_memory_grants_nothing_but_lets_wait(sem):
    for call in (sem.ask, lambda _, guard: sem.look(guard=guard)):
        with pytest.raises(redis.ResponseError, match="FORGETFUL -1"):
            call(A, guard=1000)
    assert sem.redis.keys() == []
    sem.redis.set("redsync_birth", "original 1 -")
    assert sem.ask(A, 4, guard=1000) == b"0,1,2,3"
    sem.redis.delete("redsync_birth")
    assert sem.wait(B, 1, guard=1000)[1] == b"full"


@pytest.mark.parametrize("claim", [None, (b"r:" + B, 1), (b"r:" + B, 9e12), (b"w:" + B, -1), (b"w:" + B, -9e12)])
def test_foreign_value_and_readers_and_writers_of_that_name_are_left_unchanged(unheard, claim):
    if claim:
        unheard.redis.zadd(KEYS.lock, dict([claim]))
    else:
        unheard.redis.hset(KEYS.lock, "a", "lock")
    before = unheard.node.dump()
    assert unheard.ask(A) == unheard.release(A) == unheard.abandon(A) == unheard.confirm(A, b"0") == unheard.look() == 0
    assert unheard.renew((1, A, b"0", LEASE)) == [WRONG_TYPE]
    assert unheard.node.dump() == before


# Confirming a success of a rate limiter: the slots that a quorum of nodes keeps for it.


def test_success_is_kept_as_long_as_needed_from_its_confirmation_on_and_never_longer_than_before(sem):
    sem.ask(A)
    sem.ask(B, lease=LEASE // 3)
    for _ in range(2):
        assert sem.confirm(A, b"0", LEASE // 2) == sem.confirm(B, b"1", LEASE // 2) == 1
    assert LEASE // 2 - 5_000 < sem.left(A) <= LEASE // 2
    assert sem.left(B) <= LEASE // 3
    assert sem.confirm(A, b"2,3") == sem.confirm(C, b"0") == 1
    assert sem.slots() == {A: b"2,3", B: b"1", C: b"0"}, "exchanged, or given where it had none"
    assert LEASE - 5_000 < sem.left(C) <= LEASE


def test_permit_is_kept_for_its_lease_to_the_microsecond(sem):
    """Of a rate limiter's window each millisecond counts; `windows` allows for 10 us."""
    sem.ask(B, lease=4 * LEASE)
    for owner, lease in ((A, LEASE - 0.5), (A, 2 * LEASE - 0.123), (B, 2 * LEASE - 0.123), (B, LEASE - 0.5)):
        before = sem.now()
        if owner == A:
            sem.ask(A, lease=b"%.3f" % lease, exact=b"0")
        else:
            sem.confirm(B, b"1", b"%.3f" % lease)
        assert before - 0.001 <= sem.redis.zscore(KEYS.lock, owner) - lease <= sem.now() + 0.001
        assert sem.is_sound()


@pytest.mark.parametrize("left", [LEASE, LEASE + 0.5])
def test_keys_that_would_end_a_part_of_a_millisecond_before_a_permit_are_lengthened(sem, left):
    sem.ask(B)
    for _ in range(20):
        end = int(sem.now()) + math.ceil(left)
        pipeline = sem.redis.pipeline()
        for key in HELD:
            pipeline.pexpireat(key, end)
        pipeline.execute()
        sem.ask(A, lease=b"%.3f" % left)
        assert sem.redis.pttl(KEYS.lock) > LEASE + 1
        sem.release(A)


@pytest.mark.parametrize("exact", [b"", b"0"])
def test_earlier_ask_that_comes_late_ends_no_permit_sooner(sem, exact):
    """An acquire of a rate limiter whose round was too slow repeats its ask, for longer: that must last."""
    sem.ask(A)
    sem.ask(A, exact=b"0", lease=LEASE + 500)
    sem.ask(A, exact=exact)
    assert LEASE + 300 < sem.left(A) <= LEASE + 500


@pytest.mark.parametrize("end", ["roll back", "be released by force", "ask for other slots", "be refused", "expire"])
@pytest.mark.parametrize("has", [0, 1])
def test_success_gets_its_slot_as_soon_as_no_other_has_it(sem, has, end):
    """Else it would look free on this node alone, and mislead each asker until the window ends."""
    if has:
        sem.ask(A)
    sem.ask(B, start=1)
    assert sem.confirm(A, b"1") == 0
    assert sem.slots() == {A: b"0" if has else b"", B: b"1"}
    assert sem.is_sound()
    if end == "roll back":
        sem.abandon(B)
    elif end == "be released by force":
        assert sem.release(B) == 1
    elif end == "ask for other slots":
        assert sem.ask(B, exact=b"2") == b"2"
    elif end == "be refused":
        sem.ask(B, exact=b"2", version=V1, permits=0)
    else:
        sem.expire(B)
        sem.look()
    assert sem.slots()[A] == b"1"
    assert sem.slots().get(B) == (b"2" if end == "ask for other slots" else None)
    assert sem.taken() == ([1, 2] if end == "ask for other slots" else [1])


def test_successes_with_each_others_slots_move_up_one_after_the_other(sem):
    for slot, owner in enumerate((A, B, C)):
        sem.ask(owner, start=slot)
    assert sem.confirm(A, b"1") == sem.confirm(B, b"2") == 0
    sem.abandon(C)
    assert sem.slots() == {A: b"1", B: b"2"}
    assert sem.taken() == [1, 2]


def test_success_of_several_slots_gets_them_once_all_are_free(sem):
    sem.ask(A, 2)
    sem.ask(B, start=2)
    sem.ask(C, start=3)
    assert sem.confirm(A, b"2,3") == 0
    sem.abandon(B)
    assert sem.slots() == {A: b"0,1", C: b"3"}
    sem.abandon(C)
    assert sem.slots() == {A: b"2,3"}
    assert sem.taken() == [2, 3]


def test_slot_of_a_success_whose_time_is_over_stays_free(sem):
    sem.ask(A)
    sem.ask(B, start=1)
    sem.confirm(A, b"1")
    sem.expire(A)
    sem.ask(C, start=2)
    sem.look()
    sem.abandon(B)
    assert sem.redis.hgetall(KEYS.slots) == {C: b"2"}
