"""Stories: what does not fit is an error with file and line, and what is true instead."""

import pytest

from tests.simulation.scenario import Scenario, ScenarioError


@pytest.mark.parametrize(
    ("line", "problem"),
    [
        ("kind rocket", "neither a setting nor an instant: kind rocket"),
        ("1.0 a walks the dog", "no statement looks like this: a walks the dog"),
        ("1.0 c acquires x", "c acquires x: no client, node or server has that name or number"),
        ("1.0 node 4 crashes", "node 4 crashes: no client, node or server has that name or number"),
        ("-1.0 all is well", "-1 comes after 0: times must rise"),
        ("1.0 expect b holds x", "expect b holds x: a does"),
        ("1.0 expect nodes keep x: a b -", "expect nodes keep x: a b -: they keep a a a"),
        ("1.0 expect a waits", "expect a waits: a has said acquired x"),
        ("1.0 expect a: released x", "expect a: released x: a has said acquired x"),
    ],
)
def test_mistake_in_a_story_is_reported_with_file_and_line(line, problem):
    with pytest.raises(ScenarioError) as caught:
        Scenario(f"clients a b\n0.0 a acquires x\n{line}", "story").run()
    assert str(caught.value).partition("\n\nthe trace ends with\n")[0] == f"story:3: {problem}"
