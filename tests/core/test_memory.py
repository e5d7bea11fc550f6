"""Birth records, and what a node without one gets: decided over all that its peers may say."""

import random
from itertools import product

import pytest

from redsync._core.memory import BIRTH_KEY, FIRST_USE, NEWBORN, ORIGINAL, Birth, christening

NOW = 1_763_726_400.5


# Reading records.


@pytest.mark.parametrize(("kind", "newborn"), [(b"original", False), (b"newborn", True)])
@pytest.mark.parametrize("age", [0.0, 0.25, 30.0, 1e6])
def test_record_tells_its_kind_and_its_age_by_the_nodes_clock(kind, newborn, age):
    birth = Birth.read(b"%s %d" % (kind, (NOW - age) * 1000), NOW)
    assert birth.newborn is newborn
    assert birth.age == pytest.approx(age, abs=0.001)


def test_record_from_the_future_has_no_age():
    """The node's clock was set back: whatever it says, it may have been emptied a moment ago."""
    assert Birth.read(b"newborn %d" % ((NOW + 60) * 1000), NOW) == Birth(True, 0.0)


def test_node_without_a_record_has_no_birth():
    assert Birth.read(None, NOW) is None


@pytest.mark.parametrize(
    "record",
    [
        b"",
        b"original",
        b"newborn ",
        b"original soon",
        b"original 1.5",
        b" original 1",
        b"Original 1",
        b"new 1",
        b"285475da-9152-4c83-822a-67ee2f116a79:1",
        b"\xff",
    ],
)
def test_what_is_no_record_is_refused(record):
    with pytest.raises(ValueError):  # noqa: PT011 - int's own for what is no number
        Birth.read(record, NOW)


def test_refusal_of_what_is_no_record_names_the_key_and_shows_the_value():
    with pytest.raises(ValueError, match="redsync_birth holds b'a lock'"):
        Birth.read(b"a lock", NOW)
    with pytest.raises(ValueError, match="no birth record") as caught:
        Birth.read(b"x" * 10_000, NOW)
    assert len(str(caught.value)) < 200


def test_record_is_spelled_as_the_scripts_do():
    assert (BIRTH_KEY, ORIGINAL, NEWBORN) == (b"redsync_birth", b"original", b"newborn")


def test_reply_to_a_christening_tells_what_the_node_has_now():
    assert Birth.christened([b"original 1763726400000", 1_763_726_400_250]) == Birth(False, 0.25)
    assert Birth.christened([b"newborn 1763726400000", 1_763_726_400_000]) == Birth(True, 0.0)


@pytest.mark.parametrize(
    "reply", [1, b"OK", None, [], [b"original 1"], [None, 5], [b"original 1", None], [b"a lock", 5], [1, 5], [b"", 5]]
)
def test_reply_to_a_christening_that_tells_no_record_is_refused(reply):
    with pytest.raises((TypeError, ValueError, AttributeError)):
        Birth.christened(reply)


# Christening.

YOUNG, OLD = Birth(False, 0.1), Birth(False, 3600.0)
NEW, SEASONED = Birth(True, 0.1), Birth(True, 3600.0)
KNOWN = [YOUNG, OLD, NEW, SEASONED]
SIZES = range(1, 6)


@pytest.mark.parametrize("n", SIZES)
@pytest.mark.parametrize("certain", [True, False])
def test_nobody_is_christened_who_has_a_record(n, certain):
    for births in product(KNOWN, repeat=n):
        assert christening(births, certain=certain) is None


@pytest.mark.parametrize("n", SIZES)
def test_first_use_is_seen_when_no_node_has_a_record(n):
    assert christening([None] * n, certain=True) == ORIGINAL


@pytest.mark.parametrize("n", SIZES)
def test_node_without_a_record_is_newborn_while_not_all_could_be_asked(n):
    """One that is silent may remember; or all are known to have had records before."""
    for births in product([None, *KNOWN], repeat=n):
        if None in births:
            assert christening(births, certain=False) == NEWBORN, births


@pytest.mark.parametrize("n", SIZES)
def test_node_without_a_record_is_newborn_if_any_peer_remembers_for_long_or_forgot_before(n):
    for births in product([None, *KNOWN], repeat=n):
        if None in births and any(birth in (OLD, NEW, SEASONED) for birth in births):
            assert christening(births, certain=True) == NEWBORN, births


@pytest.mark.parametrize("n", SIZES)
def test_first_use_by_several_clients_at_once_is_seen_while_half_of_the_nodes_have_no_record_yet(n):
    """The peers' original records are seconds old: somebody else's christening is on its way."""
    for births in product([None, YOUNG], repeat=n):
        blank = births.count(None)
        if blank:
            expected = ORIGINAL if blank >= n - blank else NEWBORN
            assert christening(births, certain=True) == expected, births


def test_first_use_lasts_for_some_seconds():
    just, over = Birth(False, FIRST_USE - 0.001), Birth(False, FIRST_USE)
    assert christening([just, None, None], certain=True) == ORIGINAL
    assert christening([over, None, None], certain=True) == NEWBORN


@pytest.mark.parametrize("n", SIZES)
def test_christening_does_not_depend_on_the_order_of_the_nodes(n):
    for births in product([None, *KNOWN], repeat=n):
        for certain in (True, False):
            assert christening(births, certain=certain) == christening(births[::-1], certain=certain)


@pytest.mark.parametrize("n", SIZES)
def test_minority_that_forgot_is_never_taken_for_new(n):
    """Whatever its peers are, as long as they have records: this is what keeps exclusion."""
    for blank in range(1, (n + 1) // 2):
        for peers in product(KNOWN, repeat=n - blank):
            assert christening([None] * blank + list(peers), certain=True) == NEWBORN


# Clients that begin at once.


def begin_at_once(n, clients, chance):
    """Let clients ask the nodes, and christen them, each node on its own and in any order, and return the records.

    What a client asks and sends reaches the nodes in no order; but it sends nothing before it has asked all of them.
    """
    records = [None] * n
    asked = [[None] * n for _ in range(clients)]
    left = [(chance.sample(range(n), n), chance.sample(range(n), n)) for _ in range(clients)]
    wants = {}
    while running := [client for client in range(clients) if left[client][1]]:
        client = chance.choice(running)
        to_ask, to_tell = left[client]
        if to_ask:
            node = to_ask.pop()
            asked[client][node] = records[node]
            continue
        if client not in wants:
            wants[client] = christening(asked[client], certain=True)
        node = to_tell.pop()
        if records[node] is None and wants[client] is not None:
            records[node] = {ORIGINAL: YOUNG, NEWBORN: NEW}[wants[client]]
    return records


@pytest.mark.parametrize("n", range(1, 8))
def test_clients_that_begin_at_once_leave_a_quorum_of_nodes_that_grant(n):
    chance = random.Random(n)
    newborn = 0
    for _ in range(4000):
        records = begin_at_once(n, chance.randint(2, 5), chance)
        assert None not in records
        assert records.count(YOUNG) > n // 2, records
        newborn += records.count(NEW)
    assert newborn or n <= 2, "it is a race that some nodes lose"
