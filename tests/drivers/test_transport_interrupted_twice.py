"""Two interruptions of one thread, the second while it cleans up after the first.

Afterwards other threads notice nothing, but the loss of a connection per interruption: each request of theirs is sent
once and gets its own replies, no thread sleeps forever, and the next calls work. `tests/support/interleaving/twice.py`
checks that.
"""

import pytest

from tests.support.interleaving.twice import Scenario, interrupt_at_all_pairs, interrupt_by_chance
from tests.support.rigs import MANY


def interrupted(scene, way):
    """Call the transport, with the interruptions; the second may strike the next call."""
    transport = scene.rig.transport
    request = scene.request("a", owed=way == "send", struck=way in {"carry", "carry, then tend", "send"})
    match way:
        case "carry":
            scene.interrupt(lambda: scene.carry(request))
        case "carry, then tend":
            scene.interrupt(lambda: scene.carry(request), transport.tend)
        case "send":
            scene.interrupt(lambda: transport.send(request))
        case "wait":
            transport.send(request)
            scene.interrupt(lambda: scene.wait(request))
        case "tend":
            transport.send(request)
            scene.let_nodes_answer()
            scene.interrupt(transport.tend)
        case "tend, then tend":
            transport.send(request)
            scene.let_nodes_answer()
            scene.interrupt(transport.tend, transport.tend)


def strike(scene, way, *, forgets):
    """Run the calls of the thread that is interrupted."""
    scene.ask("a")
    if forgets:
        scene.rig.servers[0].scripts.clear()
    interrupted(scene, way)
    scene.tell("a")


def alone(way, *, forgets=False, **options):
    """One thread is interrupted, before another calls."""

    def begin(scene):
        scene.thread("a", lambda: strike(scene, way, forgets=forgets))
        scene.thread("b", lambda: scene.ask("b"), after="a")

    return Scenario(begin, options)


def leading(way, *, forgets=False, **options):
    """Two threads sleep while the interrupted one reads for them."""

    def begin(scene):
        def other(name):
            scene.world.wait_for(lambda: scene.struck)
            scene.ask(name)
            scene.tell(name)

        scene.thread("a", lambda: strike(scene, way, forgets=forgets))
        for name in "bc":
            scene.thread(name, lambda name=name: other(name))
        scene.thread("d", lambda: scene.ask("d"), after="a")

    return Scenario(begin, options)


def following(way, **options):
    """The interrupted thread sleeps, until it reads for others in its turn."""

    def begin(scene):
        def victim():
            scene.world.wait_for(lambda: scene.has_sent("b"))
            interrupted(scene, way)
            scene.tell("a")

        def other(name):
            if name == "c":
                scene.world.wait_for(lambda: scene.struck)
            scene.ask(name)
            scene.tell(name)

        for name, program in (("b", lambda: other("b")), ("a", victim), ("c", lambda: other("c"))):
            scene.thread(name, program)
        scene.thread("d", lambda: scene.ask("d"), after="a")

    return Scenario(begin, options)


SMALL = {
    **{f"{way} texts": alone(way) for way in ("carry", "send", "wait", "tend")},
    **{f"{way} numbers": alone(way, numbers=True) for way in ("carry", "wait", "tend")},
    "carry numbers on two nodes": alone("carry", nodes=2, numbers=True),
    "carry, with the usual reply": alone("carry", nodes=3, usual=True),
    "wait, with the usual reply": alone("wait", nodes=2, usual=True),
    "tend two nodes": alone("tend", nodes=2),
    "tend numbers of two nodes": alone("tend", nodes=2, numbers=True),
    "tend numbers of two nodes, then again": alone("tend, then tend", nodes=2, numbers=True),
    "lead by carry": leading("carry"),
    "lead by carry, numbers": leading("carry", numbers=True),
    "lead by wait": leading("wait", numbers=True),
    "follow by carry": following("carry"),
    "follow by wait": following("wait", numbers=True),
    "send while another leads": following("send"),
    "send to an absent node": alone("send", nodes=2, absent=(1,)),
    "carry to an absent node": alone("carry", nodes=2, absent=(1,)),
    "a node that reads slowly": alone("carry", room=60),
}
"""Scenarios for all pairs of points, at most a few thousand each."""

LARGER = {
    "carry on two nodes": alone("carry", nodes=2),
    "lead on two nodes": leading("carry", nodes=2),
    "lead on two nodes, numbers": leading("carry", nodes=2, numbers=True),
    "lead on two nodes, with the usual reply": leading("carry", nodes=2, usual=True),
    "follow on three nodes, with the usual reply": following("carry", nodes=3, usual=True),
    "follow on two nodes": following("carry", nodes=2),
    "a forgotten script": alone("carry", forgets=True),
    "a forgotten script of a leader": leading("carry", forgets=True),
    "nodes that read slowly": leading("carry", nodes=2, room=60),
    "the next call": alone("carry, then tend"),
    "the next call of a leader": leading("carry, then tend", numbers=True),
}
"""Scenarios for some pairs, chosen by seed."""


def by_name(scenarios):
    return pytest.mark.parametrize("scenario", scenarios.values(), ids=list(scenarios))


@by_name({**SMALL, **LARGER})
def test_two_interruptions_by_seed_cost_others_nothing(scenario, seed):
    pairs = interrupt_by_chance(scenario, seed, 8, 4)
    print(f"{pairs} pairs")
    assert pairs > 8


@pytest.mark.sweep
@by_name(SMALL)
def test_two_interruptions_at_any_points_cost_others_nothing(scenario):
    pairs = interrupt_at_all_pairs(scenario)
    print(f"{pairs} pairs")
    assert pairs > MANY


@pytest.mark.sweep
@by_name(LARGER)
def test_more_interruptions_by_seed_cost_others_nothing(scenario, seed):
    print(interrupt_by_chance(scenario, seed, 100, 10), "pairs")
