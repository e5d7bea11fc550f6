"""The checker of order: it finds commands that overtake others of their owner."""

import math

import hiredis
import pytest

from redsync._core.effects import Command, Tell
from redsync._core.ownership import Owner
from redsync._core.scripts import Script
from redsync._drivers.aio_link_sets import AioLinkSet
from redsync._drivers.channels import pack
from redsync._drivers.requests import NOTHING_TOLD, Request
from redsync.testing.simulator import Simulation, SimulationError
from redsync.testing.simulator.checks import Order
from redsync.testing.simulator.happenings import Connected, Executed, Handed


def take_turns(seed):
    """Let one owner acquire and release, again and again, while a slow node forgets its scripts."""
    with Simulation(seed, checkers=[Order], lease=2.0, restart_guard=0.0) as sim:
        machine = sim.machine("a")
        client = machine.client()

        async def work():
            for _ in range(50):
                async with client.get_lock("x"):
                    pass

        sim.slow(machine, 2, seconds=0.05)
        for i in range(10):
            sim.timeline.after(0.1 * i, sim.nodes[2].forget_scripts)
        machine.start(work())
        sim.run()
    return sim.trace.text()


def test_checker_finds_resend_that_overtakes_its_owners_next_claim(monkeypatch):
    assert "forgets all scripts" in take_turns(0)

    def send_again_whatever_came_since(links, link, request, now):
        load = Request(NOTHING_TOLD, None)
        load.command = None
        load.data = pack(b"SCRIPT", b"LOAD", request.command.script.source)
        link.post([load, request], load.data + request.data, now)

    monkeypatch.setattr(AioLinkSet, "_reload", send_again_whatever_came_since)
    with pytest.raises(SimulationError, match=r"order: node-3 executed #\d+ of a \(lock_acquire\) behind #\d+"):
        take_turns(0)


# By hand.


@pytest.fixture
def checker():
    with Simulation(seed=1, checkers=()) as sim:
        yield Order(sim)


OWNER, OTHER = Owner("a", 1), Owner("a", 2)
RELEASE = Script.load("lock_release")


def request(number, claim=b"a:1:1", key=b"x", *, owner=OWNER, owed=0):
    request = Request(Tell(Command(RELEASE, (key,), (claim, 0)), owner, owed, math.inf), None)
    request.number = number
    return request


def execute(checker, request, *, stray=False, reply=1):
    done = 0.0, 0, "a", request.command.script.name, request.command.keys, request.command.args, reply
    return checker.see(Executed(*done, stray, request.number, request))


def test_commands_in_order_pass(checker):
    for number in (1, 2, 2, 5):
        assert execute(checker, request(number)) is None


def test_command_behind_a_later_one_of_its_claim_is_found_even_if_it_is_owed(checker):
    execute(checker, request(2))
    assert execute(checker, request(1, owed=1)) == "node-1 executed #1 of a (lock_release) behind #2 (lock_release)"


def test_command_behind_a_later_one_of_its_owner_is_found_unless_it_is_owed(checker):
    execute(checker, request(3, b"a:1:2"))
    assert execute(checker, request(1, owed=1)) is None
    assert execute(checker, request(2, owed=2)) is not None


def test_commands_of_two_owners_or_about_two_keys_have_no_order(checker):
    execute(checker, request(3))
    assert execute(checker, request(2, b"a:2:1", owner=OTHER)) is None
    assert execute(checker, request(1, b"a:1:2", b"y")) is None


def test_command_for_several_owners_comes_behind_nothing(checker):
    execute(checker, request(3))
    assert execute(checker, request(2, b"a:2:1", b"y", owner=None)) is not None
    assert execute(checker, request(1, b"a:2:2", b"y", owner=None, owed=1)) is None


def test_strays_and_what_they_overtake_are_excused(checker):
    execute(checker, request(2))
    assert execute(checker, request(1), stray=True) is None
    execute(checker, request(4), stray=True)
    assert execute(checker, request(3)) is None


def test_refused_command_overtakes_nothing(checker):
    execute(checker, request(2), reply=hiredis.ReplyError("FORGETFUL the node does not remember"))
    assert execute(checker, request(1)) is None


def test_command_of_a_lost_connection_may_be_executed_twice(checker):
    connected = Connected(0.0, "a", 0, 0.0)
    for number in (1, 2):
        execute(checker, request(number))
    checker.see(connected)
    for number in (1, 2):
        assert execute(checker, request(number)) is None


def test_command_answered_over_an_earlier_connection_counts(checker):
    later = request(2)
    execute(checker, later)
    checker.see(Handed(0.0, "a", 0, later, 1, [], 1))
    checker.see(Connected(0.0, "a", 0, 0.0))
    assert execute(checker, request(1)) is not None
