"""Name groups: few, whatever the names; what the application says about them goes first."""

import hashlib
import random
import secrets
import uuid

import pytest

from redsync.metrics import name_group
from redsync.metrics.groups import _MOST_NAMES, Groups


@pytest.mark.parametrize(
    ("name", "group"),
    [
        ("nightly-report", "nightly-report"),
        ("order:4711", "order"),
        ("order:4711:items", "order"),
        (b"order:4711", "order"),
        ("stage2:copy", "stage"),
        ("report:2026-11-23", "report"),
        ("job/0b5c2a3e-8f6b-4f6e-9a55-6f1f0c2f7a11", "job"),
        ("job/abcdefab-cdef-abcd-efab-cdefabcdefab", "job"),
        ("sha:da39a3ee5e6b4b0d3255bfef95601890afd80709", "sha"),
        ("key:deadbeef", "key"),
        ("session:QmFzZWxpbmVUb2tlbkFiYw", "session"),
        ("token:QmFzZWxpbmVUbAtlbkFiYwxyz", "token"),
        ("facade:decade", "facade:decade"),
        ("INTERNATIONALIZATIONSERVICES", "INTERNATIONALIZATIONSERVICES"),
        ("user:a1b2c3", "user"),
        ("4711", "unnamed"),
        ("{order}:7", "order"),
        (b"\xff\xfe", "\ufffd\ufffd"),
        ("tab\there", "tabhere"),
        ("x" * 500, "x" * 64),
    ],
)
def test_group_ends_before_what_looks_like_an_identifier(name, group):
    assert name_group(name) == group


@pytest.mark.parametrize(
    "make",
    [
        lambda n: f"order:{n}",
        lambda n: f"user:{uuid.uuid4()}",
        lambda n: f"blob-{hashlib.sha256(b'%d' % n).hexdigest()}",
        lambda n: f"tenant/{n % 97}/import/{n}",
        lambda n: b"raw:%d" % n,
        lambda n: f"file_{hashlib.md5(b'%d' % n).hexdigest()[:12]}",
    ],
)
def test_ten_thousand_names_with_identifiers_are_one_group(make):
    assert len({name_group(make(n)) for n in range(10_000)}) == 1


def test_number_of_groups_is_bounded():
    groups = Groups(lambda name: name, 10)
    seed = secrets.randbelow(1 << 32)
    print(f"seed {seed}")
    chance = random.Random(seed)
    names = ["".join(chance.choices("abcdefghijklmnop", k=12)) for _ in range(10_000)]
    assert len({groups.of(name) for name in names}) == 11
    assert groups.of("one more") == "other"
    assert groups.of(names[0]) == names[0]


def test_memory_of_names_is_bounded():
    groups = Groups(name_group, 10)
    for n in range(2 * _MOST_NAMES):
        assert groups.of(f"order:{n}") == "order"
        assert len(groups._of) <= _MOST_NAMES


def test_name_for_which_a_custom_function_raises_is_grouped_as_other():
    assert Groups(lambda name: name["x"], 10).of("order:1") == "other"


def test_custom_function_may_return_any_value():
    assert Groups(len, 10).of("order:1") == "7"


@pytest.mark.parametrize(
    ("group_of", "most", "error"),
    [
        ("order", 10, TypeError),
        (name_group, 0, ValueError),
        (name_group, True, ValueError),
        (name_group, 1.5, ValueError),
    ],
)
def test_groups_refuse_bad_options_at_once(group_of, most, error):
    with pytest.raises(error, match="group"):
        Groups(group_of, most)
