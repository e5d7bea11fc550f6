"""Effects are data, and the traps yield them and check the replies."""

import pytest

from redsync._core.effects import Broadcast, Notify, Signal, Tell, Wait, Wakeup, broadcast, notify, signal, tell, wait
from redsync._core.holds import Owner
from redsync._core.observing import NodeChanged
from redsync._core.quorum import Tally, plainly
from redsync._core.scripts import Command, Script

OWNER = Owner("c", 1)
COMMAND = Command(Script.load("lock_release"), (b"k", b"q", b"p"), (OWNER.wire, 0, b"channel"))
BROADCAST = Broadcast(COMMAND, OWNER, bool, 0.25)
TELL = Tell(COMMAND, OWNER, 0b11, 7.0)
WAIT = Wait(12.5, b"key")
EVENT = NodeChanged("a", "up", "")
TALLY = Tally(["a"], bool)
WAKEUP = Wakeup(3.0, 2)


def run(steps, *replies):
    """Return the effects and the result of steps that get these replies."""
    effects = []
    try:
        effect = next(steps)
        for reply in replies:
            effects.append(effect)
            effect = steps.send(reply)
        pytest.fail(f"one effect too many: {effect}")
    except StopIteration as stop:
        return effects, stop.value


@pytest.mark.parametrize(
    ("steps", "effect", "reply"),
    [
        (lambda: broadcast(BROADCAST), BROADCAST, TALLY),
        (lambda: tell(TELL), TELL, None),
        (lambda: wait(WAIT), WAIT, WAKEUP),
        (lambda: notify(EVENT), Notify(EVENT), None),
        (lambda: signal(b"key"), Signal(b"key"), None),
    ],
)
def test_trap_yields_one_effect_and_returns_the_reply(steps, effect, reply):
    effects, result = run(steps(), reply)
    assert effects == [effect]
    assert type(effects[0]) is type(effect)
    assert result is reply


@pytest.mark.parametrize("reply", [None, WAKEUP, True, (), [TALLY]])
def test_broadcast_asserts_a_tally(reply):
    with pytest.raises(AssertionError, match="reply to a Broadcast is a Tally"):
        run(broadcast(BROADCAST), reply)


@pytest.mark.parametrize("reply", [None, TALLY, 3.0, (3.0, 2)])
def test_wait_asserts_a_wakeup(reply):
    with pytest.raises(AssertionError, match="reply to a Wait is a Wakeup"):
        run(wait(WAIT), reply)


@pytest.mark.parametrize(
    "steps", [lambda: broadcast(BROADCAST), lambda: tell(TELL), lambda: wait(WAIT), lambda: signal(b"key")]
)
def test_trap_lets_an_interruption_through(steps):
    trap = steps()
    next(trap)
    interruption = KeyboardInterrupt()
    with pytest.raises(KeyboardInterrupt) as caught:
        trap.throw(interruption)
    assert caught.value is interruption


def test_effects_are_values():
    assert Wait(12.5, b"key") == WAIT
    assert Tell(COMMAND, OWNER, 0b11, 7.0) == TELL
    assert BROADCAST._replace(guard=30.0) != BROADCAST
    for effect, field in [(WAIT, "until"), (TELL, "deliver_to"), (BROADCAST, "guard"), (WAKEUP, "at")]:
        with pytest.raises(AttributeError):
            setattr(effect, field, 0)


def test_tally_of_a_broadcast_has_its_options():
    tally = BROADCAST.tally(["a", "b", "c"])
    assert (tally.nodes, tally.parse, tally.decide) == (["a", "b", "c"], BROADCAST.parse, plainly)
