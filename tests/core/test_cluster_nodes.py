"""CLUSTER NODES: the owner of a slot, by which decision, and the replicas of each master."""

import pytest

from redsync._core.cluster_nodes import ClusterServer, masters_in, owner_in, read_cluster

VIEW = b"""\
aaa 10.0.0.1:7001@17001,host-1 myself,master - 0 0 7 connected 0-5460 9000 [93-<-bbb]
bbb :7002@17002 master - 0 1 8 connected 5461-8999 [93->-aaa]
ccc 10.0.0.3:7003@17003 slave aaa 0 1 7 connected
ddd fe80::1:7004@17004 master,fail - 0 1 3 disconnected

"""


def test_view_is_read_line_by_line():
    servers = read_cluster(VIEW)
    assert servers[0] == ClusterServer("aaa", "10.0.0.1", 7001, True, "-", 7, ("0-5460", "9000", "[93-<-bbb]"))
    assert [(server.host, server.port) for server in servers[1:]] == [("", 7002), ("10.0.0.3", 7003), ("fe80::1", 7004)]
    assert [server.master for server in servers] == ["-", "-", "aaa", "-"]
    assert [server.name for server in masters_in(servers)] == ["aaa", "bbb"]


@pytest.mark.parametrize(("slot", "owner"), [(0, "aaa"), (93, "aaa"), (9000, "aaa"), (5461, "bbb"), (9001, None)])
def test_owner_of_a_slot_is_its_current_master(slot, owner):
    found = owner_in(read_cluster(VIEW), slot)
    assert (found and found.name) == owner


@pytest.mark.parametrize("text", [b"aaa", b"aaa no-address master - 0 0 7 connected", b"a h:1@2 master - 0 0 x c"])
def test_anything_but_a_view_is_refused(text):
    with pytest.raises((IndexError, ValueError)):
        read_cluster(text)
