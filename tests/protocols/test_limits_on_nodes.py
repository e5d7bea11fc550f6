"""Limits of semaphores on virtual nodes: the promise of a shrink."""

from redsync._core.effects import Broadcast
from redsync._protocols.semaphore import limit_of, resize
from tests.protocols import conftest


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

    @property
    def limit(self):
        return self.world.run(limit_of(self.session, self.pool, self.owner))


# After a shrink.


def test_released_permits_beyond_the_limit_make_room_one_for_one(world):
    """They have slots 6, 7 and 8, each on another two of three nodes."""
    olds, newcomer = [Program(world) for _ in range(3)], Program(world)
    for old, start, nodes in zip(olds, (0.6, 0.7, 0.8), [(0, 1), (1, 2), (0, 2)], strict=True):
        assert old.take(nodes, start=start).slots == (round(10 * start),)
    Program(world).resize(3)
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
