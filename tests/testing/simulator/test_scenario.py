"""Scenarios: parsing, effects, and error messages."""

import math

import pytest

from redsync.testing.simulator.scenario import Scenario, ScenarioError

CLIENTS = "clients a b\n"


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("walk the dog", "story:2: neither a setting nor an instant: walk the dog"),
        ("nodes many", "story:2: neither a setting nor an instant: nodes many"),
        ("kind rocket", "story:2: neither a setting nor an instant: kind rocket"),
        ("1.0 a walks the dog", "story:2: no statement looks like this: a walks the dog"),
        ("1.0 c acquires x", "story:2: 'c' is not one of the clients: a b"),
        ("1.0 expect c holds x", "story:2: 'c' is not one of the clients: a b"),
        ("1.0 node 4 crashes", "story:2: nodes are numbered from 1 to 3: node 4 crashes"),
        ("1.0 a is cut off from 1 2 7", "story:2: nodes are numbered from 1 to 3: a is cut off from 1 2 7"),
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
        ("nobody holds x", "a does"),
        ("b holds x", "a does"),
        ("nodes keep x: a b -", "they keep a a a"),
        ("a waits", "a has said acquired x"),
        ("a: released x", "a has said acquired x"),
        ("b: released x", "b has said nothing"),
    ],
)
def test_unmet_expectation_is_reported_with_the_facts_and_the_trace(expectation, found):
    with pytest.raises(ScenarioError) as caught:
        play("0.0 a acquires x", f"1.0 expect {expectation}")
    report = str(caught.value)
    assert report.startswith(f"story:3: expect {expectation}: {found}\n\nthe trace ends with\n")
    assert "a on a acquired lock=x" in report


@pytest.mark.parametrize(("kind", "script"), [("lock", " lock_acquire"), ("fair", " fair_lock_acquire")])
def test_kind_of_all_locks_is_a_setting(kind, script):
    assert script in play(f"kind {kind}", "0.0 a acquires x", "0.5 expect a holds x").trace.text()


def test_client_does_one_thing_after_the_other_as_one_owner():
    play(
        "0.0 a acquires x",
        "0.0 a acquires x for 1.5",
        "0.0 a releases x",
        "0.0 a extends x",
        "0.5 expect a: acquired x, acquired x, released x, extended x",
        "0.5 expect a holds x",
        "0.5 a releases x",
        "0.5 a releases x",
        "1.0 expect a: released x, not owner of x",
        "1.0 expect nodes keep x: - - -",
    )


def test_waiting_client_gives_up():
    play(
        "0.0 a acquires x",
        "0.5 b acquires x",
        "1.0 expect b waits",
        "1.0 b gives up",
        "1.1 expect b: cancelled x",
        "1.1 b acquires x within 0.5",
        "2.0 expect b: busy x",
        "2.0 b gives up  # there is nothing to give up",
        "2.0 a releases x",
        "2.1 b tries x",
        "2.5 expect b holds x",
    )


def test_every_fault_has_a_statement():
    sim = play(
        "0.0 a acquires x",
        "0.5 node 1 hangs",
        "0.6 node 1 resumes",
        "0.7 node 2 goes dark",
        "0.8 node 2 restarts",
        "0.9 node 3 forgets",
        "0.9 node 3 jumps -0.5",
        "0.9 node 1 answers OOM",
        "1.0 node 1 recovers",
        "1.0 a is 0.05 seconds from 1 2 3",
        "1.1 a loses replies from 2",
        "1.2 a reaches 1 2 3",
        "1.3 a loses requests to 2",
        "1.4 all is well",
        "1.5 node 1 forgets its scripts",
        "1.5 node 1 ignores new connections",
        "1.5 node 1 ends a connection",
        "1.5 nodes 2 3 change places",
        "1.5 a loses ends of requests to 1",
        "1.5 a loses ends of replies from 2",
        "1.5 a jumps +0.1",
        "1.6 a pauses",
        "1.7 a resumes",
        "1.8 a crashes",
        "1.9 b goes dark",
        "2.0 expect nobody holds x",
    )
    told = [line.partition("*** ")[2] for line in sim.trace.lines() if "***" in line]
    assert told[0] == "node-1 hangs"
    assert told[-2:] == ["a crashes", "b crashes and is dark"]
    assert told[-11:-5] == [
        "node-1 forgets all scripts",
        "node-1 ignores new connections",
        "node-1 ends a connection of a",
        "node-2 and node-3 swap addresses",
        "100% of requests, 0% of replies are cut short a <-> node-1",
        "0% of requests, 100% of replies are cut short a <-> node-2",
    ]
    assert "100% of requests, 0% of replies are lost a <-> node-2" in told


def test_settings_are_those_of_the_simulation():
    scenario = Scenario(
        "seed 7\nnodes 5\nlease 4\nguard 4\nkill no\nclients a\n0.0 a acquires x\n0.5 expect nodes keep x: a a a a a"
    )
    sim = scenario.run()
    assert (sim.seed, len(sim.nodes)) == (7, 5)
    assert sim.client_options == {"lease": 4.0, "restart_guard": 4.0, "outage_timeout": math.inf}
    assert not any(node.ends_former for node in sim.nodes)
    assert (sim.network.retransmits, sim.network.kept, sim.network.split) == (False, 0.0, 0.0)


def test_settings_of_the_network_are_those_of_the_simulation():
    network = Scenario("kept yes\nretransmits yes\nsplit 0.5\nclients a\n0.0 a acquires x").run().network
    assert (network.retransmits, network.kept, network.split) == (True, 1.0, 0.5)


def test_readers_share_a_lock_that_a_writer_waits_for():
    play(
        "kind read-write",
        "clients c",
        "0.0 a reads x",
        "0.0 b reads x within 1",
        "1.0 expect a: acquired x",
        "1.0 expect b: acquired x",
        "1.0 c acquires x",
        "1.5 a extends x",
        "1.5 b releases x",
        "1.7 expect a: acquired x, extended x",
        "1.7 expect c waits",
        "1.7 a releases x",
        "1.9 expect c holds x",
        "1.9 a reads x within 0.5",
        "2.6 expect a: busy x",
        "2.6 c releases x",
        "2.8 a acquires x",
        "3.0 expect a holds x",
        "3.0 a releases x",
        "3.2 expect nobody holds x",
    )


def test_story_in_a_file_is_called_by_its_path(tmp_path):
    path = tmp_path / "story.txt"
    path.write_text("clients a\n0.0 expect a holds x\n")
    with pytest.raises(ScenarioError, match=r"story\.txt:2: expect a holds x: nobody does"):
        Scenario.read(path).run()
