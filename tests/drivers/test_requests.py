"""Requests and waitables; codecs: the commands for a plain node, and for a voter of a cluster."""

import pytest

from redsync._core.clusters import tag_of
from redsync._core.effects import Broadcast, Tell
from redsync._core.holds import Owner
from redsync._core.quorum import Tally
from redsync._core.scripts import Command, Script
from redsync._drivers.handshake_connections import pack
from redsync._drivers.requests import PLAIN, Codec, Mailbox, Request

SCRIPT = Script("echo", b"return 1", b"0" * 40)
ANNA = Owner("client", 1)


def request(number=1, owner=ANNA, key=b"key", **options):
    made = Request(Tell(Command(SCRIPT, (key,), (b"word", 7)), owner, **options), None)
    made.number = number
    assert made.make()
    return made


def test_request_is_guarded_only_if_it_asks_for_a_new_claim():
    ask = Broadcast(Command(SCRIPT, (b"key",), ()), ANNA, bool, 1.0, guard=30.0)
    assert Request(ask, None).guard == 30.0
    assert Request(ask._replace(guard=0.0), None).guard == 0.0
    assert request().guard == 0.0


def test_mailbox_is_done_once_enough_nodes_have_signalled():
    mailbox = Mailbox()
    mailbox.needed = 2
    mailbox.signal(0b001)
    mailbox.signal(0b001)
    assert not mailbox.done
    mailbox.signal(0b100)
    assert mailbox.done
    assert mailbox.signals == 0b101


# Codecs.

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
