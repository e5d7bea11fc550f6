"""Keys and the names that they show, and commands that remove a claim; looks are in `core/test_lua_name_inspect.py`."""

import pytest

from redsync._core.keys import LatchKeys
from redsync._core.permits import SlotKeys
from redsync._protocols.surveys import break_commands, name_of_key
from tests.protocols.conftest import CLIENT


@pytest.mark.parametrize("name", [b"x", b"a{b}c", b"a}b", b"\xff\x00", b"client:x", b":", b"x" * 512])
@pytest.mark.parametrize("prefix", [b"redsync:", b"", b"my{app}:"])
def test_name_is_read_from_its_keys(prefix, name):
    keys, latch = SlotKeys.of(prefix, name), LatchKeys.of(prefix, name)
    for key in (keys.lock, keys.queue, keys.limit, latch.latch):
        assert name_of_key(prefix, key) == name
    for key in (keys.places, keys.token, keys.slots, latch.setting.token, latch.setting.queue):
        assert name_of_key(prefix, key) is None


def test_records_are_not_names():
    assert name_of_key(b"redsync:", f"redsync:client:{CLIENT}".encode()) is None
    assert name_of_key(b"", b"redsync_birth") is None
    assert name_of_key(b"redsync:", b"redsync:") is None


def test_keys_of_a_clusters_voter_show_no_name():
    """Someone may look at one of its servers as at a plain node, without a prefix."""
    for key in (b"{rs7979}redsync:x", b"{rs7979}redsync_queue:{redsync:x}", b"redsync_queue::{rs7979}x"):
        assert name_of_key(b"", key) is None


def test_key_that_is_too_long_for_a_name_shows_none():
    for key in (b"x" * 513, b"redsync_limit:{%s}" % (b"x" * 513), b"redsync_limit:{}"):
        assert name_of_key(b"", key) is None


def test_no_command_breaks_a_latch_or_a_foreign_value():
    assert break_commands(b"redsync:", b"x", "latch", b"me") == break_commands(b"redsync:", b"x", "list", b"me") == []
