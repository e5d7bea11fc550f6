"""The checkers of readers and writers: they find wrong or early admission, and claims that stay too long."""

import asyncio

import pytest

from redsync.testing.simulator import Simulation, SimulationError
from redsync.testing.simulator.checks import Admission, Exclusion, Expiry, Liveness, Reentrancy, Zombies
from tests.support.hunting import break_script, hunt

HEEDS_WRITER = "elseif score < 0 and owner_of(first[1]) ~= owner then"
HEEDS_READERS = "if mode == 'r:' then return nil, nil, score < 0 and is_live(score) end"
HEEDS_WAITING_WRITERS = "if writer and writer ~= waiter and not"
RENEWS_ONE = "local refusal = put(key, claim, math.max(until_ms, math.floor(math.abs(had))), count)"

UNHEEDED_WRITER = break_script("read_lock_acquire", (HEEDS_WRITER, "elseif false then"))
UNHEEDED_READERS = break_script("write_lock_acquire", (HEEDS_READERS, "if true then return end"))
UNHEEDED_QUEUE = break_script("read_lock_acquire", (HEEDS_WAITING_WRITERS, "if false and not"))

RENEWS_ALL = (
    "local refusal; "
    "for _, each in ipairs(redis.call('zrangebyscore', key, '(0', '+inf')) do put(key, each, until_ms, count) end"
)
SHARED_EXPIRY = break_script("read_lock_renew", (RENEWS_ONE, RENEWS_ALL))
"""A renewal extends the claims of all readers, even dead ones."""


def break_hand_over(*replacements):
    """Break all scripts that hand a read-write lock over."""
    broken = {}
    for mode in ("read", "write"):
        for verb in ("release", "abandon"):
            broken |= break_script(f"{mode}_lock_{verb}", *replacements)
    return broken | break_script("read_lock_acquire", *replacements)


# Belief and admission.


def test_checker_finds_readers_granted_beside_a_writer():
    complaint = hunt(Exclusion, range(100), kind="read-write", scripts=UNHEEDED_WRITER)
    assert "is held by" in complaint
    assert " writing and also " in hunt(Admission, range(20), kind="read-write", scripts=UNHEEDED_WRITER)


def test_checker_finds_writers_granted_beside_readers():
    assert "is held by" in hunt(Exclusion, range(100), kind="read-write", scripts=UNHEEDED_READERS)
    complaint = hunt(Admission, range(20), kind="read-write", scripts=UNHEEDED_READERS)
    assert " writing and also " in complaint
    assert " reading: 'redsync:x'" in complaint


def test_checker_finds_new_readers_that_overtake_a_waiting_writer():
    complaint = hunt(Admission, range(1, 21), kind="read-write", scripts=UNHEEDED_QUEUE)
    assert " reading before " in complaint
    assert " writing: " in complaint


def test_checker_finds_hand_over_to_readers_that_came_after_a_writer():
    broken = break_hand_over(("string.format('(%.0f', writer_came) or '+inf'", "'+inf' or '+inf'"))
    assert " reading before " in hunt(Admission, range(40), kind="read-write", scripts=broken)


def test_checker_finds_hand_over_to_a_writer_that_came_after_readers():
    broken = break_hand_over(("0, before, 'limit', 0, 64), 'r:'", "0, before, 'limit', 0, writer and 0 or 64), 'r:'"))
    assert " writing before " in hunt(Admission, range(1, 41), kind="read-write", scripts=broken)


# Claims that stay.


@pytest.mark.parametrize("shared", [True, False])
def test_dead_reader_is_found_when_another_one_keeps_its_claim_alive(shared):
    scripts = SHARED_EXPIRY if shared else None
    sim = Simulation(seed=1, checkers=[Expiry, Zombies], scripts=scripts, lease=2.0, restart_guard=2.0)
    a, b = map(sim.machine, "ab")
    a.start(read(a.client(), 60.0))
    b.start(read(b.client(), 10.0))
    with sim:
        sim.run(until=0.5)
        a.crash(dark=True)
        if shared:
            with pytest.raises(SimulationError, match=r"expiry: node-\d keeps 'redsync:x' held to read by a:1:\d+ for"):
                sim.run()
            b.crash()
        sim.run()


@pytest.mark.parametrize("mode", ["read", "write"])
def test_checker_finds_release_that_leaves_the_claim(mode):
    broken = break_script(f"{mode}_lock_release", ("redis.call('zrem', KEYS[1], ours)", ""))
    complaint = hunt(Zombies, range(20), kind="read-write", scripts=broken)
    assert f"keeps an ownerless claim: 'redsync:x' held to {mode} by" in complaint


# Counts and renewals.


def test_checker_finds_reader_refused_its_own_lock_because_a_writer_waits():
    has = "if had and is_live(had) then\n  local refusal = put"
    refuse = "if had and redis.call('exists', 'redsync_queue:{redsync:x}') == 1 then return {1, 'writers'} end\n"
    broken = break_script("read_lock_acquire", (has, refuse + has))
    complaint = hunt(Reentrancy, range(1, 41), kind="read-write", scripts=broken)
    assert "refused 'redsync:x' held to read by" in complaint


def test_checker_finds_writer_refused_the_read_lock():
    counts = "local blocker, until_ms, writes = find_blocker"
    first = "redis.call('zrange', KEYS[1], 0, 0)[1] or ''"
    refuse = f"if string.match({first}, '^w:(.*):') == waiter then return {{1, 'writers'}} end\n"
    broken = break_script("read_lock_acquire", (counts, refuse + counts))
    complaint = hunt(Reentrancy, range(20), kind="read-write", scripts=broken)
    assert complaint.endswith(", which has it there already")


@pytest.mark.parametrize(("mode", "first"), [("read", 0), ("write", 1)])
def test_checker_finds_counts_of_readers_and_writers_that_are_added(mode, first):
    sets = "math.max(now + ARGV[3], math.floor(math.abs(had))), ARGV[2])"
    broken = break_script(f"{mode}_lock_acquire", (sets, sets.replace("ARGV[2])", "ARGV[2] + 1 .. '')")))
    complaint = hunt(Reentrancy, range(first, 20), kind="read-write", scripts=broken)
    assert f" by {mode}_lock_acquire for " in complaint


# A writer waits while others read, by hand.


async def read(client, seconds):
    async with client.get_read_write_lock("x").read_lock:
        await asyncio.sleep(seconds)


async def read_in_turns(client, begins, until):
    """Read for half a second every second."""
    await asyncio.sleep(begins)
    while client.runner.sim.now < until:
        await read(client, 0.7)
        await asyncio.sleep(0.3)


async def write(client, served):
    await asyncio.sleep(1.0)
    async with client.get_read_write_lock("x").write_lock:
        served.append(client.runner.sim.now)


def contend(scripts):
    """Let a writer ask while two read in turns, so that one of them always does; return when it is served."""
    served = []
    with Simulation(seed=1, checkers=[Liveness], scripts=scripts, lease=2.0, restart_guard=2.0) as sim:
        a, b, c = map(sim.machine, "abc")
        a.start(read_in_turns(a.client(), 0.0, 30.0))
        b.start(read_in_turns(b.client(), 0.5, 30.0))
        c.start(write(c.client(), served))
        try:
            sim.run()
        except SimulationError:
            for machine in (a, b, c):
                machine.crash()
            raise
    return served


def test_checker_finds_writer_that_readers_starve():
    (instant,) = contend(None)
    assert instant < 2.0
    # A lease, two guards no shorter than it, five seconds.
    with pytest.raises(SimulationError, match=r"liveness: 'redsync:x' to write has been free for 1[12]\.\d+ s"):
        contend(UNHEEDED_QUEUE)


async def write_and_go_on_reading(client):
    pair = client.get_read_write_lock("x")
    await pair.write_lock.acquire()
    await asyncio.sleep(3.0)
    await pair.read_lock.acquire()
    await pair.write_lock.release()
    await asyncio.sleep(60.0)
    await pair.read_lock.release()


@pytest.mark.parametrize("before", [lambda client: read(client, 60.0), write_and_go_on_reading], ids=["read", "both"])
def test_writer_waits_as_long_as_owners_before_it_read(before):
    """An owner that downgrades has overtaken no waiter."""
    served = []
    with Simulation(seed=1, checkers=[Liveness], lease=2.0, restart_guard=2.0) as sim:
        a, b = map(sim.machine, "ab")
        a.start(before(a.client()))
        b.start(write(b.client(), served))
        sim.run()
    assert served[0] > 60.0


@pytest.mark.parametrize("shared", [True, False])
def test_checker_finds_short_lease_that_ends_those_of_all_readers(shared):
    """As if the whole key expired with the latest owner's claim."""
    longest = "(alone or redis.call('pttl', key) < until_ms - now)"
    scripts = break_script("read_lock_acquire", (longest, "true")) if shared else None

    async def read_for(client, lease, seconds):
        async with client.get_read_write_lock("x", lease=lease).read_lock:
            await asyncio.sleep(seconds)

    async def all_of_it(clients):
        long = asyncio.create_task(read_for(clients[0], 3.0, 2.0))
        await asyncio.sleep(0.1)
        short = asyncio.create_task(read_for(clients[1], 0.5, 0.1))
        await asyncio.sleep(0.2)
        assert not await clients[2].get_read_write_lock("x").write_lock.acquire(timeout=1.5)
        await asyncio.wait([long, short])

    sim = Simulation(1, scripts=scripts, checkers=[Exclusion], restart_guard=0.0)
    machine = sim.machine("a")
    machine.start(all_of_it([machine.client() for _ in range(3)]))
    if shared:
        with pytest.raises(SimulationError, match="exclusion: "), sim:
            sim.run()
    else:
        with sim:
            sim.run()
