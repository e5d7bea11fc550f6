"""Birth records on a real server: which nodes grant although they may have forgotten, and since when they remember."""

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

    The asker of a claim takes the node for the process "-", and scripts that grant believe it. Scripts that write
    records look for themselves, see `process_of`.
    """
    claims.redis.set(BIRTH_KEY, f"{kind} {claims.now() - age} {process}")


def birth(claims):
    """Return the kind and the age of the birth record, ms, which must be of the current process."""
    kind, since, process = claims.redis.get(BIRTH_KEY).decode().split(" ")
    assert process in {"-", process_of(claims.redis)}
    return kind, claims.now() - int(since)


def forgetful(ask, **options):
    """Ask and be refused; return for how long the node says that it remembers, ms."""
    with pytest.raises(redis.exceptions.ResponseError) as caught:
        ask(**options)
    return int(re.fullmatch(r"FORGETFUL (-1|\d+)", str(caught.value))[1])


# New claims.

UNKNOWN = "original 1 another", "newborn 1 another", "original 1", "newborn 1", "blank 1 -", "a lock", ""
DECISIONS = "original 1 -@9.0a1b2c3d", "newborn 1 -@9.0a1b2c3d"
"""Records of a Sentinels' decision that the asker does not know: another server may have been the master meanwhile."""


def test_node_that_remembers_for_long_enough_grants_and_keeps_its_record(claims, ask):
    """An original one does at any age; without a guard, age does not matter."""
    for kind, age, guard in [
        ("original", 0, 1),
        ("original", 0, GUARD),
        ("original", 0, 10**9),
        ("original", -60_000, GUARD),
        ("newborn", GUARD + 1, GUARD),
        (None, 0, 0),
        ("newborn", 0, 0),
        ("original", 0, 0),
    ]:
        claims.redis.flushall()
        if kind is not None:
            record(claims, kind, age)
        before = claims.redis.get(BIRTH_KEY)
        assert ask(guard=guard) == NEW, (kind, age, guard)
        assert claims.holder() == ME
        assert claims.redis.get(BIRTH_KEY) == before


def test_newborn_node_grants_nothing_until_it_is_older_than_the_guard_and_reports_its_age(claims, ask):
    record(claims, "newborn", GUARD)
    before = claims.node.dump()
    assert GUARD <= forgetful(ask, guard=GUARD + 10 * SLACK) < GUARD + SLACK
    assert claims.node.dump() == before
    assert ask(guard=GUARD) == NEW, "old enough for some claims and too young for others"


def test_newborn_node_whose_clock_was_set_back_starts_over(claims, ask):
    """Its record is from the future, so it can't be known how much longer to wait."""
    record(claims, "newborn", -60_000)
    assert forgetful(ask, guard=GUARD) == 0
    kind, age = birth(claims)
    assert kind == "newborn"
    assert 0 <= age < SLACK
    assert claims.holder() is None


def test_existing_claim_is_reported_whatever_else_the_node_forgot(claims, ask):
    """A claim that is there keeps others away, and its owner's re-entry is not a new claim."""
    claims.acquire(ME)
    assert ask(OTHER, guard=GUARD)[1] == ME
    assert ask(ME, guard=GUARD) == EXISTING


def test_record_of_a_process_unknown_to_the_asker_does_not_count(claims, ask):
    """The data may be of any age: from before a restart, or of another server."""
    for value in [None, *UNKNOWN, *DECISIONS, "original 1 othe", "newborn 1 othe"]:
        if value is not None:
            claims.redis.set(BIRTH_KEY, value)
        before = claims.node.dump()
        assert forgetful(ask, guard=1) == -1, value
        assert claims.node.dump() == before, "it neither grants nor gets a record by itself"


# Renewals.


def test_renewal_of_as_many_claims_as_the_watchdog_sends_finds_its_flag_after_them(claims):
    renewed = [(b"lock %d" % i, ME, 1, LEASE) for i in range(200)]
    assert claims.renew(*renewed) == [1] * 200
    assert not claims.redis.exists(BIRTH_KEY), "without a guard it writes no record"
    assert claims.renew(*renewed, guarded=True) == [2] * 200
    assert birth(claims)[0] == "newborn"


@pytest.mark.parametrize(
    ("kind", "process"), [(None, ""), ("original", "another"), ("newborn", "another"), ("blank", None)]
)
def test_renewal_makes_a_node_newborn_that_forgot(claims, kind, process):
    """It renews claims that the node does not have, or the data was replaced under the live process: not a new node."""
    if kind is not None:
        record(claims, kind, 5_000, process or process_of(claims.redis))
    assert claims.renew((b"x", ME, 1, LEASE), guarded=True) == [1]
    kind, age = birth(claims)
    assert kind == "newborn"
    assert 0 <= age < SLACK
    assert claims.redis.ttl(BIRTH_KEY) == -1, "it never expires"


HISTORY = "0a1b2c3d"


@pytest.mark.parametrize("decision", ["", f"@7.{HISTORY}"])
@pytest.mark.parametrize("value", ["original", "newborn", "joining", "a lock", "original soon -", "original nothing"])
def test_renewal_leaves_a_record_of_this_process_and_foreign_values(claims, value, decision):
    """Even if the process is the master by a decision: the script does not know it; only clients compare decisions."""
    if value in {"original", "newborn", "joining"}:
        record(claims, value, 5_000, process_of(claims.redis) + decision)
    else:
        claims.redis.set(BIRTH_KEY, value)
    before = claims.redis.get(BIRTH_KEY)
    claims.renew((b"x", ME, 1, LEASE), guarded=True)
    assert claims.redis.get(BIRTH_KEY) == before


def test_renewal_works_without_memory_for_a_record(claims):
    """The node stays without one, and so out of new grants, but renews the claims that it has."""
    claims.acquire(ME)
    with claims.node.out_of_memory():
        assert claims.renew((b"x", ME, 1, LEASE), guarded=True) == [2]
    assert not claims.redis.exists(BIRTH_KEY)


# Initialization.


def initialize(claims, step, stamps=""):
    return claims.node.run("node_initialize", (BIRTH_KEY,), step, *([stamps] if step == "original" else []))


def stamp(claims):
    """Return the record's stamp, as a client that has seen it names it."""
    _, since, process = claims.redis.get(BIRTH_KEY).decode().split(" ")
    return f" 1,other {since},{process} "


STAYS = "stays"
INITIALIZED = {
    None: ("blank", "newborn", "blank"),
    "original 1000 {this}": (STAYS, STAYS, STAYS),
    "newborn 1000 {this}": (STAYS, STAYS, STAYS),
    "blank 1000 {this}": (STAYS, "newborn", "original"),
    "blank 2000 {this}": (STAYS, "newborn", STAYS),  # not the one that the client has seen
    "original 1000 0123456789abcdef": ("newborn", "newborn", "newborn"),
    "newborn 1000 another": ("newborn", "newborn", "newborn"),
    "blank 1000 another": ("newborn", "newborn", "newborn"),
    "original 1000": ("newborn", "newborn", "newborn"),
    "a lock": (STAYS, STAYS, STAYS),
    "original soon -": (STAYS, STAYS, STAYS),
}
"""The value at the key, and the record that each step writes: a look, as newborn, as original."""


@pytest.mark.parametrize("had", INITIALIZED)
def test_initialization_leaves_records_of_this_process_and_foreign_values(locks, had):
    """Of several clients that begin at once, the first decides. A late command undoes nothing."""
    this = process_of(locks.redis)
    for step, wanted in zip(("look", "newborn", "original"), INITIALIZED[had], strict=True):
        locks.redis.flushall()
        if had:
            locks.redis.set(BIRTH_KEY, had.format(this=this))
        before = locks.redis.get(BIRTH_KEY)
        found, now, process = initialize(locks, step, f" 1,other 1000,{this} ")
        assert locks.redis.get(BIRTH_KEY) == found
        assert found == (before if wanted == STAYS else f"{wanted} {now} {this}".encode()), step
        assert process == this.encode()
        assert 0 <= locks.now() - now < SLACK
        assert locks.redis.ttl(BIRTH_KEY) == -1, "it never expires"


def test_nothing_is_done_on_a_record_of_another_type(claims, ask):
    claims.redis.rpush(BIRTH_KEY, "original")
    for call in (lambda: ask(guard=GUARD), lambda: initialize(claims, "look")):
        with pytest.raises(redis.exceptions.ResponseError, match="WRONGTYPE"):
            call()
    assert claims.holder() is None


@pytest.mark.parametrize("old", [None, "original 1 another"])
def test_node_without_memory_for_a_record_reports_the_one_it_has(locks, old):
    """That record does not name its process, so the node takes part in nothing that needs memory."""
    if old:
        locks.redis.set(BIRTH_KEY, old)
    with locks.node.out_of_memory():
        record, _, process = initialize(locks, "newborn")
    assert record == (old or "").encode()
    assert process == process_of(locks.redis).encode()


# Records of clients.

CLIENT = b"redsync:client:285475da-9152-4c83-822a-67ee2f116a79"


def test_announcement_is_kept_for_its_time_and_repeated_for_longer(node, lasts):
    for record, kept in [(b"\0record\xff", 5_000), (b"new", 65_000)]:
        node.run("client_announce", (CLIENT,), record, kept)
        assert node.dump() == {CLIENT: record}
        assert lasts(node.redis.pttl(CLIENT), kept)


def test_withdrawal_forgets_that_client_only(node):
    for key in (CLIENT, CLIENT + b"0"):
        node.run("client_announce", (key,), b"record", 65_000)
    for _ in range(2):
        node.run("client_announce", (CLIENT,), b"", 0)
        assert node.dump() == {CLIENT + b"0": b"record"}


# Nodes behind Sentinels: a server is the master by a decision, and each decision has a number.


def elected(locks, epoch):
    """Return the processes named by a client that knows of that decision: its server's, among others."""
    return f",0123456789abcdef@1.{HISTORY},{process_of(locks.redis)}@{epoch}.{HISTORY},"


def initialize_elected(locks, step, epoch, stamps=""):
    reply = locks.node.run("node_initialize", (BIRTH_KEY,), step, stamps, elected(locks, epoch))
    assert reply[2] == f"{process_of(locks.redis)}@{epoch}.{HISTORY}".encode()
    return reply


def kind_of(record):
    return record.decode().split(" ")[0]


@pytest.mark.parametrize(
    ("epoch", "had", "kinds"),
    [
        pytest.param(0, None, ("blank", None, None, None), id="nothing was decided yet"),
        pytest.param(0, "blank", ("blank", "blank", "newborn", "original"), id="nothing was decided, and it was seen"),
        # It may be a replica that was promoted before it had got anything.
        pytest.param(7, None, ("joining", None, None, None), id="a server without a record is not new"),
        pytest.param(7, "joining", ("joining", "joining", "newborn", "joining"), id="never original"),
    ],
)
def test_elected_server_is_new_only_if_nothing_was_decided(locks, epoch, had, kinds):
    process = f"{process_of(locks.redis)}@{epoch}.{HISTORY}"
    for step, kind in zip(("greet", "look", "newborn", "original"), kinds, strict=True):
        locks.redis.flushall()
        if had:
            record(locks, had, 60_000, process)
        found, *_ = initialize_elected(locks, step, epoch, stamp(locks) if had else "")
        if kind is None:
            assert found == b"", "another name may be the current one"
            continue
        assert kind_of(found) == kind, step
        assert found.endswith(b" " + process.encode())
        if had != kind:
            assert locks.now() - int(found.split(b" ")[1]) < SLACK, "the guard counts from now"


@pytest.mark.parametrize("step", ["greet", "look", "newborn", "original"])
def test_server_with_the_record_of_another_decision_grants_nothing_and_is_joining_once_greeted(claims, step):
    """Nothing can follow from this decision before the record is acknowledged under it.

    Only a client that has just greeted the server knows its name: two that know it by different names would else
    overwrite each other's record again and again.
    """
    ours = process_of(claims.redis)
    others = [f"{ours}@6.0a1b2c3d", f"{ours}@8.0a1b2c3d", f"{ours}@7.ffffffff", ours, "fedcba9876543210@7.0a1b2c3d"]
    for kind in ("original", "newborn", "blank", "joining"):
        for written in others:
            record(claims, kind, 60_000, written)
            before = claims.redis.get(BIRTH_KEY)
            found, _, process = initialize_elected(claims, step, 7, f" {claims.now() - 60_000},{written} ")
            if step == "greet":
                assert kind_of(found) == "joining", (kind, written)
                assert found.endswith(b" " + process)
            else:
                assert found == before, (kind, written)
            with pytest.raises(redis.exceptions.ResponseError, match="FORGETFUL -1"):
                claims.node.run(claims.acquires, (KEYS.lock,), ME, claims.count(1), LEASE, f"1{elected(claims, 7)}")
