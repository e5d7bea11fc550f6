"""The checker of admission by hand; `test_check_read_write` shows what it finds in runs."""

import pytest

from redsync.testing.simulator import Simulation
from redsync.testing.simulator.checks import Admission
from redsync.testing.simulator.checks.kept import now_ms
from redsync.testing.simulator.happenings import Executed
from tests.support.hunting import KEYS


class OneNode:
    """A node whose records are written by hand, and the complaints of the checker of admission about them."""

    def __init__(self, sim):
        self._sim, self._node = sim, sim.nodes[0]
        self._checker = Admission(sim)
        self.now = now_ms(self._node)

    def do(self, *words):
        self._node.store.execute(*(str(word).encode() for word in words))

    def claim(self, member):
        self.do("zadd", "redsync:x", (self.now + 1000) * (-1 if member[0] == "w" else 1), f"{member}:1")

    def queue(self, owner, came, *, writes):
        self.do("zadd", KEYS.queue.decode(), came - (2**52 if writes else 0), owner)
        self.do("hset", KEYS.places.decode(), owner, f"{self.now + 3000} 1 0 0 channel")

    def pass_time(self, seconds):
        self._sim.run(until=seconds)

    def execute(self, script, *args, keys=KEYS.all):
        return self._checker.see(Executed(0.0, 0, "a", script, keys, args, None))


@pytest.fixture
def node():
    with Simulation(seed=1, checkers=()) as sim:
        yield OneNode(sim)


def ask(mode, owner, waited=None):
    place = () if waited is None else (3000, waited, b"channel", b"1")
    return f"{mode}_lock_acquire", owner + b":1", 1, 1000, 0, *place


@pytest.mark.parametrize(("waited", "fine"), [(None, False), (10, False), (11, True), (9, False)])
def test_reader_must_have_arrived_before_waiting_writers(node, waited, fine):
    node.queue("x", node.now - 10, writes=True)
    assert node.execute(*ask("write", b"x", 10)) is None
    node.claim("r:me")
    complaint = node.execute(*ask("read", b"me", waited))
    assert complaint == (None if fine else "node-1 admitted me reading before x writing: 'redsync:x'")


def test_reader_may_overtake_waiting_readers_and_join_readers(node):
    node.queue("x", node.now - 10, writes=False)
    node.claim("r:y")
    assert node.execute(*ask("read", b"x", 10)) is None
    node.claim("r:me")
    assert node.execute(*ask("read", b"me")) is None


@pytest.mark.parametrize(("came", "fine"), [(-11, True), (-10, True), (-9, False)])
def test_writer_elsewhere_that_still_has_its_place_here_reads_with_its_rank(node, came, fine):
    node.queue("x", node.now - 10, writes=True)
    node.queue("me", node.now + came, writes=True)
    assert node.execute(*ask("write", b"x", 10)) is None
    node.claim("r:me")
    assert (node.execute(*ask("read", b"me")) is None) is fine


def test_owner_that_writes_or_re_enters_may_read_before_any_waiter(node):
    node.queue("x", node.now - 10, writes=True)
    assert node.execute(*ask("write", b"x", 10)) is None
    node.claim("r:me")
    assert node.execute(*ask("read", b"me"), keys=KEYS.held) is None, "it re-enters"
    node.do("del", "redsync:x")
    node.claim("w:you")
    node.claim("r:you")
    assert node.execute(*ask("read", b"you")) is None


def test_asking_writer_may_be_quicker_than_waiters_but_hand_over_must_not(node):
    node.queue("x", node.now - 10, writes=True)
    node.queue("me", node.now - 5, writes=True)
    assert node.execute(*ask("write", b"x", 10)) is None
    node.claim("w:me")
    assert node.execute(*ask("write", b"me", 5)) is None
    node.do("del", "redsync:x")
    assert node.execute(*ask("write", b"y")) is None
    node.claim("w:me")
    complaint = node.execute("write_lock_release", b"y", 0, b"")
    assert complaint == "node-1 admitted me writing before x writing: 'redsync:x'"


@pytest.mark.parametrize(("longer", "fine"), [(1000, True), (5, False)])
def test_claim_added_by_a_late_ask_does_not_shorten_the_owners_other_claim(node, longer, fine):
    node.queue("x", node.now - 10, writes=True)
    node.do("zadd", "redsync:x", -(node.now + longer), "w:me:2")
    node.do("zadd", "redsync:x", -(node.now + 5), "w:me:1")
    assert node.execute(*ask("write", b"x", 10)) is None
    node.pass_time(0.1)
    node.do("zadd", "redsync:x", -(node.now + 1000), "w:me:2")
    assert (node.execute("write_lock_release", b"y", 0, b"") is None) is fine


def test_writer_and_others_at_one_node_are_found(node):
    node.claim("r:x")
    node.claim("w:me")
    node.claim("r:me")
    assert node.execute(*ask("write", b"me")) == "node-1 keeps me writing and also x reading: 'redsync:x'"
    node.do("zrem", "redsync:x", "r:x:1")
    assert node.execute(*ask("write", b"me")) is None
