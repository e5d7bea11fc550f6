"""The order of choices: all of them one after the other, or some by seed.

A schedule is the list of choices. At a point where a thread could continue, the first option lets it; another one
preempts it. Where it can't, all ready threads are equal. So a schedule's cost is the number of its preemptions. A limit
on the cost bounds the search, as in CHESS (Musuvathi and Qadeer, 2007): nearly all faults of threads show with two.
"""

import random

__all__ = ["Chance", "Replay", "Search"]


class Search:
    """Depth first, every schedule with at most `bound` preemptions."""

    def __init__(self, bound):
        self._bound = self._left = bound
        self._path = []  # of [index, count] for each choice
        self._depth = 0

    @property
    def frugal(self):
        """Return whether no thread may be preempted any more."""
        return not self._left

    @property
    def chosen(self):
        return [index for index, _ in self._path]

    def choose(self, free, dear):
        """Return the index of one of the options: the first `free` ones cost nothing, the other `dear` a preemption."""
        count = free + dear if self._left else free
        if count == 1:
            return 0
        if self._depth == len(self._path):
            self._path.append([0, count])
        index, before = self._path[self._depth]
        assert count == before, "the run depends on more than its schedule"
        self._depth += 1
        self._left -= index >= free
        return index

    def advance(self):
        """Go to the next schedule; return False after the last one."""
        assert self._depth == len(self._path), "the run depends on more than its schedule"
        while self._path and self._path[-1][0] + 1 == self._path[-1][1]:
            self._path.pop()
        self._depth, self._left = 0, self._bound
        if not self._path:
            return False
        self._path[-1][0] += 1
        return True


class Chance:
    """By a seed: preempts a thread that could continue with the same probability at each point; the seed decides it."""

    frugal = False

    def __init__(self, seed):
        self._random = random.Random(seed)
        self._likelihood = self._random.choice((0.02, 0.1, 0.4))
        self.chosen = []

    def choose(self, free, dear):
        if dear and (not free or self._random.random() < self._likelihood):
            index = free + self._random.randrange(dear)
        else:
            index = self._random.randrange(free)
        if free + dear > 1:
            self.chosen.append(index)
        return index


class Replay:
    """Repeats one schedule, chosen under that bound; infinity for a random one."""

    def __init__(self, chosen, bound):
        self.chosen = list(chosen)
        self._left = bound
        self._next = iter(self.chosen)

    @property
    def frugal(self):
        return not self._left

    def choose(self, free, dear):
        count = free + dear if self._left else free
        index = next(self._next, 0) if count > 1 else 0
        self._left -= index >= free
        return index
