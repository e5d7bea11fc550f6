"""How a permit without room waits: by a ticket, with a place in the queue."""

from contextlib import suppress

import pytest

from redsync._core.effects import Wait
from redsync._protocols.semaphore import SEMAPHORE
from tests.protocols import conftest
from tests.support.slots import ASK, ROLLBACK, ToySemaphore, full, got


def test_permit_without_room_draws_a_ticket_and_waits(toy, semaphore):
    state = semaphore.play(
        (ASK, toy.answers(full(3), full(7), full(5), None, None)),
        (ASK, toy.answers(full(8), full(8), full(8), None, None)),
        ROLLBACK,
        ROLLBACK,
        ("wait for wake-up", toy.slept(0.1, signals=3)),
        (ASK, toy.all_say(got(2))),
        timeout=5.0,
    )
    assert state.slots == (2,)
    asked = [command.args for command in toy.commands if command.script is SEMAPHORE.acquire]
    assert [args[4:6] for args in asked] == [(0, 0), (3000, 8), (3000, 8)]
    back, drop = toy.told
    place = (1, 0, 3000, 8, asked[1][6])
    assert back.command.args[1:] == (-1, *place), "it gets the place again that a grant has removed"
    assert back.deliver_to == 0, "at once or never: it may have left by then"
    assert (drop.command.args[1:], drop.deliver_to) == ((-1,), 0b11111)


def test_permit_that_first_found_other_slots_waits_for_any(toy, semaphore):
    differing = ASK, toy.answers(got(2), got(2), got(3), got(3), got(0))
    none = ASK, toy.all_say(full())
    queues = ROLLBACK, none, ("wait for wake-up", toy.slept()), none, "tell semaphore_abandon"
    assert semaphore.play(*[differing] * 3, none, *queues, timeout=0.5) is None
    assert semaphore.exact == [b"", b"2", b"2", b"2", b"", b""]


def test_place_is_pending_for_nodes_that_only_the_rollback_has_reached(toy, semaphore):
    """A rollback restores the place where a grant may have removed it, and makes one where there never was one."""
    asked = 0b00111
    script = (
        (ASK, toy.answers(full(), full(), full(), None, None, sent=asked)),
        (ASK, toy.answers(got(0), full(), full(), None, None, sent=asked)),
        ROLLBACK,
        ROLLBACK,
        ("wait for wake-up", toy.slept()),
        (ASK, toy.answers(full(), full(), full(), None, None, sent=asked)),
        "tell semaphore_abandon",
    )
    assert semaphore.play(*script, timeout=0.5) is None
    assert [told.deliver_to for told in toy.told] == [0, 0b00111, 0b11111]


def test_permit_that_finds_room_but_not_the_same_slots_tries_again_soon(toy, semaphore):
    """Nothing wakes an acquire that was not refused for lack of room."""
    state = semaphore.play(
        (ASK, toy.all_say(full())),
        (
            ASK,
            toy.answers(got(3, others=(0, 1, 2)), got(0, others=(1, 2, 3)), got(1, others=(0, 2, 3)), full(), "down"),
        ),
        ROLLBACK,
        ROLLBACK,
        ("wait for wake-up", toy.slept()),
        (ASK, toy.all_say(got(2))),
        timeout=5.0,
    )
    assert state.slots == (2,)
    assert toy.waits[0].until - 1000.0 < 0.05


@pytest.mark.parametrize("replies", [(got(2), full(), full(), None), (got(2), full(), full(), "down", None)])
def test_permit_that_has_heard_too_few_nodes_to_draw_a_ticket_tries_again_soon(make_toy, replies):
    """It has no place in the queue, so nothing wakes it."""
    toy = make_toy(len(replies))
    semaphore = ToySemaphore(toy)
    state = semaphore.play(
        (ASK, toy.answers(*replies)), ROLLBACK, ("wait", toy.slept()), (ASK, toy.all_say(got(2))), timeout=5.0
    )
    assert state.slots == (2,)
    assert toy.waits[0].until - 1000.0 < 0.05


# Waiters that find no quorum, on virtual nodes.


class Program(conftest.Program):
    """A client of a semaphore of two permits, one effect at a time; `reach`: the nodes that it reaches."""

    def __init__(self, world, reach=(0, 1, 2)):
        super().__init__(world, 2)
        self.reach = reach
        self.state = self.effect = None

    def ask(self, timeout, n=1):
        self.steps = self.asking(n, start=0.5, timeout=timeout)
        self.effect = next(self.steps)

    def step(self):
        """Perform one effect; if it was the last, `state` is the permit."""
        self.world.fate = lambda _, node: "ok" if node in self.reach else "lost"
        try:
            self.effect = self.steps.send(self.world.perform(self.effect))
        except StopIteration as stop:
            self.state, self.effect = stop.value, None

    def acquire(self, timeout):
        self.ask(timeout)
        while self.effect is not None:
            self.step()
        return self.state

    def sleep(self):
        """Perform all effects before the next wait."""
        while not isinstance(self.effect, Wait):
            self.step()

    def give_up(self):
        """End a call as drivers do: a protocol is never closed half-way."""
        with suppress(KeyboardInterrupt, StopIteration):
            self.steps.throw(KeyboardInterrupt())
            while True:
                self.steps.send(None)


@pytest.fixture
def line(world):
    """The holder of one permit, and a waiter for both, whose client hears all nodes."""
    for store in world.stores:
        store.publish = lambda *_: 1
    holder, waiter = Program(world), Program(world)
    holder.acquire(0.0)
    waiter.ask(1000.0, n=2)
    waiter.sleep()
    yield holder, waiter
    waiter.give_up()


def test_waiter_that_reaches_too_few_nodes_keeps_the_free_permit_from_no_other(world, line):
    _, waiter = line
    waiter.reach = (0,)
    other = Program(world, reach=(0, 1))
    other.ask(10.0)
    while other.effect is not None:
        waiter.step()
        other.step()
    assert other.state is not None


def test_waiter_keeps_its_turn_although_one_of_its_rounds_finds_no_quorum(world, line):
    holder, waiter = line
    waiter.step()
    waiter.reach = (0,)
    waiter.step()
    waiter.reach = (0, 1, 2)
    waiter.sleep()
    holder.release(holder.state)
    assert Program(world).acquire(0.0) is None
    while waiter.effect is not None:
        waiter.step()
    assert waiter.state is not None


def test_late_rollback_of_a_try_without_a_place_leaves_a_later_place(world):
    """Over another set of links than the ask for the place."""
    waiter = Program(world, reach=(0,))
    waiter.ask(1000.0, n=2)
    waiter.step()
    undo, waiter.reach = waiter.effect, ()
    waiter.step()
    Program(world).acquire(0.0)
    waiter.reach = (0, 1, 2)
    waiter.step()
    waiter.sleep()
    world.fate = lambda *_: "ok"
    world.perform(undo)
    kept = [store.peek(conftest.SLOT_KEYS.places) is not None for store in world.stores]
    waiter.give_up()
    assert kept == [True] * 3
