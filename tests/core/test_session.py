"""Locks that met others."""

from redsync._core.holds import HoldTable
from redsync._core.keys import LockKeys
from redsync._core.session import Session
from redsync._core.timing import Timing

KEYS = LockKeys.of(b"redsync:", b"x")


def test_locks_that_met_others_are_remembered_until_they_are_free_again_and_never_too_many():
    session = Session(3, Timing(30.0), HoldTable(lambda: None), lambda: 0.5)
    session.note_others(KEYS.lock, met=True)
    assert KEYS.lock in session.contended
    session.note_others(KEYS.lock, met=False)
    assert not session.contended
    for number in range(3000):
        session.note_others(b"%d" % number, met=True)
        assert b"%d" % number in session.contended
    assert len(session.contended) <= 1024
