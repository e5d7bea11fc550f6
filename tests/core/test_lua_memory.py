"""Birth records on a real server: who grants although it may have forgotten, and who remembers since when."""

import re

import pytest
import redis

from redsync._core.memory import BIRTH_KEY
from tests.core.conftest import EXISTING, KEYS, LEASE, ME, NEW, OTHER, SLACK, process_of

GUARD = 20_000


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

UNKNOWN = "original 1 another", "newborn 1 another", "original 1", "newborn 1", "blank 1 -", "a lock", ""


@pytest.mark.parametrize(
    ("kind", "age", "guard"),
    [
        ("original", 0, 1),
        ("original", 0, GUARD),
        ("original", 0, 10**9),
        ("original", -60_000, GUARD),
        ("newborn", GUARD + 1, GUARD),
        (None, 0, 0),
        ("newborn", 0, 0),
        ("original", 0, 0),
    ],
)
def test_node_that_remembers_for_long_enough_grants_and_keeps_its_record(claims, ask, kind, age, guard):
    """An original one does whatever its age, and without a guard nobody asks."""
    if kind is not None:
        record(claims, kind, age)
    before = claims.redis.get(BIRTH_KEY)
    assert ask(guard=guard) == NEW
    assert claims.holder() == ME
    assert claims.redis.get(BIRTH_KEY) == before


def test_newborn_node_grants_nothing_until_it_is_older_than_the_guard_and_tells_its_age(claims, ask):
    record(claims, "newborn", GUARD)
    before = claims.node.dump()
    assert GUARD <= forgetful(ask, guard=GUARD + 10 * SLACK) < GUARD + SLACK
    assert claims.node.dump() == before
    assert ask(guard=GUARD) == NEW, "old enough for some claims and too young for others"


def test_newborn_node_whose_clock_was_set_back_counts_anew(claims, ask):
    """Its record is from the future, so nobody knows how long that is still to go."""
    record(claims, "newborn", -60_000)
    assert forgetful(ask, guard=GUARD) == 0
    kind, age = birth(claims)
    assert kind == "newborn"
    assert 0 <= age < SLACK
    assert claims.holder() is None


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


@pytest.mark.parametrize("value", [None, *UNKNOWN, "original 1 othe", "newborn 1 othe"])
def test_record_that_names_no_process_that_the_asker_is_connected_to_says_nothing(claims, ask, value):
    """The data may be of any age: of before a restart, or of another server."""
    if value is not None:
        claims.redis.set(BIRTH_KEY, value)
    before = claims.node.dump()
    assert forgetful(ask, guard=1) == -1
    assert claims.node.dump() == before, "it neither grants nor gets a record by itself"


# Renewals.


def test_renewal_of_many_claims_finds_its_flag_behind_them(claims):
    renewed = [(b"lock %d" % i, ME, 1, LEASE) for i in range(5)]
    assert claims.renew(*renewed) == [1] * 5
    assert not claims.redis.exists(BIRTH_KEY), "without a guard it writes no record"
    assert claims.renew(*renewed, guarded=True) == [2] * 5
    assert birth(claims)[0] == "newborn"


@pytest.mark.parametrize(
    ("kind", "process"), [(None, ""), ("original", "another"), ("newborn", "another"), ("blank", None)]
)
def test_renewal_makes_a_node_newborn_that_forgot(claims, kind, process):
    """Claims are renewed that it does not have, or its data was replaced while it was running: it is no new node."""
    if kind is not None:
        record(claims, kind, 5_000, process or process_of(claims.redis))
    assert claims.renew((b"x", ME, 1, LEASE), guarded=True) == [1]
    kind, age = birth(claims)
    assert kind == "newborn"
    assert 0 <= age < SLACK
    assert claims.redis.ttl(BIRTH_KEY) == -1, "it is kept for ever"


@pytest.mark.parametrize("value", ["original", "newborn", "a lock", "original soon -", "original nothing"])
def test_renewal_leaves_a_record_of_this_process_and_what_is_no_record(claims, value):
    if value in {"original", "newborn"}:
        record(claims, value, 5_000, process_of(claims.redis))
    else:
        claims.redis.set(BIRTH_KEY, value)
    before = claims.redis.get(BIRTH_KEY)
    claims.renew((b"x", ME, 1, LEASE), guarded=True)
    assert claims.redis.get(BIRTH_KEY) == before


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


@pytest.mark.parametrize(("step", "kind"), [("look", None), ("original", "original"), ("newborn", "newborn")])
def test_blank_record_stays_for_who_looks_and_is_exchanged_by_who_has_seen_it(locks, step, kind):
    before, *_ = initialize(locks, "look")
    reply = initialize(locks, step, mark(locks))
    assert describes(locks, reply, kind) if kind else reply[0] == before


def test_blank_record_is_not_exchanged_by_who_has_seen_another(locks):
    """The node was emptied since, and then somebody else looked: its peers may have been used meanwhile."""
    record(locks, "blank", 5_000, process_of(locks.redis))
    seen = mark(locks)
    locks.redis.delete(BIRTH_KEY)
    before, *_ = initialize(locks, "look")
    assert initialize(locks, "original", seen)[0] == before == locks.redis.get(BIRTH_KEY)


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


def test_announcement_is_kept_for_its_time_and_repeated_for_longer(node, lasts):
    for record, kept in [(b"\0record\xff", 5_000), (b"new", 65_000)]:
        assert node.run("client_announce", (CLIENT,), record, kept) == 1
        assert node.dump() == {CLIENT: record}
        assert lasts(node.redis.pttl(CLIENT), kept)


def test_withdrawal_forgets_that_client_only(node):
    for key in (CLIENT, CLIENT + b"0"):
        node.run("client_announce", (key,), b"record", 65_000)
    assert [node.run("client_withdraw", (CLIENT,)) for _ in range(2)] == [1, 0]
    assert node.dump() == {CLIENT + b"0": b"record"}


# Nodes that Sentinels stand for: a server has its place by a decision, and each decision has a number.


HISTORY = "0a1b2c3d"


def elected(locks, epoch):
    """Return what a client names that was told of that decision: its server's process, among others."""
    return f",0123456789abcdef@1.{HISTORY},{process_of(locks.redis)}@{epoch}.{HISTORY},"


def initialize_elected(locks, step, epoch, marks=""):
    reply = locks.node.run("node_initialize", (BIRTH_KEY,), step, marks, elected(locks, epoch))
    assert reply[2] == f"{process_of(locks.redis)}@{epoch}.{HISTORY}".encode()
    return reply


def kind_of(record):
    return record.decode().split(" ")[0]


def test_first_record_names_that_nothing_was_decided_yet(locks):
    found, _, process = initialize_elected(locks, "look", 0)
    assert kind_of(found) == "blank"
    assert found.endswith(b" " + process)
    seen = b",".join(found.split(b" ")[1:]).decode()
    found, *_ = initialize_elected(locks, "original", 0, f" {seen} ")
    assert kind_of(found) == "original"
    assert found.endswith(b" " + process)


@pytest.mark.parametrize("step", ["look", "newborn", "original"])
def test_server_without_a_record_is_not_new_if_something_was_decided(locks, step):
    """It may be a replica that was promoted before it had got anything."""
    found, _, process = initialize_elected(locks, step, 7)
    assert kind_of(found) == "joining"
    assert found.endswith(b" " + process)


@pytest.mark.parametrize("kind", ["original", "newborn", "blank", "joining"])
@pytest.mark.parametrize(
    "written",
    [
        "{process}@6.0a1b2c3d",
        "{process}@8.0a1b2c3d",
        "{process}@7.ffffffff",
        "{process}",
        "fedcba9876543210@7.0a1b2c3d",
    ],
)
@pytest.mark.parametrize("step", ["look", "newborn", "original"])
def test_server_with_the_record_of_another_decision_is_joining_and_grants_nothing(claims, kind, written, step):
    """Whatever the step: it must be acknowledged under this decision before anything can follow from it."""
    written = written.format(process=process_of(claims.redis))
    record(claims, kind, 60_000, written)
    found, _, process = initialize_elected(claims, step, 7, f" {claims.now() - 60_000},{written} ")
    assert kind_of(found) == "joining"
    assert found.endswith(b" " + process)
    with pytest.raises(redis.exceptions.ResponseError, match="FORGETFUL -1"):
        claims.node.run(f"{claims.noun}_acquire", (KEYS.lock,), ME, 1, LEASE, f"1{elected(claims, 7)}")


@pytest.mark.parametrize(("step", "kind"), [("look", "joining"), ("original", "joining"), ("newborn", "newborn")])
def test_joining_record_becomes_newborn_and_never_original(locks, step, kind):
    process = f"{process_of(locks.redis)}@7.{HISTORY}"
    record(locks, "joining", 60_000, process)
    found, *_ = initialize_elected(locks, step, 7, f" {locks.now() - 60_000},{process} ")
    assert kind_of(found) == kind
    if kind == "newborn":
        assert locks.now() - int(found.split(b" ")[1]) < SLACK, "the guard counts from now"


def test_who_names_another_decision_gets_no_grant(claims):
    """It has not noticed that another server had the place meanwhile."""
    record(claims, "original", 60_000, f"{process_of(claims.redis)}@9.{HISTORY}")
    ask = f"{claims.noun}_acquire", (KEYS.lock,), ME, 1, LEASE
    for epoch in (7, 8, 10):
        with pytest.raises(redis.exceptions.ResponseError, match="FORGETFUL -1"):
            claims.node.run(*ask, f"{GUARD}{elected(claims, epoch)}")
    assert claims.node.run(*ask, f"{GUARD}{elected(claims, 9)}") == NEW


def test_renewal_leaves_the_record_of_an_elected_server(claims):
    """It does not know the decision; clients compare that."""
    for kind in ("original", "newborn", "joining"):
        record(claims, kind, 5_000, f"{process_of(claims.redis)}@7.{HISTORY}")
        before = claims.redis.get(BIRTH_KEY)
        assert claims.renew((b"x", ME, 1, LEASE), guarded=True) in ([1], [2])
        assert claims.redis.get(BIRTH_KEY) == before
