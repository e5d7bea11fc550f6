"""Reasons: each sentence that the library says about a failed vote or a loss has a label out of a short list."""

import ast
from pathlib import Path

import pytest

from redsync._drivers.nodes import INTERRUPTED
from redsync.metrics.reasons import LOSSES, VOTES, loss_reason, vote_reason

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
    assert label in LOSSES


@pytest.mark.parametrize(
    ("sentence", "label"),
    [
        ("no answer within 0.25 s", "timeout"),
        ("no answer in time", "timeout"),
        ("no answer for 10 s", "timeout"),
        ("suspect: owes 3 replies for 0.31 s", "suspect"),
        ("restarted or emptied, may have forgotten claims that are still believed: takes part ...", "quarantined"),
        ("its Sentinels have not said lately that 10.0.0.1:6379 is still the master: takes part ...", "unconfirmed"),
        ("has not answered an earlier command for this claim", "suspect"),
        ("all 16 connections of this client were in use: Client(max_connections=16)", "connections"),
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
    assert label in VOTES


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
