"""The holder of a lock or mutex, as nodes report it to a stranger, its forced release, and names that keys show."""

import pytest

from redsync._core.client_records import Claim, ClientRecord
from redsync._core.keys import LatchKeys
from redsync._core.permits import SlotKeys
from redsync._protocols.fenced_lock import FENCED_LOCK
from redsync._protocols.lock import FAIR_LOCK, LOCK
from redsync._protocols.mutex import MUTEX
from redsync._protocols.surveys import (
    NameLook,
    break_commands,
    find_names,
    force_release,
    is_held,
    name_of_key,
    survey,
)
from redsync.exceptions import KeyTypeError, QuorumError
from tests.protocols.conftest import CLIENT

A, B, C = b"client-a:1", b"client-b:1", b"client-c:1"
REDISSON = b"285475da-9152-4c83-822a-67ee2f116a7%d:52"


def look(by=None, remaining=20_000, count=1, waiters=(), *, kind=None, record=b""):
    holders = [] if by is None else [[by, count, b"", remaining, record]]
    kind = kind or (b"lock" if holders else b"none")
    return [kind, holders, len(holders), [[waiter, b""] for waiter in waiters], len(waiters), 0, 0, []]


def run_held(toy, *replies):
    steps = is_held(toy.session, LOCK, "x", toy.keys, toy.owner)
    return toy.play(steps, ("ask name_inspect", toy.answers(*replies)))


@pytest.mark.parametrize(
    ("replies", "expected"),
    [
        ([look(A)] * 5, True),
        ([look(A), look(A), look(A), look(B), look()], True),
        ([look(A), look(), look(A), look(), look(A)], True),
        ([look()] * 5, False),
        ([look(A), look(A), look(), look(), look()], False),
        ([look(A), look(A), look(B), look(B), look(C)], False),
        # Two nodes are silent: A may hold it there too, and then no other owner can have it.
        ([look(A), look(A), look(), "down", "down"], True),
        ([look(A), look(), look(), "down", "down"], True),
        # With one silent node, the fifth decides: it could be the third free one.
        ([look(A), look(), look(), "down", look()], False),
        ([look(A), look(), look(), "down", look(A)], True),
        ([look(), look(), look(), "down", "down"], False),
        # A minority of foreign values is as good as no answer.
        ([look(b"value", kind=b"mutex"), look(b"value", kind=b"mutex"), look(A), look(A), look(A)], True),
        # A claim that an earlier try of the same owner left behind is not part of its hold.
        ([look(A + b":1"), look(A + b":1"), look(A + b":2"), look(), look()], False),
        # A RedLock of Redisson has another id on each node.
        ([look(REDISSON % n) for n in range(3)] + [look(), look()], True),
    ],
)
def test_lock_is_held_if_an_owner_has_a_quorum_or_may_have_one(toy, replies, expected):
    assert run_held(toy, *replies) is expected


@pytest.mark.parametrize("kind", [b"list", b"mutex", b"semaphore"])
def test_look_at_a_value_of_another_kind_is_an_error(toy, kind):
    with pytest.raises(KeyTypeError):
        run_held(toy, *[look(A, kind=kind)] * 5)


def test_look_for_a_holder_without_a_quorum_is_an_error(toy):
    with pytest.raises(QuorumError) as caught:
        run_held(toy, look(A), look(A), "down", "down", "down")
    assert len(caught.value.votes) == 5


def test_survey_hears_all_nodes_that_answer(toy):
    steps = survey(toy.session, toy.keys, toy.owner)
    tally = toy.play(steps, ("ask name_inspect", toy.answers(look(A), look(A), look(A), look(B), look())))
    assert None not in tally.choices
    assert NameLook.read(tally.replies[3]).claims[0].owner == B.decode()
    assert toy.asked[0].guard == 0.0, "quarantined ones too"
    assert toy.commands[0].keys == toy.keys.everything
    assert toy.commands[0].args == (64, 100, 1), "the most holders and waiters, and that a program asks"


def test_look_reads_a_nodes_knowledge():
    record = ClientRecord("host", 7, "program", 1.5)
    found = NameLook.read(look(A, 1_500, 3, [B, C], record=record.pack()))
    assert found.claims == (Claim(A.decode(), 3, None, 1.5, record, A),)
    assert [waiter.owner for waiter in found.waiters] == [B.decode(), C.decode()]
    (claim,) = NameLook.read(look(b"\xff:1", -1)).claims
    assert (claim.raw, claim.remaining) == (b"\xff:1", None)


@pytest.mark.parametrize("record", [b"", b"\xc1", b"text", b"\x80"])
def test_look_takes_no_garbage_for_a_record(record):
    (claim,) = NameLook.read(look(A, record=record)).claims
    assert claim.client is None
    assert claim.owner == A.decode(), "the rest of the node's reply stands"


# Force release.


def run_force(toy, *replies, kind=LOCK, seen=None):
    looks = toy.answers(*(seen or [look(A)] * 5))
    script = ("ask name_inspect", looks), ("ask lock_release", toy.answers(*replies))
    return toy.play(force_release(toy.session, kind, "x", toy.keys, toy.owner), *script)


@pytest.mark.parametrize("replies", [[1] * 5, [0] * 5, [0, 0, 1, "down", "down"], [0, 0, 0, "down", "down"]])
def test_force_release_reports_whether_it_was_held(toy, replies):
    """As the nodes said before: which of them replies to the release first says nothing."""
    assert run_force(toy, *replies) is True
    assert toy.commands[-1].args == (A, 0, toy.keys.channel), "it names the claim to remove"


@pytest.mark.parametrize(("kind", "seen"), [(MUTEX, b"mutex"), (FAIR_LOCK, b"lock"), (FENCED_LOCK, b"fenced lock")])
def test_force_release_removes_values_of_its_kind_only(toy, kind, seen):
    assert run_force(toy, *[1] * 5, kind=kind, seen=[look(A, kind=seen)] * 5) is True
    with pytest.raises(KeyTypeError):
        toy.play(
            force_release(toy.session, kind, "x", toy.keys, toy.owner),
            ("ask name_inspect", toy.all_say(look(A, kind=b"mutex" if kind is not MUTEX else b"lock"))),
        )


def test_force_release_of_a_free_lock_removes_nothing(toy):
    steps = force_release(toy.session, LOCK, "x", toy.keys, toy.owner)
    assert toy.play(steps, ("ask name_inspect", toy.all_say(look()))) is False


def test_force_release_without_a_quorum_is_an_error(toy):
    with pytest.raises(QuorumError):
        run_force(toy, 1, 1, "down", "down", "down")
    steps = force_release(toy.session, LOCK, "x", toy.keys, toy.owner)
    with pytest.raises(QuorumError):
        toy.play(steps, ("ask name_inspect", toy.answers(look(A), look(A), "down", "down", "down")))


@pytest.mark.parametrize("foreign", range(5))
def test_force_release_by_a_quorum_counts_whatever_a_minority_keeps(toy, foreign):
    """In any order of the nodes' answers."""
    seen = [look(kind=b"list") if node == foreign else look(A) for node in range(5)]
    assert run_force(toy, *[1] * 5, seen=seen) is True


# The names that match.


def run_find(toy, *rounds):
    steps = find_names(toy.session, b"redsync:", "n*", toy.owner)
    return toy.play(steps, *[("ask names_scan", toy.answers(*replies)) for replies in rounds])


def scanned(node, *keys, cursor=b"0"):
    return [b"process-%d" % node, cursor, list(keys)]


NONE = [scanned(node) for node in range(5)]


def test_names_are_those_that_any_node_has_by_any_of_their_keys(toy):
    names = [scanned(node, b"redsync:n%d" % node) for node in range(5)]
    queues = [scanned(node, b"redsync_queue:{redsync:n9}", b"redsync_queue:{other}") for node in range(5)]
    assert run_find(toy, names, queues, NONE) == [b"n0", b"n1", b"n2", b"n3", b"n4", b"n9"]
    patterns = b"redsync:n*", b"redsync_*:{redsync:n*}", b"redsync_*::redsync:n*"
    assert [command.args for command in toy.commands] == [(pattern, b"0", b"") for pattern in patterns]


def test_scan_of_a_node_goes_on_from_its_cursor_and_concerns_no_other(toy):
    begun = [scanned(0, cursor=b"70"), *NONE[1:4], scanned(4, cursor=b"74")]
    rest = [scanned(node, b"redsync:n%d" % node, cursor=b"0") for node in range(5)]
    assert run_find(toy, begun, [scanned(0, cursor=b"71"), *NONE[1:]], rest, rest, NONE, NONE) == [b"n0", b"n4"]
    places = [(b"0", b""), (b"70", b"process-0"), (b"71", b"process-0"), (b"74", b"process-4")]
    assert [command.args[1:] for command in toy.commands[:4]] == places


def test_names_of_a_quorum_suffice(toy):
    replies = ["down", "down", *[scanned(node, b"redsync:n") for node in (2, 3, 4)]]
    assert run_find(toy, *[replies] * 3) == [b"n"]
    with pytest.raises(QuorumError, match="too few nodes answered to list the names like 'n") as caught:
        run_find(toy, NONE, ["down", "down", "down", *NONE[3:]], NONE)
    assert len(caught.value.votes) == 5


@pytest.mark.parametrize("reply", [1, [b"process", b"0"], [b"process", 0, []], [b"process", b"0", [1]]])
def test_scan_that_no_script_of_ours_reports_is_a_failure(toy, reply):
    with pytest.raises(QuorumError):
        run_find(toy, *[[reply] * 5] * 3)


# Keys and names.


@pytest.mark.parametrize("name", [b"x", b"a{b}c", b"a}b", b"\xff\x00", b"client:x", b":", b"x" * 512])
@pytest.mark.parametrize("prefix", [b"redsync:", b"", b"my{app}:", b"redsync_", b"redsync_{app}:"])
def test_name_is_read_from_its_keys(prefix, name):
    keys, latch = SlotKeys.of(prefix, name), LatchKeys.of(prefix, name)
    for key in (keys.lock, keys.queue, latch.latch):
        assert name_of_key(prefix, key) == name
    for key in (keys.places, keys.token, keys.slots, keys.taken, keys.limit, latch.waiters, latch.setting.lock):
        assert name_of_key(prefix, key) is None
    for key in (latch.setting.token, latch.setting.queue, b"redsync_birth"):
        assert name_of_key(prefix, key) is None


NAMELESS = {
    "a record": [b"redsync_birth"],
    # Someone may look at one of its servers as at a plain node, without a prefix.
    "a cluster's voter": [b"{rs7979}redsync:x", b"{rs7979}redsync_queue:{redsync:x}", b"redsync_queue::{rs7979}x"],
    "too long or too short": [b"x" * 513, b"redsync_queue:{%s}" % (b"x" * 513), b"redsync_queue:{}"],
}


@pytest.mark.parametrize("what", NAMELESS)
def test_other_keys_show_no_name(what):
    assert [name_of_key(b"", key) for key in NAMELESS[what]] == [None] * len(NAMELESS[what])
    for key in (f"redsync:client:{CLIENT}".encode(), b"redsync:"):
        assert name_of_key(b"redsync:", key) is None


def claim(mode=None, raw=A + b":1"):
    return Claim(A.decode(), 1, mode, 20.0, None, raw)


def test_no_command_breaks_a_latch_or_a_foreign_value():
    assert break_commands(b"redsync:", b"x", [("latch", claim()), ("list", claim())]) == []


def test_claims_are_broken_once_each_and_only_in_their_mode():
    held = [(kind, claim(mode)) for kind, mode in (("lock", None), ("lock", None), ("read-write lock", "read"))]
    commands = break_commands(b"redsync:", b"x", held)
    expected = [("lock_release", A + b":1"), ("read_write_lock_release", b"r:" + A + b":1")]
    assert [(command.script.name, command.args[0]) for command in commands] == expected
