"""Codecs: what a client sends to a plain node, and to a voter of a cluster.

`tests/simulation/test_by_seeds.py` shows that commands to voters have their keys.
"""

from redsync._core.clusters import tag_of
from redsync._drivers.handshake_connections import pack
from redsync._drivers.requests import PLAIN, Codec

SLOT = 8192


def test_voters_messages_use_a_channel_of_its_slot():
    assert Codec(SLOT).subscription(b"wake") == pack("SSUBSCRIBE", b"{%b}wake" % tag_of(SLOT))
    assert PLAIN.subscription(b"wake") == pack("SUBSCRIBE", b"wake")
