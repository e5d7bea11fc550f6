"""The wire between `redsync lock` and its keeper."""

import pytest

from redsync.cli.wire import Wire


@pytest.fixture
def ends():
    pair = Wire.pair()
    yield pair
    for end in pair:
        end.close()


def test_words_arrive_in_lines(ends):
    ours, theirs = ends
    ours.send("until", 12.5)
    ours.send("over", 0, "-")
    assert theirs.receive() == [["until", "12.5"], ["over", "0", "-"]]
    assert theirs.receive() == []
    assert not theirs.closed


def test_sender_does_not_wait_for_a_reader_and_no_line_is_torn(ends):
    ours, theirs = ends
    for number in range(50_000):
        ours.send("until", number)
    received = theirs.receive()
    while len(received) < 50_000:
        ours.send("more")  # sends the rest first
        received += theirs.receive()
    assert [words for words in received if words != ["more"]] == [["until", str(number)] for number in range(50_000)]


def test_end_of_the_other_side_comes_after_its_last_words(ends):
    ours, theirs = ends
    theirs.send("over", 3, "late")
    theirs.close()
    assert ours.receive() == [["over", "3", "late"]]
    assert ours.closed
    ours.send("until", 1.0)  # it is not read
    assert ours.receive() == []
