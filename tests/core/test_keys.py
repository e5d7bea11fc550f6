"""Names of keys and channels: each name has its own keys."""

import pytest
from hypothesis import assume, example, given, settings
from hypothesis import strategies as st
from redis.crc import key_slot

from redsync._core.keys import LatchKeys, LockKeys, client_key, encode_name, encode_prefix, wake_channel
from redsync._core.permits import SlotKeys
from redsync.exceptions import ConfigurationError

ODD = [
    b"\r\n",
    b"a\r\n$3\r\nfoo",
    b"\0",
    b"\xff\xfe",
    b"{}",
    b"}{",
    b"{a}b{c}",
    b"*",
    b"::",
    b"redsync:x",
    b"redsync_queue:{redsync:x}",
    b"redsync_queue::redsync:{x}",
    "schlüssel-☃-🔒".encode(),
    b"x" * 512,
]

# Few letters, so that names collide with the braces and colons of side keys.
names = st.one_of(
    st.sampled_from(ODD),
    st.binary(min_size=1, max_size=24),
    st.lists(
        st.sampled_from([b"{", b"}", b":", b"x", b"redsync", b"_queue", b"_places", b"\0"]), min_size=1, max_size=9
    ).map(b"".join),
)


# Names.


@pytest.mark.parametrize("raw", ODD)
def test_name_of_any_bytes_is_kept(raw):
    assert encode_name(raw) == raw
    assert LockKeys.of(b"redsync:", raw).lock == b"redsync:" + raw


@pytest.mark.parametrize("text", ["x", "ü", "☃", "\0", "\r\n", "{user}:1", "\ud800", "a\udcffb"])
def test_name_as_text_and_as_utf8_is_one_name(text):
    raw = text.encode("utf-8", "surrogatepass")
    assert encode_name(text) == encode_name(raw) == raw


@pytest.mark.parametrize("name", ["", b"", "x" * 513, b"x" * 513, "ü" * 257, "☃" * 171, "x" * 10**6])
def test_name_of_no_or_more_than_512_bytes_is_refused(name):
    with pytest.raises(ValueError, match="1 to 512 bytes"):
        encode_name(name)


@pytest.mark.parametrize("name", [None, 1, 1.0, bytearray(b"x"), memoryview(b"x"), ["x"], ("x",), object()])
def test_name_that_is_neither_str_nor_bytes_is_refused(name):
    with pytest.raises(TypeError, match="str or bytes"):
        encode_name(name)


@pytest.mark.parametrize(
    ("prefix", "name"), [(b"", b"{rs7979}x"), (b"", b"{rs0}"), (b"{rs", b"7}x"), (b"{rs1", b"}"), (b"{rs2}", b"x")]
)
@pytest.mark.parametrize("keys", [LockKeys, SlotKeys, LatchKeys])
def test_name_that_makes_a_key_like_those_of_a_clusters_voter_is_refused(keys, prefix, name):
    with pytest.raises(ValueError, match=r"can't begin with \{rs\d+\}: that marks the keys of a cluster's voter"):
        keys.of(prefix, name)


@pytest.mark.parametrize(
    "name", [b"{rs}x", b"{rsx}", b"{rs7", b"x{rs7}", b"{{rs7}}", b"{Rs7}x", "{rs\u0663}x".encode()]
)
@pytest.mark.parametrize("keys", [LockKeys, SlotKeys, LatchKeys])
def test_any_other_name_in_braces_is_accepted(keys, name):
    assert name in keys.of(b"", name).all[0]
    assert keys.of(b"redsync:", b"{rs7}" + name)


# Keys.

# With an explicit example Hypothesis looks for the references to its random generator, but those that the garbage
# collector has frozen (see conftest.py) can't be seen.
frozen = pytest.mark.filterwarnings("ignore:It looks like `register_random`")


def test_keys_are_spelled_as_documented():
    keys = LockKeys.of(b"redsync:", b"x")
    assert {name: getattr(keys, name) for name in LockKeys.__slots__} == {
        "lock": b"redsync:x",
        "queue": b"redsync_queue:{redsync:x}",
        "places": b"redsync_places:{redsync:x}",
        "channel": b"redisson_lock__channel:{redsync:x}",
        "token": b"redsync_token:{redsync:x}",
        "foreign_token": b"redisson_lock_token:{redsync:x}",
        "all": (b"redsync:x", b"redsync_queue:{redsync:x}", b"redsync_places:{redsync:x}"),
        "held": (b"redsync:x",),
        "hold": b"redsync:x",
    }


def test_channel_of_a_tagged_key_is_redissons():
    """RedissonObject.prefixName: a name with a brace is appended unchanged, any other in braces."""
    assert LockKeys.of(b"", b"{user}:7").channel == b"redisson_lock__channel:{user}:7"
    assert LockKeys.of(b"", b"user:7").channel == b"redisson_lock__channel:{user:7}"


@frozen
@given(
    names,
    names,
    st.sampled_from([b"redsync:", b"", b"{", b"{app}:", b"}", b":", b"redsync_queue:", b"redsync_queue:{", b"\xff"]),
)
@example(b"x", b"{redsync:x}", b"redsync:")
@example(b"x", b"\0x", b"redsync:")
@example(b"x", b"{x}", b"")
@example(b"x", b":{x}", b"")
@example(b"x}", b"{x}", b"{")
@settings(derandomize=True, max_examples=100)
def test_two_names_never_share_a_key_nor_one_of_a_kind_under_any_prefix(one, other, prefix):
    assume(one != other)
    ours, theirs = LockKeys.of(prefix, one), LockKeys.of(prefix, other)
    assert prefix != b"redsync:" or not set(ours.all) & set(theirs.all)
    assert ours.lock != theirs.lock
    assert ours.queue != theirs.queue
    assert ours.places != theirs.places
    assert ours.queue != theirs.places


@pytest.mark.parametrize("name", [b"x", b"a b", b"\0\r\n", b"{user}:7", b"7:{user}:x", b"a{b}c{d}", b"\xff*?"])
def test_keys_of_a_name_fall_into_one_cluster_slot(name):
    assert len({key_slot(key) for key in LockKeys.of(b"redsync:", name).all}) == 1


# Prefixes and channels.


@pytest.mark.parametrize("prefix", ["", "redsync:", "{app}:", "ü" * 256, "\0\r\n"])
def test_prefix_is_kept_as_utf8(prefix):
    assert encode_prefix(prefix) == prefix.encode()


@pytest.mark.parametrize("prefix", ["x" * 513, "ü" * 257, b"bytes", None, 7, "\ud800"])
def test_prefix_that_is_not_text_or_too_long_is_refused(prefix):
    with pytest.raises(ConfigurationError):
        encode_prefix(prefix)


@pytest.mark.parametrize("prefix", ["{rs7979}", "{rs0}app:"])
def test_prefix_that_begins_like_the_keys_of_a_clusters_voter_is_refused(prefix):
    with pytest.raises(ConfigurationError, match=r"a prefix can't begin with \{rs\d+\}: that marks the keys"):
        encode_prefix(prefix)


def test_channels_and_records_are_those_of_a_client():
    assert wake_channel("8c9e") == b"redsync:wake:8c9e"
    assert client_key("8c9e") == b"redsync:client:8c9e"


def test_holds_of_different_modes_have_different_keys_from_each_other_and_from_locks():
    reading, writing = (LockKeys.of(b"", b"x", mode) for mode in (b"r:", b"w:"))
    assert reading.all == writing.all == LockKeys.of(b"", b"x").all
    names = [b"x", b"r:x", b"xr:", b"x r:"]
    assert len({reading.hold, writing.hold, *(LockKeys.of(b"", name).hold for name in names)}) == 6
