"""Limits of semaphores on virtual nodes: the promise of a shrink, nodes that forget, and one that sends nonsense."""

import pytest

from redsync._core.effects import Broadcast
from redsync._protocols.semaphore import limit_of, resize
from tests.protocols import conftest
from tests.protocols.conftest import SLOT_KEYS
from tests.simulation.stores import execute

VOID = b"%d 9" % (1 << 60)


class Program(conftest.Program):
    """A client with one semaphore object, initially of 10 permits."""

    def __init__(self, world):
        super().__init__(world, 10)
        self.had = []

    def take(self, *reach, start=0.0):
        """Take a permit whose rounds reach these nodes."""
        state = self.world.run(self.asking(start=start), *reach)
        self.had += [state] if state else []
        return state

    def resize(self, permits):
        self.world.run(resize(self.session, self.pool, self.owner, permits))

    def renew_all(self):
        assert all(self.renew(state) for state in self.had)

    @property
    def limit(self):
        return self.world.run(limit_of(self.session, self.pool, self.owner))


def limits(world):
    """Return how many permits each node knows."""
    found = [store.peek(SLOT_KEYS.limit) for store in world.stores]
    return [int(value[0].split()[1]) if value else None for value in found]


# After a shrink.


def hold_beyond(world):
    """Give three permits slots 6, 7 and 8, each on another two of three nodes, then lower the limit to 3."""
    olds = [Program(world) for _ in range(3)]
    for old, start, nodes in zip(olds, (0.6, 0.7, 0.8), [(0, 1), (1, 2), (0, 2)], strict=True):
        assert old.take(nodes, start=start).slots == (round(10 * start),)
    Program(world).resize(3)
    return olds


def test_released_permits_beyond_the_limit_make_room_one_for_one(world):
    olds = hold_beyond(world)
    newcomer = Program(world)
    for out, old in enumerate(olds):
        assert newcomer.take(start=0.9) is None
        old.release(old.had.pop())
        assert newcomer.take(start=0.9) is not None
        assert len(newcomer.had) == out + 1
    assert newcomer.take() is None


def test_limit_lowered_again_during_an_acquire_also_counts_the_permits_beyond_it(world):
    """The round shows nothing beyond the earlier limit, and so it says nothing of the later one."""
    for start, nodes in (0.3, (0, 1)), (0.4, (1, 2)), (0.5, (0, 2)):
        Program(world).take(nodes, start=start)
    Program(world).resize(6)
    newcomer, perform = Program(world), world.perform

    def resize_meanwhile(effect):
        reply = perform(effect)
        if isinstance(effect, Broadcast) and reply.won:
            world.perform = perform
            world.now += 0.02
            Program(world).resize(3)
            assert newcomer.limit == 3, "another thread has looked"
        return reply

    world.perform = resize_meanwhile
    first = newcomer.take(start=0.9)
    assert newcomer.pool.limit.permits == 3
    newcomer.release(first)
    assert newcomer.take() is None, "three hold permits"


# Nodes that forget.


def forget_one_by_one(world, *programs):
    """Let each node forget everything, one after the other, with a renewal between them."""
    for store in world.stores:
        store.flush()
        for program in programs:
            program.renew_all()


def test_limit_lowered_after_the_grants_outlives_a_rolling_restart(world):
    holder = Program(world)
    holder.take()
    Program(world).resize(2)
    holder.renew_all()
    forget_one_by_one(world, holder)
    assert limits(world) == [2, 2, 2]
    assert [bool(Program(world).take()) for _ in range(2)] == [True, False]


# Clocks that differ.


@pytest.mark.parametrize("back", [0.0, 3600.0])
def test_resize_prevails_over_an_earlier_one_of_the_same_instant_or_by_clocks_that_were_ahead(world, back):
    Program(world).resize(9)
    world.offsets = [-back] * world.n
    Program(world).resize(2)
    assert limits(world) == [2, 2, 2]
    assert Program(world).limit == 2


def test_resize_prevails_over_one_that_only_its_own_object_remembers(world):
    program = Program(world)
    program.resize(9)
    for store in world.stores:
        store.flush()
    world.offsets = [-3600.0] * world.n
    program.resize(2)
    assert [bool(program.take()) for _ in range(3)] == [True, True, False]
    assert limits(world) == [2, 2, 2]


# One node that sends nonsense.


@pytest.mark.parametrize("text", [VOID, b"1 0", b"1 10001", b"99999999999999999999999999 3", b"nonsense"])
def test_limit_of_absurd_size_does_not_spread_from_one_node(world, text):
    holder = Program(world)
    holder.take()
    execute(world.stores[0], b"SET", SLOT_KEYS.limit, text)
    holder.renew_all()
    for program in (holder, Program(world)):
        assert program.limit == 10
        assert program.take()
    assert limits(world) == [10, 10, 10]
    Program(world).resize(3)
    assert limits(world) == [3, 3, 3]


@pytest.mark.parametrize("years", [-3, 3])
def test_node_whose_clock_is_years_off_hinders_no_owner(world, years):
    world.offsets[0] = years * 366 * 86_400
    program = Program(world)
    program.resize(2)
    assert [bool(program.take()) for _ in range(3)] == [True, True, False]
    assert limits(world) == [2, 2, 2]
