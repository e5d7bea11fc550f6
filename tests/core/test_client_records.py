"""Client records: packed so that later versions can add to them, and read without trust."""

import math

import msgpack
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from redsync._core.client_records import ClientRecord, digests_of

RECORD = ClientRecord("db-1.example", 4711, "worker.py", 1_763_726_400.25)


NAMES = st.binary().map(lambda name: name.decode("utf-8", "surrogateescape"))
"""As the system passes them: bytes that are not UTF-8 become lone surrogates."""


@given(NAMES | st.text(), st.integers(0, 2**40), NAMES | st.text(), st.floats(0, 1e12))
@settings(derandomize=True)
def test_any_record_is_read_as_packed_but_for_escapes_in_its_names(host, pid, program, since):
    record = ClientRecord(host, pid, program, since)
    escaped = [name.encode("utf-8", "backslashreplace").decode() for name in (host, program)]
    assert ClientRecord.unpack(record.pack()) == record._replace(host=escaped[0], program=escaped[1])
    assert msgpack.unpackb(record.pack())["program"] == escaped[1], "other readers get proper text too"


def test_record_is_a_map_by_name_for_readers_in_any_language():
    expected = {"host": "db-1.example", "pid": 4711, "program": "worker.py", "since": 1_763_726_400.25, "nodes": []}
    expected["layout"] = 1
    assert msgpack.unpackb(RECORD.pack()) == expected


def test_record_of_a_later_or_earlier_version_is_read():
    fields = {**RECORD._asdict(), "colour": "red", "threads": [1, 2]}
    assert ClientRecord.unpack(msgpack.packb(fields)) == RECORD
    del fields["nodes"]
    assert ClientRecord.unpack(msgpack.packb(fields)) == RECORD


WRONG = {
    "since": [None, math.nan, math.inf],
    "pid": ["one", -1, math.inf],
    "nodes": [5],
    "held": [5, [5], [[b"1", "x"]]],
}


@pytest.mark.parametrize(
    "fields",
    [
        {},
        {"host": "h", "pid": 1, "program": "p"},
        ["h", 1, "p", 1.0],
        None,
        *({**RECORD._asdict(), field: value} for field, values in WRONG.items() for value in values),
    ],
)
def test_packed_value_that_is_not_a_record_is_none(fields):
    assert ClientRecord.unpack(msgpack.packb(fields)) is None


DEEP, NO_UTF8 = b"\x91" * 100_000 + b"\0", b"\x81\xa4host\xa1\xff"


@pytest.mark.parametrize(
    "packed",
    [b"", b"\xc1", b"\x81", b"text", RECORD.pack()[:-1], RECORD.pack() + b"\0", b"\xd9", NO_UTF8, DEEP],
    ids=lambda packed: repr(packed[:9]),
)
def test_unpacked_value_is_none(packed):
    assert ClientRecord.unpack(packed) is None


def test_long_names_in_a_record_are_cut():
    record = ClientRecord.unpack(RECORD._replace(host="h" * 10_000, program="p" * 10_000).pack())
    assert (len(record.host), len(record.program)) == (500, 500)


# Lists of nodes.


def test_record_shows_the_list_of_nodes_as_digests():
    digests = digests_of(["a:1/0", "b:2/0"])
    assert digests == digests_of(["b:2/0", "a:1/0"])
    assert len(set(digests)) == 2
    assert not set(digests) & set(digests_of(["a:1/1"]))
    assert ClientRecord.unpack(RECORD._replace(nodes=digests).pack()).nodes == digests


@pytest.mark.parametrize(("nodes", "kept"), [("ab", ("a", "b")), (["x" * 1000] * 1000, ("x" * 8,) * 100)])
def test_forged_list_is_cut_short(nodes, kept):
    assert ClientRecord.unpack(RECORD._replace(nodes=nodes).pack()).nodes == kept
