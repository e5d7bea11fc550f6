"""The transport: which nodes get new claims, as far as they remember, and votes that come after the verdict."""

import math

import pytest

from redsync._drivers.process import clock

UNHEARD = (None, -math.inf)
"""The birth record of a node that was not asked for it, and since when it remembers."""


def choices(tally):
    return [choice.value if choice else None for choice in tally.choices]


@pytest.fixture
def claim(raw, make_script):
    """A script that is answered as by a node that may have forgotten, where it finds for how long it remembers."""
    claim = make_script(
        "claim", "local age = redis.call('get', 'age') return age and redis.error_reply('FORGETFUL ' .. age) or 1"
    )
    for node in raw:
        node.script_load(claim.source)
    return claim


@pytest.fixture
def ask(rig, all_votes):
    """Return a function that asks all nodes and waits for each of them."""
    return lambda script, *args, **options: rig.ask(script, rig.owner(), *args, decide=all_votes, **options)


def test_node_is_too_young_for_some_claims_and_old_enough_for_others(rig, ask):
    """Whatever was asked before: the longest guard so far only says who needs a closer look."""
    rig.nodes[1].remembers_since = clock() - 100.0
    for guard, vote in [(50.0, "granted"), (200.0, "failed"), (50.0, "granted"), (200.0, "failed"), (0.0, "granted")]:
        tally = ask(rig.echo, 1, guard=guard)
        assert choices(tally) == ["granted", vote, "granted"], guard
        assert tally.sent == (0b111 if vote == "granted" else 0b101), "it is not even asked"


def test_node_that_says_that_it_forgot_all_is_not_asked_for_new_claims_again(rig, ask, claim, raw):
    raw[1].set("age", -1)
    tally = ask(claim, guard=30.0)
    assert choices(tally) == ["granted", "failed", "granted"]
    assert "may have forgotten claims" in tally.replies[1]
    assert "may have forgotten claims" in rig.nodes[1].last_error
    assert rig.nodes[1].birth is None
    assert rig.changes, "the maintenance has to write its record"
    tally = ask(claim, guard=30.0)
    assert (choices(tally), tally.sent) == (["granted", "failed", "granted"], 0b101)
    assert choices(ask(rig.echo, 1)) == ["granted"] * 3, "what needs no memory goes on"


def test_node_that_says_since_when_it_remembers_is_asked_again_when_that_is_enough(ask, claim, raw):
    raw[1].set("age", 5_000)
    assert "in 25.0 s" in ask(claim, guard=30.0).replies[1]
    raw[1].delete("age")
    assert choices(ask(claim, guard=30.0)) == ["granted", "failed", "granted"]
    assert choices(ask(claim, guard=5.0)) == ["granted"] * 3


def test_node_that_was_doubted_is_asked_again_when_its_record_turns_out_to_be_old(rig, ask, claim, raw):
    raw[1].set("age", -1)
    ask(claim, guard=30.0)
    raw[1].delete("age")
    rig.nodes[1].remembers_since = clock() - 100.0
    rig.transport.reconsider()
    assert choices(ask(claim, guard=30.0)) == ["granted"] * 3


@pytest.mark.parametrize("age", ["soon", "", "1.5", "-2", "0x10", "1_000", "\u0663", "9" * 400, "-1 or so"])
def test_node_whose_word_on_its_memory_is_nonsense_fails_that_vote_only(rig, ask, claim, raw, age):
    """It is an error like any other: whoever reads it goes on, and so does the connection."""
    raw[1].set("age", age)
    tally = ask(claim, guard=30.0)
    assert choices(tally) == ["granted", "failed", "granted"]
    assert tally.replies[1] == rig.nodes[1].last_error
    assert tally.replies[1].startswith("FORGETFUL")
    assert (rig.nodes[1].birth, rig.nodes[1].remembers_since) == UNHEARD, "nothing was learned of its memory"
    raw[1].delete("age")
    assert choices(ask(claim, guard=30.0)) == ["granted"] * 3
    assert not rig.broken


def test_what_becomes_known_of_a_nodes_memory_counts_once_the_transport_was_told(rig, ask):
    ask(rig.echo, 1, guard=30.0)
    rig.nodes[1].remembers_since = clock()
    rig.transport.reconsider()
    assert choices(ask(rig.echo, 1, guard=30.0)) == ["granted", "failed", "granted"]


@pytest.mark.parametrize("late", [True, False])
def test_votes_that_come_late_are_noted_if_that_was_asked_for(rig, nodes, late):
    nodes.pause(2)
    tally = rig.ask(rig.echo, rig.owner(), 1, late=late)
    assert choices(tally) == ["granted", "granted", None]
    nodes.resume(2)
    rig.settle()
    assert choices(tally.all_votes) == ["granted", "granted", "granted" if late else None]
    assert choices(tally) == ["granted", "granted", None], "the protocol may be reading it"
    assert (tally.won, tally.granted) == (True, 2)
