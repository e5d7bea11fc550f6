"""Lining up: which acquires wait inside the process, and what ends that."""

import pytest

from redsync._core.crowds import FRONT
from redsync._protocols.places import Arrival
from tests.support.injection import Interruption
from tests.support.replies import won


def test_one_behind_lines_up_again_if_its_owner_has_left_the_crowd_meanwhile(toy):
    """A signal's handler has acquired the same lock in the same thread."""
    crowds, crowd = toy.session.crowds, toy.keys.lock
    crowds.under_way = FRONT + 1
    for other in range(FRONT):
        crowds.enter(crowd, b"%d" % other)
    state = toy.acquire(
        ("wait for wake-up", toy.slept(1.0, meanwhile=lambda: crowds.leave(crowd, toy.owner.wire))),
        ("wait for wake-up", toy.slept(1.0, meanwhile=lambda: crowds.leave(crowd, b"0"))),
        ("ask lock_acquire for a place", won(toy)),
    )
    assert state.valid(toy.now)


def test_one_that_is_interrupted_before_it_lines_up_is_not_counted(toy):
    class Interrupted(Arrival):
        @property
        def lines_up(self):
            raise Interruption

    toy.session.crowds.under_way = FRONT + 1
    with pytest.raises(Interruption):
        next(toy.acquiring(queue=Interrupted))
    assert toy.session.crowds.under_way == FRONT + 1
