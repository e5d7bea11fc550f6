"""Greetings: which scripts a client gives to a node that it connects."""

from contextlib import closing

import hiredis
import pytest
import redis

from redsync._core.scripts import Script
from redsync._drivers.channels import pack
from redsync._drivers.dialects import PLAIN
from redsync._drivers.given_nodes import make_nodes
from redsync._drivers.greetings import load_scripts

SHIPPED = Script.shipped()
QUESTION = pack("SCRIPT", "EXISTS", *(script.sha for script in SHIPPED))
LOADS = [pack("SCRIPT", "LOAD", script.source) for script in SHIPPED]


def loaded(known):
    """Return what a node is told that says that of its scripts."""
    talk = load_scripts(PLAIN)
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
def test_node_that_does_not_say_what_it_has_gets_all(known):
    assert loaded(known) == LOADS


def test_server_says_what_it_has(nodes):
    (node,) = make_nodes(nodes.urls[:1], redis.Redis)
    with closing(node.open(20.0)) as channel:
        channel.ask(pack("SCRIPT", "FLUSH"))
        assert loaded(*channel.ask(QUESTION)) == LOADS
        channel.ask(*LOADS[1:])
        assert loaded(*channel.ask(QUESTION)) == LOADS[:1]
        channel.ask(LOADS[0])
        assert loaded(*channel.ask(QUESTION)) == []
