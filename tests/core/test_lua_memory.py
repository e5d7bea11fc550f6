"""Birth records on a real server: who grants although it may have forgotten, and who remembers since when."""

import re

import pytest
import redis

from redsync._core.keys import LockKeys
from redsync._core.memory import BIRTH_KEY

KEYS = LockKeys.of(b"redsync:", b"x")
ME, OTHER = b"client-a:1", b"client-b:2"
LEASE, GUARD = 30_000, 20_000
NEW, EXISTING = 1, 2
SLACK = 2_000
"""Milliseconds that a test on a busy machine may take."""


@pytest.fixture(params=["acquire", "queue"])
def ask(request, claims):
    """Ask for a claim, with or without a place in the queue."""
    return getattr(claims, request.param)


def record(claims, kind, age):
    """Write a birth record of that age, ms by the node's clock; negative: from its future."""
    claims.redis.set(BIRTH_KEY, f"{kind} {claims.now() - age}")


def birth(claims):
    """Return the kind and the age of the birth record, ms."""
    kind, _, since = claims.redis.get(BIRTH_KEY).partition(b" ")
    return kind.decode(), claims.now() - int(since)


def forgetful(ask, **options):
    """Ask in vain; return for how long the node says that it remembers, ms."""
    with pytest.raises(redis.exceptions.ResponseError) as caught:
        ask(**options)
    return int(re.fullmatch(r"FORGETFUL (-1|\d+)", str(caught.value))[1])


# New claims.


def test_node_without_a_record_grants_nothing_new(claims, ask):
    assert forgetful(ask, guard=GUARD) == -1
    assert claims.node.dump() == {}, "it neither grants nor gets a record by itself"


@pytest.mark.parametrize("guard", [1, GUARD, 10**9])
def test_original_node_grants_whatever_its_age(claims, ask, guard):
    record(claims, "original", 0)
    assert ask(guard=guard) == NEW
    assert claims.holder() == ME


def test_newborn_node_grants_when_it_is_older_than_the_guard(claims, ask):
    record(claims, "newborn", GUARD + 1)
    assert ask(guard=GUARD) == NEW


def test_newborn_node_that_is_younger_than_the_guard_grants_nothing_and_tells_its_age(claims, ask):
    record(claims, "newborn", GUARD - SLACK)
    before = claims.node.dump()
    assert GUARD - SLACK <= forgetful(ask, guard=GUARD) < GUARD
    assert claims.node.dump() == before


def test_newborn_node_is_old_enough_for_some_claims_and_too_young_for_others(claims, ask):
    record(claims, "newborn", GUARD)
    assert forgetful(ask, guard=10 * GUARD) >= GUARD
    assert ask(guard=GUARD) == NEW


def test_newborn_node_whose_clock_was_set_back_counts_anew(claims, ask):
    """Its record is from the future, so nobody knows how long that is still to go."""
    record(claims, "newborn", -60_000)
    assert forgetful(ask, guard=GUARD) == 0
    kind, age = birth(claims)
    assert kind == "newborn"
    assert 0 <= age < SLACK
    assert claims.holder() is None


def test_original_node_whose_clock_was_set_back_grants(claims, ask):
    record(claims, "original", -60_000)
    assert ask(guard=GUARD) == NEW
    assert birth(claims)[1] < 0, "its record stays as it is"


@pytest.mark.parametrize("kind", [None, "newborn", "original"])
def test_without_a_guard_nobody_asks_what_a_node_remembers(claims, ask, kind):
    if kind is not None:
        record(claims, kind, 0)
    before = claims.redis.get(BIRTH_KEY)
    assert ask(guard=0) == NEW
    assert claims.redis.get(BIRTH_KEY) == before


def test_what_a_node_has_is_told_whatever_else_it_forgot(claims, ask):
    """A claim that is there keeps others away, and its owner's re-entry is no new claim."""
    claims.acquire(ME)
    assert ask(OTHER, guard=GUARD)[1] == ME
    assert ask(ME, guard=GUARD) == EXISTING


def test_claim_on_a_node_with_a_record_of_another_type_fails(claims, ask):
    claims.redis.rpush(BIRTH_KEY, "original")
    with pytest.raises(redis.exceptions.ResponseError, match="WRONGTYPE"):
        ask(guard=GUARD)
    assert claims.holder() is None


# Renewals.


def test_renewal_makes_a_node_without_a_record_a_newborn_one(claims):
    """It forgot: claims are renewed that it does not have. Whatever it looks like, it is no new node."""
    assert claims.renew((b"x", ME, 1, LEASE), guarded=True) == [1]
    kind, age = birth(claims)
    assert kind == "newborn"
    assert 0 <= age < SLACK
    assert claims.redis.ttl(BIRTH_KEY) == -1, "it is kept for ever"


def test_renewal_of_many_claims_finds_its_flag_behind_them(claims):
    renewed = [(b"lock %d" % i, ME, 1, LEASE) for i in range(5)]
    assert claims.renew(*renewed) == [1] * 5
    assert not claims.redis.exists(BIRTH_KEY)
    assert claims.renew(*renewed, guarded=True) == [2] * 5
    assert birth(claims)[0] == "newborn"


def test_renewal_without_a_guard_writes_no_record(claims):
    assert claims.renew((b"x", ME, 1, LEASE)) == [1]
    assert set(claims.node.dump()) == {KEYS.lock}


@pytest.mark.parametrize("kind", ["original", "newborn"])
def test_renewal_leaves_a_record_as_it_is(claims, kind):
    record(claims, kind, 5_000)
    before = claims.redis.get(BIRTH_KEY)
    claims.renew((b"x", ME, 1, LEASE), guarded=True)
    assert claims.redis.get(BIRTH_KEY) == before


def test_renewal_works_without_memory_for_a_record(claims):
    """The node stays without one, and so out of new grants; what it has is renewed."""
    claims.acquire(ME)
    with claims.node.out_of_memory():
        assert claims.renew((b"x", ME, 1, LEASE), guarded=True) == [2]
    assert not claims.redis.exists(BIRTH_KEY)


# Christening.


def christen(claims, kind):
    return claims.node.run("node_christen", (BIRTH_KEY,), kind)


@pytest.mark.parametrize("kind", ["original", "newborn"])
def test_christening_writes_a_record_with_the_nodes_own_time(locks, kind):
    reply = christen(locks, kind)
    assert re.fullmatch(rb"(original|newborn) \d{13}", locks.redis.get(BIRTH_KEY))
    assert reply[0] == locks.redis.get(BIRTH_KEY)
    assert reply[0] == b"%s %d" % (kind.encode(), reply[1])
    found, age = birth(locks)
    assert found == kind
    assert 0 <= age < SLACK
    assert locks.redis.ttl(BIRTH_KEY) == -1


@pytest.mark.parametrize("first", ["original", "newborn"])
@pytest.mark.parametrize("second", ["original", "newborn"])
def test_christening_leaves_a_record_as_it_is(locks, first, second):
    """Of several clients that begin at once the first decides; and a late command takes nothing back."""
    record(locks, first, 5_000)
    before = locks.redis.get(BIRTH_KEY)
    found, now = christen(locks, second)
    assert found == before == locks.redis.get(BIRTH_KEY), "and says so"
    assert 0 <= locks.now() - now < SLACK


@pytest.mark.parametrize(("kind", "grants"), [("original", True), ("newborn", False)])
def test_christening_says_what_the_other_scripts_understand(claims, ask, kind, grants):
    christen(claims, kind)
    if grants:
        assert ask(guard=GUARD) == NEW
    else:
        assert 0 <= forgetful(ask, guard=GUARD) < SLACK


# Records of clients.

CLIENT = b"redsync:client:285475da-9152-4c83-822a-67ee2f116a79"


def test_announcement_is_kept_for_its_time(node, lasts):
    assert node.run("client_announce", (CLIENT,), b"\0record\xff", 65_000) == 1
    assert node.dump() == {CLIENT: b"\0record\xff"}
    assert lasts(node.redis.pttl(CLIENT), 65_000)


def test_announcement_that_is_repeated_keeps_it_longer(node, lasts):
    node.run("client_announce", (CLIENT,), b"old", 5_000)
    assert node.run("client_announce", (CLIENT,), b"new", 65_000) == 1
    assert node.dump() == {CLIENT: b"new"}
    assert lasts(node.redis.pttl(CLIENT), 65_000)


def test_withdrawal_forgets_that_client_only(node):
    for key in (CLIENT, CLIENT + b"0"):
        node.run("client_announce", (key,), b"record", 65_000)
    assert [node.run("client_withdraw", (CLIENT,)) for _ in range(2)] == [1, 0]
    assert node.dump() == {CLIENT + b"0": b"record"}
