"""Locks that met others, and the bytes of commands that are sent again and again."""

import pytest

from redsync._core.effects import Broadcast
from redsync._core.holds import HoldTable, Owner
from redsync._core.keys import LockKeys
from redsync._core.memory import Processes
from redsync._core.scripts import Command
from redsync._core.session import Session
from redsync._core.timing import Timing
from redsync._drivers.handshake_connections import pack
from redsync._drivers.requests import Request
from redsync._protocols.lock import LOCK

TIMING = Timing(30.0, restart_guard=30.0)
KEYS = LockKeys.of(b"redsync:", b"x")
OWNER = Owner("client", 7)


def session_with(timing=TIMING):
    return Session(3, timing, HoldTable(lambda: None), lambda: 0.5)


def test_locks_that_met_others_are_remembered_until_they_are_free_again_and_never_too_many():
    session = session_with()
    session.note_others(KEYS.lock, met=True)
    assert KEYS.lock in session.contended
    session.note_others(KEYS.lock, met=False)
    assert not session.contended
    for number in range(3000):
        session.note_others(b"%d" % number, met=True)
        assert b"%d" % number in session.contended
    assert len(session.contended) <= 1024


@pytest.mark.parametrize("claim", [b"c", OWNER.claim(9), OWNER.claim(12345678), b"x" * 100])
def test_bytes_of_a_steady_command_are_those_of_any_other(claim):
    processes = Processes()
    guard = processes.guard(30_000)
    for keys, rest in (((KEYS.lock,), (3, 2500, guard)), (KEYS.all, (0, KEYS.channel)), ((), ())):
        command = Command(LOCK.acquire, keys, (claim, *rest), steady=True)
        # A client may make a command before it is connected, and send it after that.
        for process in (b"first", b"second"):
            processes.note(0, process)
            words = [b"%d" % word if isinstance(word, int) else word for word in command.words]
            packed = pack(b"EVALSHA", LOCK.acquire.sha, b"%d" % len(keys), *keys, *words)
            assert Request(Broadcast(command, OWNER, bool, 1.0), None).data == packed
