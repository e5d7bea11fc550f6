"""Clusters: tags of keys on a plain node and on a voter, and what scripts make of them; CLUSTER NODES."""

import re
from binascii import crc_hqx

import pytest

from redsync._core.clusters import ClusterServer, KeyTagging, masters_in, owner_in, read_cluster, slots_of, tag_of
from redsync._core.scripts import Command, Script

SLOT = 8192
TAG = b"{%b}" % tag_of(SLOT)
PLAIN, VOTER = KeyTagging(), KeyTagging(SLOT)


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


def test_command_is_the_same_but_for_its_keys():
    command = Command(Script.load("lock_renew"), (b"x", b"{y}"), (b"claim", 7))
    assert VOTER.command(command) == (command.script, (TAG + b"x", TAG + b"{y}"), (b"claim", 7))
    assert PLAIN.command(command) == command


@pytest.mark.parametrize("script", Script.shipped(), ids=lambda script: script.name)
def test_script_spells_no_key_without_the_tag_and_publishes_only_where_it_knows_the_node(script):
    """`tests/simulation/test_differential.py` runs them."""
    assert all(b"tag .. '" in line for line in script.source.splitlines() if re.search(rb"'redsync[_:]", line))
    assert all(b"tag == ''" in line for line in script.source.splitlines() if b"publish'" in line)


@pytest.mark.parametrize(("nodes", "slots"), [(1, [8192]), (3, [2730, 8192, 13653]), (2, [4096, 12288])])
def test_slots_of_voters_are_the_middles_of_equal_parts(nodes, slots):
    assert slots_of(nodes) == slots


# CLUSTER NODES: the owner of a slot, by which decision, and the replicas of each master.


VIEW = b"""\
aaa 10.0.0.1:7001@17001,host-1 myself,master - 0 0 7 connected 0-5460 9000 [93-<-bbb]
bbb :7002@17002 master - 0 1 8 connected 5461-8999 [93->-aaa]
ccc 10.0.0.3:7003@17003 slave aaa 0 1 7 connected
ddd fe80::1:7004@17004 master,fail - 0 1 3 disconnected
eee 10.0.0.5:7005@17005 master - 0 1 9 connected [93-<-aaa]

"""


def test_view_is_read_line_by_line():
    servers = read_cluster(VIEW)
    assert servers[0] == ClusterServer("aaa", "10.0.0.1", 7001, True, "-", 7, ("0-5460", "9000", "[93-<-bbb]"))
    places = [(server.host, server.port) for server in servers[1:]]
    assert places == [("", 7002), ("10.0.0.3", 7003), ("fe80::1", 7004), ("10.0.0.5", 7005)]
    assert [server.master for server in servers] == ["-", "-", "aaa", "-", "-"]
    assert [server.name for server in masters_in(servers)] == ["aaa", "bbb"], "eee only imports a slot"


@pytest.mark.parametrize(("slot", "owner"), [(0, "aaa"), (93, "aaa"), (9000, "aaa"), (5461, "bbb"), (9001, None)])
def test_owner_of_a_slot_is_its_current_master(slot, owner):
    found = owner_in(read_cluster(VIEW), slot)
    assert (found and found.name) == owner


@pytest.mark.parametrize("text", [b"aaa", b"aaa no-address master - 0 0 7 connected", b"a h:1@2 master - 0 0 x c"])
def test_anything_but_a_view_is_refused(text):
    with pytest.raises((IndexError, ValueError)):
        read_cluster(text)
