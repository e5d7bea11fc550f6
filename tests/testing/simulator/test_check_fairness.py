"""The checkers of fairness and of turns: they find fair locks broken on purpose, and no other overtaking."""

import asyncio
import re
from contextlib import suppress

import pytest

from redsync._protocols.places import Ticket
from redsync._protocols.rounds import told
from redsync.exceptions import LeaseLostError
from redsync.testing.simulator import Simulation, SimulationError
from redsync.testing.simulator.checks import Fairness, Turns
from redsync.testing.simulator.checks.queues import DRAWN
from tests.support.hunting import KEYS, break_script, hunt
from tests.support.sweeps import swept

WAKE = "if wake(channel, mark, head) > 0 then break end"
LEAVE = "redis.call('zrem', KEYS[2], waiter)\nredis.call('hdel', KEYS[3], waiter)\n"
QUEUE_UP = "redis.call('zadd', KEYS[2], ticket, waiter)"

GRANT_TO_ANY_OWNER = break_script("fair_lock_acquire", ("if head and head ~= waiter then", "if false then"))
POP_WHO_IS_WOKEN = break_script(
    "lock_release",
    (WAKE, "if wake(channel, mark, head) < 0 then break end"),
)
LEAVE_WHEN_GRANTED = break_script("fair_lock_acquire", ("ARGV[3])\nreturn 1", f"ARGV[3])\n{LEAVE}return 1"))
WRITE_NO_TICKET = break_script("fair_lock_acquire", (QUEUE_UP, ""))
WRITE_ONE_TICKET = break_script("fair_lock_acquire", (QUEUE_UP, QUEUE_UP.replace("ticket", "1")))
BROKEN = {
    "grants to any owner": GRANT_TO_ANY_OWNER,
    "pops the woken waiter": POP_WHO_IS_WOKEN,
    "leaves the queue when granted": LEAVE_WHEN_GRANTED,
    "writes no ticket": WRITE_NO_TICKET,
    "writes one ticket for all": WRITE_ONE_TICKET,
}


@pytest.mark.parametrize(
    ("case", "first"),
    [
        ("grants to any owner", 4),
        ("pops the woken waiter", 0),
        ("leaves the queue when granted", 33),
        ("writes no ticket", 0),
        ("writes one ticket for all", 0),
    ],
)
def test_checker_finds_waiter_that_is_overtaken_because_a_script(case, first):
    assert "first asked with" in hunt(Fairness, range(first, first + 100), kind="fair", scripts=BROKEN[case])


@pytest.mark.parametrize(("missing", "first"), [(1, 56), *swept((2, 16))])
def test_checker_finds_tickets_that_are_drawn_from_less_than_a_quorum(monkeypatch, missing, first):
    def learn(place, tally):
        tickets = [refusal.ticket for refusal in told(tally)]
        if place._ticket not in (0, DRAWN) or not place._waits or not tickets:
            return False
        place._ticket = max(tickets[: max(tally.quorum - missing, 1)]) + (place._ticket == 0)
        return True

    monkeypatch.setattr(Ticket, "learn", learn)
    assert "first asked with" in hunt(Fairness, range(first, first + 100), kind="fair")


@pytest.mark.parametrize(
    "case",
    [
        "grants to any owner",
        "writes no ticket",
        *swept("pops the woken waiter", "leaves the queue when granted", "writes one ticket for all"),
    ],
)
def test_checker_finds_node_that_passes_over_the_head_because_a_script(case):
    assert "when it was the turn of" in hunt(Turns, range(100), kind="fair", scripts=BROKEN[case])


def test_checker_finds_equal_tickets_that_each_node_orders_as_they_came():
    as_they_came = "redis.call('zadd', KEYS[2], 'NX', ticket + redis.call('zcard', KEYS[2]) / 1000, waiter)"
    whole = ("'withscores')[2]) or 0", "'withscores')[2] or '0')\n  highest = math.floor(highest)")
    broken = break_script("fair_lock_acquire", (QUEUE_UP, as_they_came), whole)
    assert "when it was the turn of" in hunt(Turns, range(2, 102), kind="fair", scripts=broken)


# By hand: a holds the lock, b waits for it, and c comes later.


def serve(harm, *, at=0.65, a_holds=0.7, until=4.0, crash=False, checkers=(Fairness, Turns), **options) -> list[str]:
    """Return the order in which they are served when `harm` happens before c asks; a crashed `a` hands nothing over."""
    served = []

    async def take(client, seconds, lease=None):
        with suppress(LeaseLostError):
            async with client.get_fair_lock("x", lease=lease):
                served.append(client.runner.machine.name)
                await asyncio.sleep(seconds)

    with Simulation(seed=1, checkers=checkers, lease=30.0, restart_guard=0.0, **options) as sim:
        a, b, c = map(sim.machine, "abc")
        a.start(take(a.client(), a_holds, a_holds if crash else None))
        sim.run(until=0.3)
        if crash:
            a.crash(dark=True)
        b.start(take(b.client(), 0.0))
        sim.run(until=at)
        harm(sim, b)
        c.start(take(c.client(), 0.0))
        sim.run(until=until)
        sim.heal()
        b.resume()
        sim.run()
    return served


def forget(sim, *nodes):
    for index in nodes:
        sim.nodes[index].flush()


def jump(sim, seconds, *nodes):
    for index in nodes:
        sim.nodes[index].jump(seconds)


def test_waiter_is_not_overtaken_while_a_quorum_keeps_its_place():
    assert serve(lambda sim, b: None) == ["a", "b", "c"]
    assert serve(lambda sim, b: forget(sim, 1)) == ["a", "b", "c"]
    assert serve(lambda sim, b: jump(sim, 5.0, 1)) == ["a", "b", "c"]
    assert serve(lambda sim, b: jump(sim, -5.0, 0, 1, 2)) == ["a", "b", "c"]
    assert serve(lambda sim, b: sim.partition(b, 1)) == ["a", "b", "c"]
    assert serve(lambda sim, b: b.pause(), at=2.0, a_holds=2.1) == ["a", "b", "c"], "its place lasts for 3 s"


def test_waiter_may_be_overtaken_when_its_places_are_lost():
    assert serve(lambda sim, b: forget(sim, 0, 1)) == ["a", "c", "b"]
    assert serve(lambda sim, b: jump(sim, 5.0, 0, 1, 2)) == ["a", "c", "b"]


def test_waiter_may_be_overtaken_when_it_was_silent():
    def fall_silent(sim, b):
        b.pause()
        sim.run(until=sim.now + 3.5)

    assert serve(fall_silent, a_holds=4.5, until=6.0) == ["a", "c", "b"]


def test_dead_waiter_is_passed_over():
    assert serve(lambda sim, b: b.crash()) == ["a", "c"]


def pause_until_it_is_free(sim, b):
    b.pause()
    sim.run(until=0.8)


def test_complaint_names_both_owners_and_when_they_queued():
    assert serve(pause_until_it_is_free, until=2.0, crash=True) == ["a", "b", "c"]
    with pytest.raises(SimulationError) as caught:
        serve(pause_until_it_is_free, crash=True, scripts=GRANT_TO_ANY_OWNER, checkers=[Fairness])
    (complaint,) = caught.value.complaints
    assert re.sub(r"0\.8\d+", "0.8", complaint) == (
        "fairness: 'redsync:x' held by c:1, which first asked with #2 at 0.8, when b:1 had queued with ticket 1 on "
        "node-1, node-2, node-3, and still does"
    )


def test_node_that_loses_a_place_without_a_reason_is_found():
    def remove(sim, b):
        pause_until_it_is_free(sim, b)
        sim.nodes[1].store.execute(b"del", KEYS.queue, KEYS.places)

    with pytest.raises(SimulationError, match=r"turns: node-2 granted .* when it was the turn of b:1 with ticket 1"):
        serve(remove, crash=True)
