"""Birth records on a real server: who grants although it may have forgotten, and who remembers since when."""

import re

import pytest
import redis

from redsync._core.keys import LockKeys
from redsync._core.memory import BIRTH_KEY
from tests.core.conftest import process_of

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


def record(claims, kind, age, process="-"):
    """Write a birth record of that age, ms by the node's clock; negative: from its future.

    Claims are asked for by one who takes the node for the process "-": scripts that grant believe that. Those that
    write records look for themselves, see `process_of`.
    """
    claims.redis.set(BIRTH_KEY, f"{kind} {claims.now() - age} {process}")


def birth(claims):
    """Return the kind and the age of the birth record, ms; it is of the process that has it."""
    kind, since, process = claims.redis.get(BIRTH_KEY).decode().split(" ")
    assert process in {"-", process_of(claims.redis)}
    return kind, claims.now() - int(since)


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


@pytest.mark.parametrize(
    "record",
    ["original 1 another", "newborn 1 another", "original 1", "newborn 1", "blank 1 -", "a lock", ""],
    ids=[
        "of another process",
        "newborn of another process",
        "of no process",
        "newborn of none",
        "blank",
        "none",
        "empty",
    ],
)
def test_record_that_names_no_process_that_the_asker_is_connected_to_says_nothing(claims, ask, record):
    """The data may be of any age: of before a restart, or of another server."""
    claims.redis.set(BIRTH_KEY, record)
    assert forgetful(ask, guard=1) == -1
    assert claims.redis.get(BIRTH_KEY) == record.encode()
    assert claims.holder() is None


@pytest.mark.parametrize("kind", ["original", "newborn"])
def test_process_whose_name_is_a_part_of_another_is_another(claims, ask, kind):
    record(claims, kind, 2 * GUARD, process="othe")
    assert forgetful(ask, guard=GUARD) == -1


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
    record(claims, kind, 5_000, process_of(claims.redis))
    before = claims.redis.get(BIRTH_KEY)
    claims.renew((b"x", ME, 1, LEASE), guarded=True)
    assert claims.redis.get(BIRTH_KEY) == before


@pytest.mark.parametrize("kind", ["original", "newborn"])
def test_renewal_makes_a_node_newborn_whose_record_is_of_another_process(claims, kind):
    """Its data was replaced while it was running, perhaps by that of a node that clients are connected to as well."""
    record(claims, kind, 5_000, "another")
    claims.renew((b"x", ME, 1, LEASE), guarded=True)
    kind, age = birth(claims)
    assert kind == "newborn"
    assert 0 <= age < SLACK


def test_renewal_makes_a_blank_node_newborn(claims):
    """It forgot before it was first looked at."""
    record(claims, "blank", 5_000, process_of(claims.redis))
    claims.renew((b"x", ME, 1, LEASE), guarded=True)
    assert birth(claims)[0] == "newborn"


@pytest.mark.parametrize("value", ["a lock", "original", "original soon -"])
def test_renewal_leaves_what_is_no_record(claims, value):
    claims.redis.set(BIRTH_KEY, value)
    claims.renew((b"x", ME, 1, LEASE), guarded=True)
    assert claims.redis.get(BIRTH_KEY) == value.encode()


def test_renewal_works_without_memory_for_a_record(claims):
    """The node stays without one, and so out of new grants; what it has is renewed."""
    claims.acquire(ME)
    with claims.node.out_of_memory():
        assert claims.renew((b"x", ME, 1, LEASE), guarded=True) == [2]
    assert not claims.redis.exists(BIRTH_KEY)


# Initialization.


def initialize(claims, step, marks=""):
    return claims.node.run("node_initialize", (BIRTH_KEY,), step, *([marks] if step == "original" else []))


def mark(claims):
    """Return what a client that has seen the record says of it."""
    _, since, process = claims.redis.get(BIRTH_KEY).decode().split(" ")
    return f" 1,other {since},{process} "


def describes(claims, reply, kind):
    """Whether a reply says that the node has a new record of that kind, as it has."""
    record, now, process = reply
    assert process == process_of(claims.redis).encode()
    assert claims.redis.get(BIRTH_KEY) == record
    assert claims.redis.ttl(BIRTH_KEY) == -1, "it is kept for ever"
    return record == b"%s %d %s" % (kind.encode(), now, process) and 0 <= claims.now() - now < SLACK


@pytest.mark.parametrize(("step", "kind"), [("look", "blank"), ("newborn", "newborn"), ("original", "blank")])
def test_node_without_a_record_gets_one_that_names_its_process(locks, step, kind):
    """It may have been emptied since somebody took it for new: then an original record must not come about."""
    assert describes(locks, initialize(locks, step, " 1,- "), kind)


@pytest.mark.parametrize("step", ["look", "newborn", "original"])
@pytest.mark.parametrize("kind", ["original", "newborn"])
def test_record_of_the_same_process_stays(locks, step, kind):
    """Of several clients that begin at once the first decides; and a late command takes nothing back."""
    record(locks, kind, 5_000, process_of(locks.redis))
    before = locks.redis.get(BIRTH_KEY)
    found, now, _ = initialize(locks, step, mark(locks))
    assert found == before == locks.redis.get(BIRTH_KEY), "and is told"
    assert 0 <= locks.now() - now < SLACK


@pytest.mark.parametrize("step", ["look", "newborn", "original"])
@pytest.mark.parametrize("kind", ["original", "newborn", "blank"])
@pytest.mark.parametrize("process", [" another", "", " - -", " 0123456789abcdef"])
def test_record_of_another_process_becomes_a_newborn_one_whatever_it_says(locks, step, kind, process):
    locks.redis.set(BIRTH_KEY, f"{kind} 1{process}")
    assert describes(locks, initialize(locks, step, f" 1,{process.strip()} "), "newborn")


def test_blank_record_stays_while_others_look(locks):
    before, *_ = initialize(locks, "look")
    assert initialize(locks, "look")[0] == before


def test_blank_record_is_exchanged_for_an_original_one_by_who_has_seen_it(locks):
    initialize(locks, "look")
    assert describes(locks, initialize(locks, "original", mark(locks)), "original")


def test_blank_record_is_not_exchanged_by_who_has_seen_another(locks):
    """The node was emptied since, and then somebody else looked: its peers may have been used meanwhile."""
    record(locks, "blank", 5_000, process_of(locks.redis))
    seen = mark(locks)
    locks.redis.delete(BIRTH_KEY)
    before, *_ = initialize(locks, "look")
    assert initialize(locks, "original", seen)[0] == before == locks.redis.get(BIRTH_KEY)


def test_blank_record_gives_way_to_a_newborn_one(locks):
    initialize(locks, "look")
    assert describes(locks, initialize(locks, "newborn"), "newborn")


@pytest.mark.parametrize("value", ["a lock", "original", "original soon -"])
def test_initialization_leaves_what_is_no_record(locks, value):
    locks.redis.set(BIRTH_KEY, value)
    assert initialize(locks, "newborn")[0] == value.encode() == locks.redis.get(BIRTH_KEY)


def test_initialization_fails_on_a_record_of_another_type(locks):
    locks.redis.rpush(BIRTH_KEY, "original")
    with pytest.raises(redis.exceptions.ResponseError, match="WRONGTYPE"):
        initialize(locks, "look")


@pytest.mark.parametrize("old", [None, "original 1 another"])
def test_node_without_memory_for_a_record_tells_what_it_has(locks, old):
    """Which does not name its process: so it takes part in nothing that needs memory."""
    if old:
        locks.redis.set(BIRTH_KEY, old)
    with locks.node.out_of_memory():
        record, _, process = initialize(locks, "newborn")
    assert record == (old or "").encode()
    assert process == process_of(locks.redis).encode()


@pytest.mark.parametrize(("step", "grants"), [("original", True), ("newborn", False)])
def test_initialization_says_what_the_other_scripts_understand(claims, step, grants):
    initialize(claims, "look")
    initialize(claims, step, mark(claims))
    ask = (KEYS.lock,), ME, 1, LEASE, f"{GUARD},{process_of(claims.redis)},"
    if grants:
        assert claims.node.run(f"{claims.noun}_acquire", *ask) == NEW
    else:
        with pytest.raises(redis.exceptions.ResponseError, match="FORGETFUL"):
            claims.node.run(f"{claims.noun}_acquire", *ask)


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
