"""Labels: few name groups, whatever the names; and a short list of reasons, one for each sentence of the library."""

import ast
import hashlib
import random
import uuid
from pathlib import Path

import pytest

from redsync._drivers.nodes import INTERRUPTED
from redsync.metrics import name_group
from redsync.metrics.labels import LOSSES, VOTES, Groups, loss_reason, vote_reason


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


def test_number_of_groups_is_bounded(seed):
    groups = Groups(lambda name: name, 10)
    chance = random.Random(seed)
    names = ["".join(chance.choices("abcdefghijklmnop", k=12)) for _ in range(10_000)]
    assert len({groups.of(name) for name in names}) == 11
    assert groups.of("one more") == "other"
    assert groups.of(names[0]) == names[0]


def test_name_for_which_a_custom_function_raises_is_grouped_as_other():
    assert Groups(lambda name: name["x"], 10).of("order:1") == "other"


async def later(name): ...


@pytest.mark.parametrize(
    ("group_of", "most", "error"),
    [
        ("order", 10, TypeError),
        (later, 10, TypeError),
        (name_group, 0, ValueError),
        (name_group, True, ValueError),
        (name_group, 1.5, ValueError),
    ],
)
def test_groups_refuse_bad_options_at_once(group_of, most, error):
    with pytest.raises(error, match="group"):
        Groups(group_of, most)


# Reasons: each sentence that the library says about a failed vote or a loss has a label out of a short list


PACKAGE = Path(__file__).parents[2] / "redsync"


@pytest.mark.parametrize(
    ("sentence", "label"),
    [
        ("its max_hold is over", "max_hold"),
        ("its lease ended without a renewal", "lease_ended"),
        ("no quorum of nodes confirmed a renewal in time", "no_quorum"),
        ("3 of 5 nodes no longer keep the claim", "taken"),
        ("at its release 3 of 5 nodes no longer kept the claim", "taken"),
        ("the nodes gave it to another acquire of the same object", "superseded"),
        ("this process is a fork of the holder", "other"),
    ],
)
def test_loss_has_a_label(sentence, label):
    assert loss_reason(sentence) == label
    assert label in {*LOSSES, "other"}


@pytest.mark.parametrize(
    ("sentence", "label"),
    [
        ("no answer within 0.25 s", "timeout"),
        ("no answer in time", "timeout"),
        ("no answer for 10.1 s", "timeout"),
        ("suspect: owes 3 replies for 0.31 s", "suspect"),
        ("restarted or emptied, may have forgotten claims that are still believed: takes part ...", "quarantined"),
        ("its Sentinels have not said lately that 10.0.0.1:6379 is still the master: takes part ...", "unconfirmed"),
        (INTERRUPTED, "interrupted"),
        ("unexpected reply [1, 2]", "reply"),
        ("sent a reply to no command", "reply"),
        ("sent an unexpected reply 7", "reply"),
        ("OOM command not allowed when used memory > 'maxmemory'.", "error"),
        ("NOSCRIPT: the node had forgotten the script", "error"),
        ("not connected yet", "down"),
        ("Error 111 connecting to 127.0.0.1:1. Connection refused.", "down"),
        ("closed the connection", "down"),
    ],
)
def test_failed_vote_has_a_label(sentence, label):
    assert vote_reason(sentence) == label
    assert label in {*VOTES, "down"}


def test_every_reason_for_a_loss_has_its_own_label():
    sentences = [
        ast.unparse(node.args[1])
        for path in (PACKAGE / "_protocols").glob("*.py")
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.Call) and ast.unparse(node.func) == "lose"
    ]
    told = [sentence for sentence in sentences if sentence[0] in "f'\""]
    assert len(told) >= 2
    assert [sentence for sentence in told if "if " not in sentence and loss_reason(sentence) == "other"] == []
