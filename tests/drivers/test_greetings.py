"""Greetings: which scripts a client loads on a connected node, and which nodes it refuses."""

from contextlib import closing

import hiredis
import pytest
import redis

from redsync._core.scripts import Script
from redsync._drivers.channels import pack
from redsync._drivers.given_nodes import make_nodes
from redsync._drivers.greetings import greet, load_scripts
from redsync._drivers.locators import Location

SHIPPED = Script.shipped()
QUESTION = pack("SCRIPT", "EXISTS", *(script.sha for script in SHIPPED))
LOADS = [pack("SCRIPT", "LOAD", script.source) for script in SHIPPED]


def loaded(known):
    """Return the commands for a node that answers so about its scripts."""
    talk = load_scripts()
    assert next(talk) == [QUESTION]
    try:
        return talk.send([known])
    except StopIteration:
        return []


def test_node_gets_the_scripts_that_it_lacks():
    assert loaded([0, 1] + [1] * (len(SHIPPED) - 3) + [0]) == [LOADS[0], LOADS[-1]]


def test_node_that_has_all_scripts_gets_none():
    assert loaded([1] * len(SHIPPED)) == []


@pytest.mark.parametrize(
    "known",
    [hiredis.ReplyError("NOPERM"), b"OK", None, [], [1] * (len(SHIPPED) + 1), [b"1"] * len(SHIPPED)],
    ids=["refused", "text", "null", "nothing", "too many", "words"],
)
def test_node_that_does_not_list_its_scripts_gets_all(known):
    assert loaded(known) == LOADS


def test_server_lists_its_scripts(nodes):
    (node,) = make_nodes(nodes.urls[:1], redis.Redis)
    with closing(node.open(20.0)) as channel:
        channel.ask(pack("SCRIPT", "FLUSH"))
        assert loaded(*channel.ask(QUESTION)) == LOADS
        channel.ask(*LOADS[1:])
        assert loaded(*channel.ask(QUESTION)) == LOADS[:1]
        channel.ask(LOADS[0])
        assert loaded(*channel.ask(QUESTION)) == []


def test_server_that_hides_its_run_id_replaces_no_other():
    """Without its run_id, clients could not tell it from the previous one."""
    (node,) = make_nodes("redis+sentinel://s1/m", redis.Redis)
    node.location = Location("a", 6379, 7)
    talk = greet(node, 1.0, raw=True)
    next(talk)
    with pytest.raises(ConnectionError, match="hides its run_id"):
        talk.send([b"redis_version:7.0.0\r\nuptime_in_seconds:5\r\n", b"role:master\r\n"])
