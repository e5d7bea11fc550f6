"""Where the server of a node is: the conclusions from the Sentinels' answers."""

import math

import hiredis
import pytest

from redsync._drivers.discovery import Location, SentinelLocator, Witness, needed_of

HERE, THERE = ("127.0.0.1", 6379), ("127.0.0.1", 6380)


def make(count=3, replicas=2):
    return SentinelLocator("mymaster", [Witness(f"s{index + 1}:26379", None) for index in range(count)], replicas)


def said(place=HERE, epoch=7, replicas=2, **more):
    fields = {"name": "mymaster", "ip": "10.9.9.9", "port": "1", "config-epoch": epoch, "num-slaves": replicas, **more}
    reports = [str(report).encode() for item in fields.items() for report in item]
    return reports, [str(report).encode() for report in place]


@pytest.mark.parametrize(("replicas", "needed"), [(0, 0), (1, 1), (2, 1), (3, 2), (4, 2), (5, 3)])
def test_master_and_acknowledging_replicas_are_a_majority_of_the_group(replicas, needed):
    assert needed_of(replicas) == needed
    assert 2 * (needed + 1) > replicas + 1 or not replicas


def test_majority_of_the_sentinels_must_answer():
    """One of them may have been cut off together with a master that was replaced long ago."""
    locator = make()
    assert locator.present is None
    locator.note(0, said(), 0.0)
    assert locator.present is None
    assert locator.unknown_reason == (
        "1 of 3 Sentinels name the master, 2 must: s2:26379: no answer yet; s3:26379: no answer yet"
    )
    locator.note(2, said(), 0.0)
    assert locator.present == Location(*HERE, 7)
    assert locator.unknown_reason == ""
    assert str(locator.present) == "127.0.0.1:6379"


def test_master_is_confirmed_at_the_time_a_majority_was_asked():
    locator = make()
    assert locator.confirmed_at == -math.inf
    for index, asked_at in enumerate((10.0, 11.0, 12.0)):
        locator.note(index, said(), asked_at)
    assert locator.confirmed_at == 11.0
    locator.note(0, said(), 13.0)
    assert locator.confirmed_at == 12.0
    locator.note_failure(2, "closed the connection")
    assert locator.confirmed_at == 11.0
    for index in (0, 1):
        locator.note(index, said(replicas=4), 14.0)
    assert locator.present is None
    assert locator.confirmed_at == 11.0, "nothing is confirmed while the master is unknown"


@pytest.mark.parametrize(
    ("answers", "location"),
    [
        pytest.param([said(), said(THERE, 8), said(THERE, 8)], Location(*THERE, 8), id="most know the latest decision"),
        # During a failover SENTINEL MASTER reports the old address with the new number.
        pytest.param([said(THERE, 8, ip="127.0.0.1", port="6379")], Location(*THERE, 8), id="one is being promoted"),
    ],
)
def test_latest_decision_counts(answers, location):
    locator = make(len(answers))
    for index, answer in enumerate(answers):
        locator.note(index, answer, 0.0)
    assert locator.present == location


def test_decision_that_only_a_minority_knows_counts_for_nothing_and_neither_does_the_one_before():
    """A majority that does not know it may name the former master, whose votes would then count, too."""
    locator = make()
    for index, answer in enumerate([said(THERE, 8), said(), said()]):
        locator.note(index, answer, 1.0)
    assert locator.present is None
    assert locator.confirmed_at == -math.inf, "the former master is not confirmed"
    assert locator.unknown_reason == (
        "1 of 3 Sentinels name the master, 2 must: s2:26379: knows epoch 7 at most; s3:26379: knows epoch 7 at most"
    )


def test_one_decision_with_two_outcomes_locates_no_master():
    locator = make()
    locator.note(0, said(HERE), 0.0)
    locator.note(1, said(THERE), 0.0)
    assert locator.present is None
    assert locator.unknown_reason == (
        "the Sentinels disagree, epoch 7 is at 127.0.0.1:6379 and 127.0.0.1:6380: they must belong to the same group"
    )


@pytest.mark.parametrize("known", [3, 4])
def test_more_replicas_than_configured_could_make_two_majorities(known):
    locator = make(1)
    locator.note(0, said(replicas=known), 0.0)
    assert locator.present is None
    assert locator.unknown_reason.startswith(
        f"the Sentinels list {known} replicas of the master, but replicas=2: two masters"
    )


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
def test_server_that_is_not_a_sentinel_names_no_master(replies):
    locator = make(1)
    locator.note(0, replies, 0.0)
    assert locator.present is None
    assert locator.unknown_reason.endswith("it is not one of the Sentinels")
