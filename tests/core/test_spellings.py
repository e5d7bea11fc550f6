"""Spellings of keys on a plain node, and on a voter of a cluster; and what scripts make of them."""

import re
from binascii import crc_hqx

import pytest

from redsync._core.effects import Command
from redsync._core.keys import LockKeys
from redsync._core.scripts import Script
from redsync._core.spellings import Spelling, slots_of, tag_of

SLOT = 8192
TAG = b"{%b}" % tag_of(SLOT)
PLAIN, VOTER = Spelling(), Spelling(SLOT)


def slot_of(key):
    """Return the slot of a key by the cluster's specification: CRC16 of the first hash tag."""
    tag = re.match(rb"[^{]*\{([^}]+)\}", key)
    return crc_hqx(tag[1] if tag else key, 0) % 16384


@pytest.mark.parametrize("slot", [0, 1, 8192, 16383])
def test_tag_leads_to_its_slot(slot):
    assert slot_of(b"{%b}any key" % tag_of(slot)) == slot


@pytest.mark.parametrize("key", [b"x", b"redsync_queue:{x}", b"{other}x", b"}{", b"{}x"])
def test_all_keys_of_a_voter_are_in_its_slot_and_plain_again_without_their_tag(key):
    assert slot_of(VOTER.key(key)) == SLOT
    assert VOTER.plain(VOTER.key(key)) == key
    assert PLAIN.plain(PLAIN.key(key)) == key == PLAIN.key(key)


@pytest.mark.parametrize("slot", [0, 1, 8192, 16383])
def test_key_of_a_voter_is_none_that_a_name_could_have(slot):
    """Scripts know a voter by its keys, so a name must not make one on a plain node."""
    with pytest.raises(ValueError, match="marks the keys of a cluster's voter"):
        LockKeys.of(b"", Spelling(slot).key(b"x"))


def test_command_is_the_same_but_for_its_keys():
    command = Command(Script.load("lock_renew"), (b"x", b"{y}"), (b"claim", 7))
    assert VOTER.command(command) == (command.script, (TAG + b"x", TAG + b"{y}"), (b"claim", 7), None)
    assert PLAIN.command(command) == command


@pytest.mark.parametrize("script", Script.shipped(), ids=lambda script: script.name)
def test_script_spells_no_key_without_the_tag_and_publishes_only_where_it_knows_the_node(script):
    """`tests/testing/simulator/test_differential.py` runs them."""
    assert all(b"tag .. '" in line for line in script.source.splitlines() if re.search(rb"'redsync[_:]", line))
    assert all(b"tag == ''" in line for line in script.source.splitlines() if b"publish'" in line)


@pytest.mark.parametrize(("nodes", "slots"), [(1, [8192]), (3, [2730, 8192, 13653]), (2, [4096, 12288])])
def test_slots_of_voters_are_the_middles_of_equal_parts(nodes, slots):
    assert slots_of(nodes) == slots
