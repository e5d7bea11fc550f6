"""Birth records, and what a node without one gets, over all combinations of its peers' records."""

import random
from itertools import product

import pytest

from redsync._core.memory import BLANK, JOINING, LOOK, NEWBORN, ORIGINAL, Birth, Processes, elected, next_step
from redsync._core.replies import UNREADABLE

NOW = 1_763_726_400.5
SIZES = range(1, 6)


# Reading records.


@pytest.mark.parametrize("kind", [ORIGINAL, NEWBORN, BLANK, JOINING])
@pytest.mark.parametrize("age", [0.0, 0.25, 30.0, 1e6])
def test_record_tells_its_kind_its_age_by_the_nodes_clock_and_its_process(kind, age):
    birth = Birth.read(b"%s %d 0a1b" % (kind, (NOW - age) * 1000), NOW)
    assert birth[:3] == (kind, int((NOW - age) * 1000), b"0a1b")
    assert birth.age == pytest.approx(age, abs=0.001)
    assert birth.stamp == b"%d,0a1b" % birth.since_ms


def test_record_from_the_future_has_no_age():
    """The node's clock was set back. Whatever the record says, the node may have been emptied a moment ago."""
    assert Birth.read(b"newborn %d -" % ((NOW + 60) * 1000), NOW).age == 0.0


@pytest.mark.parametrize(("record", "process"), [(None, None), (b"", None), (b"original 1000", b"")])
def test_node_may_have_no_record_or_one_of_an_earlier_form(record, process):
    birth = Birth.read(record, NOW)
    assert (birth and birth.process) == process


@pytest.mark.parametrize("record", [b"original", b"original soon", b" original 1", b"Original 1", b"new 1", b"\xff"])
def test_anything_but_a_record_is_refused(record):
    with pytest.raises(ValueError):  # noqa: PT011 - the error of int
        Birth.read(record, NOW)


def test_refusal_names_the_key_and_shows_the_beginning_of_the_value():
    with pytest.raises(ValueError, match=r"redsync_birth holds b'a lock.*, which is not a birth record") as caught:
        Birth.read(b"a lock" + b"x" * 10_000, NOW)
    assert len(str(caught.value)) < 200


def test_reply_to_an_initialization_has_the_process_and_its_record():
    reply = [b"original 1763726400000 0a1b", 1_763_726_400_250, b"0a1b"]
    assert Birth.initialized(reply) == (b"0a1b", Birth(ORIGINAL, 1_763_726_400_000, b"0a1b", 0.25))


@pytest.mark.parametrize("record", [b"", b"original 1763726400000", b"original 1763726400000 0a1c"])
def test_node_without_memory_to_spare_has_no_record_of_its_process(record):
    assert Birth.initialized([record, 1_763_726_400_000, b"0a1b"]) == (b"0a1b", None)


@pytest.mark.parametrize(
    "reply",
    [1, b"OK", None, [], [b"original 1 -", 5], [b"a lock", 5, b"-"], [b"original 1 -", None, b"-"], [True, 5, b"-"]]
    + [[b"original 1 -", 5, process] for process in (None, b"", 7)],
)
def test_reply_to_an_initialization_without_a_record_is_refused(reply):
    with pytest.raises(UNREADABLE):
        Birth.initialized(reply)


# Processes.


def test_guard_names_all_processes_that_the_client_is_connected_to_at_the_send():
    processes = Processes()
    guard = processes.guard(30_000)
    assert guard() == b"30000,-,"
    processes.note(0, b"a")
    processes.note(2, b"c")
    assert guard() == b"30000,a,c,"
    processes.note(0, b"b")
    assert guard() == b"30000,b,c,"


def test_elected_process_has_the_number_of_the_decision():
    assert elected("0123456789abcdef0123", 7, "fedcba9876543210") == b",0123456789abcdef@7.fedcba98,"


# The next step.


def wanted_step(found, *, certain, unchanged, may_look):
    """Return the step for nodes with these kinds of records; None: the node is silent, or has none."""
    if set(found) <= {ORIGINAL, NEWBORN}:
        return None  # All have a record.
    if not certain or not set(found) <= {ORIGINAL, BLANK}:
        return NEWBORN  # A silent node may remember, or the nodes were used before.
    if set(found) == {BLANK} and unchanged:
        return ORIGINAL  # Their first use: all were blank at one instant.
    return LOOK if may_look else NEWBORN  # Another client may be marking them.


@pytest.mark.parametrize("n", SIZES)
def test_next_step_is_right_for_each_vector_of_records(n):
    for found in product([ORIGINAL, NEWBORN, BLANK, JOINING, None], repeat=n):
        births = [kind and Birth(kind, 1, b"-", 0.0) for kind in found]
        for flags in product((True, False), repeat=3):
            known = dict(zip(("certain", "unchanged", "may_look"), flags, strict=True))
            assert next_step(births, **known) == wanted_step(found, **known), (found, known)


# Clients that begin at once, and nodes that are emptied meanwhile.


class Node:
    """A node without a clock: each record has another number."""

    def __init__(self, count):
        self.count, self.record = count, None

    def initialize(self, step, stamps):
        """Do the same as the script."""
        kind = self.record and self.record[0]
        if kind is None:
            self.record = (NEWBORN if step == NEWBORN else BLANK), next(self.count)
        elif kind == BLANK and (step == NEWBORN or (step == ORIGINAL and self.record in stamps)):
            self.record = step, next(self.count)
        return self.record


def begin(nodes, rng):
    """Run one client; it lets others run before each command, which reach the nodes in any order."""
    births, before, unchanged, looks = [None] * len(nodes), None, False, 0
    step = LOOK
    while step is not None:
        before, stamps = list(births), list(births)
        for node in rng.sample(range(len(nodes)), len(nodes)):
            yield
            births[node] = nodes[node].initialize(step, stamps)
        unchanged = births == before
        looks += step == LOOK
        seen = [Birth(kind, number, b"-", 0.0) for kind, number in births]
        step = next_step(seen, certain=True, unchanged=unchanged, may_look=looks < 6)


def run(n, clients, rng, empty=0.0):
    """Return the nodes, and whether one that may have been used was taken for new while another still remembered."""
    count = iter(range(10**9))
    nodes = [Node(count) for _ in range(n)]
    running = [begin(nodes, rng) for _ in range(clients)]
    forgetful = set()
    while running:
        if rng.random() < empty:
            node = rng.randrange(n)
            if nodes[node].record is not None and nodes[node].record[0] != BLANK:
                forgetful.add(node)
            nodes[node].record = None
        client = rng.choice(running)
        before = [node.record for node in nodes]
        if next(client, "ended") == "ended":
            running.remove(client)
        if all(node.record is None or node.record[0] == BLANK for node in nodes):
            # The past of all nodes is unknown.
            forgetful.clear()
        for index, node in enumerate(nodes):
            if node.record != before[index] and node.record[0] == ORIGINAL and index in forgetful:
                return nodes, True
            if node.record and node.record[0] == NEWBORN:
                forgetful.discard(index)
    return nodes, False


@pytest.mark.parametrize("n", SIZES)
def test_clients_that_begin_at_once_make_all_nodes_original(n):
    rng = random.Random(n)
    for _ in range(100):
        clients = rng.randint(1, 5)
        nodes, _ = run(n, clients, rng)
        kinds = {node.record[0] for node in nodes}
        # A client that looks six times in a row while another stalls gives up, and may be wrong then.
        assert kinds == {ORIGINAL} or (kinds == {ORIGINAL, NEWBORN} and n > 1 and clients > 1), kinds


@pytest.mark.parametrize("n", SIZES)
def test_node_that_was_emptied_is_never_taken_for_new_while_another_remembers(n):
    """In whatever order the clients' commands arrive: exclusion rests on this."""
    for seed in range(200):
        rng = random.Random(f"{n} {seed}")
        _, mistaken = run(n, rng.randint(1, 4), rng, empty=0.1)
        assert not mistaken, f"seed {seed}"
