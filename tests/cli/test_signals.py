"""The pipe between `redsync lock` and its shim."""

import multiprocessing

import pytest

from redsync.cli.shim import Pipe


@pytest.fixture
def ends():
    pair = [Pipe(end) for end in multiprocessing.Pipe()]
    yield pair
    for end in pair:
        end.close()


def test_end_of_the_other_side_comes_after_its_last_words(ends):
    ours, theirs = ends
    theirs.send("until", 12.5)
    theirs.send("over", 3, None)
    assert list(ours.receive()) == [("until", 12.5), ("over", 3, None)]
    assert not ours.closed
    theirs.send("over", 3, "late")
    theirs.close()
    assert list(ours.receive()) == [("over", 3, "late")]
    assert ours.closed
    ours.send("until", 1.0)  # it is not read
    assert list(ours.receive()) == []
