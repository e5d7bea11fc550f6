"""Effects are data: the traps yield them, and return the driver's reply."""

import pytest

from redsync._core.effects import Broadcast, Notify, Signal, Tell, Wait, Wakeup, broadcast, notify, signal, tell, wait
from redsync._core.holds import Owner
from redsync._core.observing import NodeChanged
from redsync._core.scripts import Command, Script

OWNER = Owner("c", 1)
COMMAND = Command(Script.load("lock_release"), (b"k", b"q", b"p"), (OWNER.wire, 0, b"channel"))
BROADCAST = Broadcast(COMMAND, OWNER, bool, 0.25)
TELL = Tell(COMMAND, OWNER, 0b11)
WAIT = Wait(12.5, b"key")
EVENT = NodeChanged("a", "up", "")


@pytest.mark.parametrize(
    ("steps", "effect", "reply"),
    [
        (broadcast(BROADCAST), BROADCAST, BROADCAST.tally(["a"])),
        (tell(TELL), TELL, None),
        (wait(WAIT), WAIT, Wakeup(3.0, 2)),
        (notify(EVENT), Notify(EVENT), None),
        (signal(b"key"), Signal(b"key"), None),
    ],
)
def test_trap_yields_one_effect_and_returns_the_reply(steps, effect, reply):
    yielded = next(steps)
    assert (type(yielded), yielded) == (type(effect), effect)
    with pytest.raises(StopIteration) as end:
        steps.send(reply)
    assert end.value.value is reply


@pytest.mark.parametrize(
    ("steps", "reply", "wanted"), [(broadcast(BROADCAST), Wakeup(3.0, 2), "a Tally"), (wait(WAIT), None, "a Wakeup")]
)
def test_trap_asserts_the_type_of_the_reply(steps, reply, wanted):
    next(steps)
    with pytest.raises(AssertionError, match=f"is {wanted}"):
        steps.send(reply)
