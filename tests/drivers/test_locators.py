"""Where the server of a node is: the conclusions from the Sentinels' answers."""

import math

import hiredis
import pytest

from redsync._drivers.locators import Location, Witness, needed_of
from redsync._drivers.sentinels import SentinelLocator

HERE, THERE = ("127.0.0.1", 6379), ("127.0.0.1", 6380)


def make(count=3, replicas=2):
    return SentinelLocator("mymaster", [Witness(f"s{index + 1}:26379", None) for index in range(count)], replicas)


def said(place=HERE, epoch=7, replicas=2, **more):
    fields = {"name": "mymaster", "ip": "10.9.9.9", "port": "1", "config-epoch": epoch, "num-slaves": replicas, **more}
    words = [str(word).encode() for item in fields.items() for word in item]
    return words, [str(word).encode() for word in place]


UNKNOWN = hiredis.ReplyError("ERR No such master with that name"), None


@pytest.mark.parametrize(("replicas", "needed"), [(0, 0), (1, 1), (2, 1), (3, 2), (4, 2), (5, 3)])
def test_master_and_acknowledging_replicas_are_a_majority_of_the_group(replicas, needed):
    assert needed_of(replicas) == needed
    assert 2 * (needed + 1) > replicas + 1 or not replicas


def test_question_names_the_master():
    number, address = make().questions
    assert hiredis.pack_command(("SENTINEL", "MASTER", "mymaster")) == number
    assert hiredis.pack_command(("SENTINEL", "GET-MASTER-ADDR-BY-NAME", "mymaster")) == address


def test_majority_of_the_sentinels_must_answer():
    """One of them may have been cut off together with a master that was replaced long ago."""
    locator = make()
    assert locator.present is None
    locator.note(0, said())
    assert locator.present is None
    assert locator.excuse == (
        "1 of 3 Sentinels name the master, 2 must: s2:26379: no answer yet; s3:26379: no answer yet"
    )
    locator.note(2, said())
    assert locator.present == Location(*HERE, 7)
    assert locator.excuse == ""
    assert str(locator.present) == "127.0.0.1:6379"


def test_master_is_confirmed_at_the_time_a_majority_was_asked():
    locator = make()
    assert locator.confirmed_at == -math.inf
    for index, asked_at in enumerate((10.0, 11.0, 12.0)):
        assert locator.ask(index, asked_at) is locator.questions
        locator.note(index, said())
    assert locator.confirmed_at == 11.0
    locator.ask(0, 13.0)
    assert locator.confirmed_at == 11.0, "it has not answered yet"
    locator.note(0, said())
    assert locator.confirmed_at == 12.0
    locator.note_failure(2, "closed the connection")
    assert locator.confirmed_at == 11.0
    for index in (0, 1):
        locator.ask(index, 14.0)
        locator.note(index, said(replicas=4))
    assert locator.present is None
    assert locator.confirmed_at == 11.0, "nothing is confirmed while the master is unknown"


def test_latest_decision_counts_even_if_only_one_sentinel_knows_it():
    locator = make()
    for index in (0, 1, 2):
        locator.note(index, said())
    locator.note(1, said(THERE, 8))
    assert locator.present == Location(*THERE, 8)


def test_address_is_that_of_the_server_being_promoted():
    """During a failover SENTINEL MASTER reports the old address with the new number."""
    locator = make(1)
    locator.note(0, said(THERE, 8, ip="127.0.0.1", port="6379"))
    assert locator.present == Location(*THERE, 8)


def test_failed_sentinel_no_longer_counts():
    locator = make()
    locator.note(0, said())
    locator.note(1, said())
    locator.note_failure(1, "closed the connection")
    assert locator.present is None
    assert "s2:26379: closed the connection" in locator.excuse


def test_one_decision_with_two_outcomes_locates_no_master():
    locator = make()
    locator.note(0, said(HERE))
    locator.note(1, said(THERE))
    assert locator.present is None
    assert locator.excuse == (
        "the Sentinels disagree, epoch 7 is at 127.0.0.1:6379 and 127.0.0.1:6380: they must belong to the same group"
    )


def test_name_that_most_sentinels_do_not_know_is_a_conflict():
    locator = make()
    locator.note(0, UNKNOWN)
    assert locator.conflict is None, "one of them may not know it yet"
    locator.note(1, UNKNOWN)
    assert locator.conflict == locator.excuse
    assert locator.conflict.startswith("2 of 3 Sentinels know no master named 'mymaster': name it as in")


@pytest.mark.parametrize("known", [3, 4])
def test_more_replicas_than_configured_could_make_two_majorities(known):
    locator = make(1)
    locator.note(0, said(replicas=known))
    assert locator.present is None
    assert locator.excuse.startswith(f"the Sentinels list {known} replicas of the master, but replicas=2: two masters")


@pytest.mark.parametrize(("known", "fits"), [(0, False), (1, True), (2, True)])
def test_fewer_replicas_suffice_as_long_as_they_can_acknowledge(known, fits):
    locator = make(1)
    locator.note(0, said(replicas=known))
    assert (locator.present is not None) is fits
    if not fits:
        assert "but replicas=2 needs 1 to acknowledge each vote" in locator.excuse


@pytest.mark.parametrize("known", [0, 5])
def test_replicas_do_not_matter_where_none_must_acknowledge(known):
    locator = make(1, replicas=0)
    locator.note(0, said(replicas=known))
    assert locator.present == Location(*HERE, 7)


@pytest.mark.parametrize(
    "replies",
    [
        (b"OK", b"OK"),
        (None, None),
        ([b"ip"], [b"a", b"1"]),
        ([b"config-epoch", b"soon", b"num-slaves", b"0"], [b"a", b"1"]),
        (said()[0], [b"a"]),
        (said()[0], None),
        (said()[0], hiredis.ReplyError("ERR")),
        (5, 5),
    ],
    ids=repr,
)
def test_server_that_is_not_a_sentinel_raises(replies):
    locator = make(1)
    with pytest.raises(ConnectionError, match="it is not one of the Sentinels"):
        locator.note(0, replies)


def test_home_does_not_depend_on_the_order_of_the_sentinels():
    one = SentinelLocator("m", [Witness("b:1", None), Witness("a:1", None)], 0)
    other = SentinelLocator("m", [Witness("a:1", None), Witness("b:1", None)], 2)
    assert one.home == other.home == "m@a:1,b:1"
