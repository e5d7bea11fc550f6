"""Processes of both flavours wait for a latch that clients of both count down, while nodes die, forget and hang."""

import random
import time
from concurrent.futures import ThreadPoolExecutor
from types import SimpleNamespace

import pytest

from redsync import Client, QuorumError
from redsync.testing.harness.blocking import Blocking, run
from redsync.testing.harness.journal import Follower, Journal, now_ns, read
from redsync.testing.harness.latches import judge_latches, tells_open
from redsync.testing.harness.orders import Order
from redsync.testing.harness.owner import Owner, World
from redsync.testing.harness.vitals import Pulse
from tests.faults import havoc
from tests.faults.havoc import LEASE

NAME = "count_down_latch:x"
FLAVOURS = ["threads", "asyncio"] * 2
NODES = range(5)

BOUND = 3.0
"""Seconds within which waiters learn that a latch is open, whatever nodes did. They look by themselves every second and
a half, and clients may take nodes that came back for dead a while longer."""

AT_ONCE = 0.45
"""Seconds within which waiters learn it where no node fails: sooner than they would look by themselves."""


# Faults between all but the last count-down and the last one; each returns a function that ends it.


def nothing(nodes, rng):
    return lambda: None


def two_die(nodes, rng):
    dead = rng.sample(NODES, 2)
    for node in dead:
        nodes.kill(node)
    return lambda: [nodes.restart(node) for node in dead]


def two_come_back_empty(nodes, rng):
    for node in rng.sample(NODES, 2):
        nodes.restart(node)
    return lambda: None


def hang(nodes, some):
    for node in some:
        nodes.pause(node)
    return lambda: [nodes.resume(node) for node in some]


def two_hang(nodes, rng):
    return hang(nodes, rng.sample(NODES, 2))


def three_hang(nodes, rng):
    return hang(nodes, rng.sample(NODES, 3))


def all_come_back_empty_in_turn(nodes, rng):
    for node in rng.sample(NODES, 5):
        nodes.restart(node)
    return lambda: None


def all_come_back_empty_at_once(nodes, rng):
    for node in NODES:
        nodes.kill(node)
    for node in NODES:
        nodes.restart(node)
    return lambda: None


class Counter:
    """A client of this process, and its owner, with one latch object; it keeps a journal as processes do."""

    def __init__(self, client, number, directory):
        self._path = directory / f"process-{number}.counter.journal"
        latch = Blocking(client.get_count_down_latch(NAME))
        latches = SimpleNamespace(get_count_down_latch=lambda *_, **__: latch)
        order = Order(urls=(), names=(), directory="", journal="", first=number, owners=1, seed="")
        self._ways = Owner(number, order, World(latches, Journal(self._path).note, None)).ways("count_down_latch")

    def count(self, n=1) -> int:
        """Count down; return an instant after that."""
        assert run(self._ways.count_down(NAME, n, 10.0)), "too few nodes answered"
        return now_ns()

    def wait(self) -> bool:
        """Wait long, and meanwhile send nodes that forgot it the amount counted down."""
        return run(self._ways.wait(NAME, 15.0))

    def set(self, n):
        """Set it for a round; nodes that have just come back take a while to agree."""
        deadline, doubtful = time.monotonic() + 60, False
        while not run(self._ways.set(NAME, n)):
            # It may be set nevertheless.
            doubtful |= read(self._path)[-1]["event"] == "no quorum"
            assert doubtful, "it was open"
            assert time.monotonic() < deadline, "it can't be set"
            if left := run(self._ways.look(NAME)):
                self.count(left)


class Rounds:
    """Rounds: the latch is set, all wait, all but one count down, nodes fail, the last one counts."""

    def __init__(self, nodes, counters, waiters, directory, *, rng, pool):
        self._nodes = nodes
        self._pool = pool
        self._counters = counters
        self._waiters = waiters
        self._journals = Follower(directory)
        self._rng = rng

    def play(self, trouble) -> float:
        """Return how many seconds the waiters had to wait, from the end of the last count-down."""
        last, *others = self._rng.sample(self._counters, len(self._counters))
        since = now_ns()
        last.set(len(self._counters))
        self._await(lambda line: line["event"] == "asks", since)
        for each in others:
            each.count()
        waiting = [self._pool.submit(each.wait) for each in others]
        mend = trouble(self._nodes, self._rng)
        time.sleep(0.6)  # for waiters that would learn it too early
        since, counting = now_ns(), self._pool.submit(last.count)
        mend()
        counted_at = counting.result(30)
        waited = (max(self._await(tells_open, since)) - counted_at) / 1e9
        assert all(each.result(30) for each in waiting)
        print(f"{trouble.__name__}: all learned it within {waited:.3f} s")
        return waited

    def _await(self, is_it, since):
        """Wait until each waiter has recorded such a line since then; return the instants of their first ones."""
        noted, deadline = {}, time.monotonic() + 30
        while not noted.keys() >= self._waiters:
            assert time.monotonic() < deadline, f"only {noted.keys()} of {self._waiters}"
            time.sleep(0.005)
            self._journals.read()
            for line in reversed(self._journals.lines):
                if line["at"] > since and is_it(line):
                    noted[line["worker"]] = min(line["at"], noted.get(line["worker"], line["at"]))
        return [noted[worker] for worker in self._waiters]


@pytest.fixture
def counters(nodes, bridge, tmp_path):
    """Clients of both flavours that count down, with numbers that no owner of a process has."""
    makes = [Client if flavour == "threads" else bridge.connect for flavour in FLAVOURS]
    clients = [make(nodes.urls, lease=LEASE, restart_guard=LEASE) for make in makes]
    yield [Counter(client, number, tmp_path) for number, client in enumerate(clients, 100)]
    for client in clients:
        client.close()


@pytest.mark.sweep
@pytest.mark.timeout(60)
@pytest.mark.parametrize(
    "troubles",
    [
        pytest.param(
            [nothing, two_die, two_hang, three_hang, all_come_back_empty_at_once], id="and_all_forget_at_once"
        ),
        # To set it again takes some seconds where most nodes have just forgotten everything.
        pytest.param([two_come_back_empty, all_come_back_empty_in_turn, nothing], id="and_all_forget_in_turn"),
    ],
)
def test_latch_opens_for_all_when_the_last_has_counted_and_never_before(nodes, counters, tmp_path, seed, troubles):
    options = {"flavours": FLAVOURS, "owners": 2, "work": "watching", "seed": str(seed)}
    with (
        ThreadPoolExecutor(len(FLAVOURS)) as pool,
        havoc.crew_of(nodes, tmp_path, [NAME], **options) as crew,
        Pulse(least=0.05) as pulse,
    ):
        crew.await_all("ready")
        crew.go()
        waiters = {number for life in crew.lives for number in life.owners}
        rounds = Rounds(nodes, counters, waiters, tmp_path, rng=random.Random(seed), pool=pool)
        for trouble in troubles:
            late = pulse.late
            assert rounds.play(trouble) < (AT_ONCE if trouble is nothing else BOUND) + pulse.late - late, (
                trouble.__name__
            )
        crew.finish()
    assert judge_latches((read(path), None) for path in tmp_path.glob("process-*.journal")) == []


def count_when_nodes_answer(latch, within=60.0):
    """Return how much is left; nodes that hung are suspect until their replies have been read."""
    deadline = time.monotonic() + within
    while True:
        try:
            return latch.count()
        except QuorumError:
            assert time.monotonic() < deadline
            time.sleep(0.02)


@pytest.mark.sweep
def test_newcomer_does_not_find_it_open_where_most_nodes_came_back_empty(nodes, make_client):
    """No client waits, so none sends the nodes what they have forgotten."""
    knows = make_client(lease=LEASE, restart_guard=LEASE).get_count_down_latch("x")
    assert knows.try_set_count(2)
    knows.count_down()
    newcomer = make_client(lease=LEASE, restart_guard=LEASE)
    mend = hang(nodes, (3, 4))
    for node in range(3):
        nodes.restart(node)
    until = time.monotonic() + LEASE + 2.0
    while time.monotonic() < until:
        # A new object each time: it knows nothing.
        latch = newcomer.get_count_down_latch("x")
        with pytest.raises(QuorumError):
            latch.count()
        with pytest.raises(QuorumError):
            latch.wait(0.05)
    mend()
    assert count_when_nodes_answer(knows) == 1, "the counting client knows, and informs the nodes"
    latch = newcomer.get_count_down_latch("x")
    assert count_when_nodes_answer(latch) == 1
    latch.count_down()
    assert latch.wait(60)
