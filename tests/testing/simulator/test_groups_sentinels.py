"""Virtual Sentinels: each one's knowledge, and how a client's locator interprets it."""

import pytest

from redsync._drivers.channels import pack
from redsync._drivers.locators import Witness
from redsync._drivers.sentinels import SentinelLocator
from redsync.testing.simulator.network import CLOSED
from tests.testing.simulator.conftest import Caller

SIMULATION = {"seed": 3, "nodes": 1, "replicas": 2, "checkers": ()}


@pytest.fixture
def sim(sim):
    sim.groups[0].slowness = 0.0
    return sim


@pytest.fixture
def sentinel(sim):
    return sim.sentinels[0]


@pytest.fixture
def call(sim, machine, sentinel):
    return Caller(sim, machine, sentinel)


def test_sentinel_answers_with_master_epoch_and_number_of_replicas(call):
    told = call("SENTINEL", "MASTER", "group-1")
    assert b"$12\r\nconfig-epoch\r\n$1\r\n0\r\n" in told
    assert b"$10\r\nnum-slaves\r\n$1\r\n2\r\n" in told
    assert call("sentinel", "get-master-addr-by-name", "group-1") == b"*2\r\n$7\r\nnode-1a\r\n$4\r\n6379\r\n"
    assert call("SENTINEL", "MASTER", "another") == b"-ERR No such master with that name\r\n"
    assert call("AUTH", "x") == b"+OK\r\n"


def test_number_of_a_decision_comes_with_the_address_of_the_old_master(sim, call):
    sim.groups[0].fail_over(sim.servers[2])
    sim.run(until=sim.now + 1.0)
    told = call("SENTINEL", "MASTER", "group-1")
    assert b"$2\r\nip\r\n$7\r\nnode-1a\r\n" in told
    assert b"$12\r\nconfig-epoch\r\n$1\r\n1\r\n" in told
    assert call("SENTINEL", "GET-MASTER-ADDR-BY-NAME", "group-1").startswith(b"*2\r\n$7\r\nnode-1c\r\n")


def test_locator_understands_both(sim, sentinel):
    locator = SentinelLocator("group-1", [Witness("s:1", None)], 2)
    locator.note(0, [sentinel._describe(), sentinel._address()])
    assert str(locator.present) == "node-1a:6379"


def test_sentinel_that_is_down_ends_its_connections_and_comes_back_with_its_old_knowledge(sim, sentinel, call):
    assert call.ask(pack("PING")[:5]) == []
    sentinel.crash()
    assert call.ask() == [CLOSED]
    again = Caller(sim, sim.machine("b"), sentinel)
    assert again.messages[-1] is CLOSED
    sentinel.restart()
    again = Caller(sim, sim.machine("c"), sentinel)
    assert again("PING") == b"+OK\r\n"
    assert again.ask(pack("SENTINEL", "MASTER", "group-1"))
    again.connection.hang_up()
    again.ask()
    assert sentinel.knows.epoch == 0
