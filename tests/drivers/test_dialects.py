"""Dialects: what a plain node gets, and what a voter that a cluster lends."""

import re
from binascii import crc_hqx

import pytest

from redsync._core.effects import Broadcast, Command
from redsync._core.quorum import Tally
from redsync._core.scripts import Script
from redsync._drivers.channels import pack
from redsync._drivers.dialects import PLAIN, ClusterDialect, tag_of
from redsync._drivers.requests import Request

SLOT = 8192
TAG = b"{%b}" % tag_of(SLOT)


@pytest.fixture(scope="module")
def voter():
    return ClusterDialect(SLOT)


def request(script, *keys):
    effect = Broadcast(Command(script, keys, (b"claim", 7)), None, bool, timeout=1.0)
    return Request(effect, Tally(["node-1"], effect.judge))


def slot_of(key):
    """Return the slot of a key, as the cluster's specification has it: CRC16 of the first hash tag."""
    tag = re.match(rb"[^{]*\{([^}]+)\}", key)
    return crc_hqx(tag[1] if tag else key, 0) % 16384


@pytest.mark.parametrize("slot", [0, 1, 8192, 16383])
def test_tag_leads_to_its_slot(slot):
    assert slot_of(b"{%b}any key" % tag_of(slot)) == slot


@pytest.mark.parametrize("key", [b"x", b"redsync_queue:{x}", b"{other}x", b"}{", b"{}x"])
def test_all_keys_of_a_voter_are_in_its_slot(voter, key):
    assert slot_of(voter.key(key)) == SLOT


@pytest.mark.parametrize("script", Script.shipped(), ids=lambda script: script.name)
def test_voters_script_names_no_key_outside_of_its_slot_and_publishes_nowhere_else(voter, script):
    ours = voter.script(script)
    assert ours.name == script.name
    assert voter.script(script) is ours
    own = rb"'(?:\{rs\d+\})?redsync[_:][a-z:]*'"
    assert all(found.startswith(b"'" + TAG) for found in re.findall(own, ours.source))
    assert b"'publish'" not in ours.source
    for line in re.findall(rb"[^\n]*'spublish'[^\n]*", ours.source):
        assert b"'spublish', '%b' .. " % TAG in line
        assert b"KEYS[1]" not in line.replace(b"string.sub(KEYS[1], %d)" % (len(TAG) + 1), b"")
    assert len(re.findall(b"publish'", ours.source)) == len(re.findall(b"publish'", script.source))
    assert PLAIN.script(script) is script


def test_voters_request_is_spelled_for_it(voter):
    script = Script.load("lock_renew")
    asked = request(script, b"x", b"{y}")
    words = "EVALSHA", voter.script(script).sha, "2", TAG + b"x", TAG + b"{y}", b"claim", "7"
    assert voter.data(asked) == pack(*words)
    assert PLAIN.data(asked) is asked.data
    load = request(script)
    load.command, load.data = None, b"SCRIPT LOAD ..."
    assert voter.data(load) == load.data


def test_voters_messages_come_over_a_channel_of_its_slot(voter):
    assert voter.subscription(b"wake") == pack("SSUBSCRIBE", TAG + b"wake")
    assert PLAIN.subscription(b"wake") == pack("SUBSCRIBE", b"wake")


def test_touch_writes_something(voter):
    """PUBLISH is replicated by a server of its own, and by none of a cluster."""
    assert PLAIN.touch == (pack("PUBLISH", "redsync:wake:votes", b""),)
    assert PLAIN.touched([0])
    vote = TAG + b"redsync_vote"
    assert voter.touch == (pack("SETNX", vote, "1"), pack("PEXPIRE", vote, "2592000000"))
    assert voter.touched([0, 1])
    assert not voter.touched([0, 0]), "there was no memory for the key"
