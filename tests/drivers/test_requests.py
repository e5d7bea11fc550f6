"""Codecs: the commands for a plain node, and for a voter of a cluster."""

import pytest

from redsync._core.clusters import tag_of
from redsync._core.effects import Broadcast
from redsync._core.quorum import Tally
from redsync._core.scripts import Command, Script
from redsync._drivers.handshake_connections import pack
from redsync._drivers.requests import PLAIN, Codec, Request

SLOT = 8192
TAG = b"{%b}" % tag_of(SLOT)


@pytest.fixture(scope="module")
def voter():
    return Codec(SLOT)


def asked_by(script, *keys):
    effect = Broadcast(Command(script, keys, (b"claim", 7)), None, bool, timeout=1.0)
    return Request(effect, Tally(["node-1"], effect.parse))


def test_request_is_encoded_for_a_voter(voter):
    script = Script.load("lock_renew")
    asked = asked_by(script, b"x", b"{y}")
    words = "EVALSHA", script.sha, "2", TAG + b"x", TAG + b"{y}", b"claim", "7"
    assert voter.data(asked) == pack(*words)
    assert PLAIN.data(asked) is asked.data
    load = asked_by(script)
    load.command, load.data = None, b"SCRIPT LOAD ..."
    assert voter.data(load) == load.data


def test_voters_messages_use_a_channel_of_its_slot(voter):
    assert voter.subscription(b"wake") == pack("SSUBSCRIBE", TAG + b"wake")
    assert PLAIN.subscription(b"wake") == pack("SUBSCRIBE", b"wake")
