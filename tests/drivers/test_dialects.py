"""Dialects: the commands for a plain node, and for a voter of a cluster."""

import pytest

from redsync._core.effects import Broadcast, Command
from redsync._core.quorum import Tally
from redsync._core.scripts import Script
from redsync._core.spellings import tag_of
from redsync._drivers.channels import pack
from redsync._drivers.dialects import PLAIN, ClusterDialect
from redsync._drivers.requests import Request

SLOT = 8192
TAG = b"{%b}" % tag_of(SLOT)


@pytest.fixture(scope="module")
def voter():
    return ClusterDialect(SLOT)


def request(script, *keys):
    effect = Broadcast(Command(script, keys, (b"claim", 7)), None, bool, timeout=1.0)
    return Request(effect, Tally(["node-1"], effect.judge))


def test_request_is_encoded_for_a_voter(voter):
    script = Script.load("lock_renew")
    asked = request(script, b"x", b"{y}")
    words = "EVALSHA", script.sha, "2", TAG + b"x", TAG + b"{y}", b"claim", "7"
    assert voter.data(asked) == pack(*words)
    assert PLAIN.data(asked) is asked.data
    load = request(script)
    load.command, load.data = None, b"SCRIPT LOAD ..."
    assert voter.data(load) == load.data


def test_voters_messages_use_a_channel_of_its_slot(voter):
    assert voter.subscription(b"wake") == pack("SSUBSCRIBE", TAG + b"wake")
    assert PLAIN.subscription(b"wake") == pack("SUBSCRIBE", b"wake")


def test_touch_writes_something(voter):
    """A standalone server replicates PUBLISH, a cluster does not."""
    assert PLAIN.touch == (pack("PUBLISH", "redsync:wake:votes", b""),)
    assert PLAIN.touched([0])
    vote = TAG + b"redsync_vote"
    assert voter.touch == (pack("SETNX", vote, "1"), pack("PEXPIRE", vote, "2592000000"))
    assert voter.touched([0, 1])
    assert not voter.touched([0, 0]), "there was no memory for the key"
