"""Spellings of keys and scripts on a plain node, and on a voter of a cluster."""

import re
from binascii import crc_hqx

import pytest

from redsync._core.effects import Command
from redsync._core.scripts import Script
from redsync._core.spellings import Spelling, Tagged, slots_of, tag_of

SLOT = 8192
TAG = b"{%b}" % tag_of(SLOT)
PLAIN = Spelling()


@pytest.fixture(scope="module")
def voter():
    return Tagged(SLOT)


def slot_of(key):
    """Return the slot of a key by the cluster's specification: CRC16 of the first hash tag."""
    tag = re.match(rb"[^{]*\{([^}]+)\}", key)
    return crc_hqx(tag[1] if tag else key, 0) % 16384


@pytest.mark.parametrize("slot", [0, 1, 8192, 16383])
def test_tag_leads_to_its_slot(slot):
    assert slot_of(b"{%b}any key" % tag_of(slot)) == slot


@pytest.mark.parametrize("key", [b"x", b"redsync_queue:{x}", b"{other}x", b"}{", b"{}x"])
def test_all_keys_of_a_voter_are_in_its_slot_and_plain_again_without_their_tag(voter, key):
    assert slot_of(voter.key(key)) == SLOT
    assert voter.plain(voter.key(key)) == key
    assert PLAIN.plain(PLAIN.key(key)) == key == PLAIN.key(key)


@pytest.mark.parametrize("script", Script.shipped(), ids=lambda script: script.name)
def test_voters_script_names_no_key_outside_its_slot_and_publishes_nowhere_else(voter, script):
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


def test_command_is_spelled_with_its_script_and_its_keys(voter):
    command = Command(Script.load("lock_renew"), (b"x", b"{y}"), (b"claim", 7))
    assert voter.command(command) == (voter.script(command.script), (TAG + b"x", TAG + b"{y}"), (b"claim", 7), None)
    assert PLAIN.command(command) is command


@pytest.mark.parametrize(("nodes", "slots"), [(1, [8192]), (3, [2730, 8192, 13653]), (2, [4096, 12288])])
def test_slots_of_voters_are_the_middles_of_equal_parts(nodes, slots):
    assert slots_of(nodes) == slots
