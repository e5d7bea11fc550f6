"""The transport: which nodes get new claims, depending on their memory; and votes after the verdict."""

import math

import pytest

from redsync._drivers.process import clock

UNHEARD = (None, -math.inf)
"""The birth record of a node that was never asked for it, and since when it remembers."""


def choices(tally):
    return [choice.value if choice else None for choice in tally.choices]


@pytest.fixture
def claim(raw, make_script):
    """A script that answers like a forgetful node where the key `age` tells how long it has remembered."""
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


def test_node_is_quarantined_for_some_claims_and_fit_for_others(rig, ask):
    """The longest guard so far only tells which nodes need a closer look."""
    rig.nodes[1].remembers_since = clock() - 100.0
    for guard, vote in [(50.0, "granted"), (200.0, "failed"), (50.0, "granted"), (200.0, "failed"), (0.0, "granted")]:
        tally = ask(rig.echo, 1, guard=guard)
        assert choices(tally) == ["granted", vote, "granted"], guard
        assert tally.sent == (0b111 if vote == "granted" else 0b101), "it is not even asked"


def test_node_that_forgot_everything_gets_no_more_new_claims(rig, ask, claim, raw):
    raw[1].set("age", -1)
    tally = ask(claim, guard=30.0)
    assert choices(tally) == ["granted", "failed", "granted"]
    assert "may have forgotten claims" in tally.replies[1]
    assert "may have forgotten claims" in rig.nodes[1].last_error
    assert rig.nodes[1].birth is None
    assert rig.changes, "the maintenance has to write its record"
    tally = ask(claim, guard=30.0)
    assert (choices(tally), tally.sent) == (["granted", "failed", "granted"], 0b101)
    assert choices(ask(rig.echo, 1)) == ["granted"] * 3, "commands without a guard continue"


def test_forgetful_node_gets_claims_again_once_it_has_remembered_for_long_enough(ask, claim, raw):
    raw[1].set("age", 5_000)
    assert "in 25.0 s" in ask(claim, guard=30.0).replies[1]
    raw[1].delete("age")
    assert choices(ask(claim, guard=30.0)) == ["granted", "failed", "granted"]
    assert choices(ask(claim, guard=5.0)) == ["granted"] * 3


def test_quarantined_node_gets_claims_again_if_its_record_turns_out_to_be_old(rig, ask, claim, raw):
    raw[1].set("age", -1)
    ask(claim, guard=30.0)
    raw[1].delete("age")
    rig.nodes[1].remembers_since = clock() - 100.0
    rig.transport.reconsider()
    assert choices(ask(claim, guard=30.0)) == ["granted"] * 3


@pytest.mark.parametrize("age", ["soon", "", "1.5", "-2", "0x10", "1_000", "\u0663", "9" * 400, "-1 or so"])
def test_node_with_a_malformed_age_of_its_memory_fails_only_that_vote(rig, ask, claim, raw, age):
    """It is an error like any other: the reading thread continues, and so does the connection."""
    raw[1].set("age", age)
    tally = ask(claim, guard=30.0)
    assert choices(tally) == ["granted", "failed", "granted"]
    assert tally.replies[1] == rig.nodes[1].last_error
    assert tally.replies[1].startswith("FORGETFUL")
    assert (rig.nodes[1].birth, rig.nodes[1].remembers_since) == UNHEARD, "nothing was learned of its memory"
    raw[1].delete("age")
    assert choices(ask(claim, guard=30.0)) == ["granted"] * 3
    assert not rig.broken


def test_news_of_a_nodes_memory_count_after_reconsider(rig, ask):
    ask(rig.echo, 1, guard=30.0)
    rig.nodes[1].remembers_since = clock()
    rig.transport.reconsider()
    assert choices(ask(rig.echo, 1, guard=30.0)) == ["granted", "failed", "granted"]


@pytest.mark.parametrize("late", [True, False])
def test_late_votes_are_recorded_if_requested(rig, nodes, late):
    nodes.pause(2)
    tally = rig.ask(rig.echo, rig.owner(), 1, late=late)
    assert choices(tally) == ["granted", "granted", None]
    nodes.resume(2)
    rig.settle()
    assert choices(tally.all_votes) == ["granted", "granted", "granted" if late else None]
    assert choices(tally) == ["granted", "granted", None], "the protocol may be reading it"
    assert (tally.won, tally.granted) == (True, 2)
