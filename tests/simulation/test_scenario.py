"""Scenarios: parsing, effects, and error messages."""

import pytest

from tests.simulation.scenario import Scenario, ScenarioError

CLIENTS = "clients a b\n"


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("walk the dog", "story:2: neither a setting nor an instant: walk the dog"),
        ("kind rocket", "story:2: neither a setting nor an instant: kind rocket"),
        ("1.0 a walks the dog", "story:2: no statement looks like this: a walks the dog"),
        ("1.0 c acquires x", "story:2: 'c' is not one of the clients: a b"),
        ("1.0 node 4 crashes", "story:2: nodes are numbered from 1 to 3: node 4 crashes"),
        ("1.0 all is well\n# a comment\n\n0.5 all is well", "story:5: 0.5 comes after 1: times must rise"),
    ],
)
def test_mistake_is_reported_with_file_and_line(text, problem):
    with pytest.raises(ScenarioError) as caught:
        Scenario(CLIENTS + text, "story")
    assert str(caught.value) == problem


def play(*lines):
    return Scenario(CLIENTS + "\n".join(lines), "story").run()


@pytest.mark.parametrize(
    ("expectation", "found"),
    [
        ("b holds x", "a does"),
        ("nodes keep x: a b -", "they keep a a a"),
        ("a waits", "a has said acquired x"),
        ("a: released x", "a has said acquired x"),
    ],
)
def test_unmet_expectation_is_reported_with_the_facts_and_the_trace(expectation, found):
    with pytest.raises(ScenarioError) as caught:
        play("0.0 a acquires x", f"1.0 expect {expectation}")
    report = str(caught.value)
    assert report.startswith(f"story:3: expect {expectation}: {found}\n\nthe trace ends with\n")
    assert "a on a acquired lock=x" in report


def test_slot_may_stay_although_it_began_to_move():
    sim = Scenario(
        "cluster yes\nnodes 2\nreplicas 1\nclients a\n3.0 a acquires x\n"
        "4.0 slot of 1 moves to 3, a key every 10 at most\n4.1 slot of 1 stays\n30.0 expect a holds x"
    ).run()
    assert [node.name for node in sim.nodes] == ["node-1a", "node-2a"]
    assert sim.world.moves == {}
