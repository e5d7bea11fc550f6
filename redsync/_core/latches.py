"""Knowledge of a count-down latch: values that only grow, so they can be joined in any order.

Each setting of a latch is a *generation*, a number that is higher than all before it. Within a generation, each client
adds up its own count-downs, and sends only the total. Nodes keep the maximum, so a repetition changes nothing. A join
of two nodes' knowledge takes the higher generation, and within one the higher total of each client. The latch is open
when the totals add up to its size. A latch that was never set has generation 0 and size 0.

A node that lost its memory may have known more than it does now: then it does not vouch for its reply.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from redsync._core.text import outline

__all__ = ["Arrivals", "LatchState"]

_HIGHEST: Final = 1 << 52
"""The highest possible generation (a fencing token) or count: the number of one broken node must not spread."""


@dataclass(frozen=True, slots=True)
class LatchState:
    """A node's or client's knowledge of a latch; false if it comes from a node that does not vouch for it.

    Attributes:
        generation: The number of the setting; 0 for none.
        size: The count to which it was set.
        arrivals: The total that each client has counted down, by its UUID.
        vouched: True unless it comes from a node that may have known more.
    """

    generation: int = 0
    size: int = 0
    arrivals: Mapping[bytes, int] = field(default_factory=dict)
    vouched: bool = field(default=True, compare=False)

    def __bool__(self) -> bool:
        return self.vouched

    @property
    def count(self) -> int:
        """The remaining count; 0 if the latch is open or was never set."""
        return max(self.size - sum(self.arrivals.values()), 0)

    def join(self, other: LatchState) -> LatchState:
        """Return the knowledge of both together; for it, `vouched` means nothing."""
        if self.generation != other.generation:
            return self if self.generation > other.generation else other
        joined = dict(self.arrivals)
        for client, total in other.arrivals.items():
            joined[client] = max(total, joined.get(client, 0))
        return LatchState(self.generation, self.size, joined)

    def covers(self, other: LatchState) -> bool:
        """Return whether the other adds nothing to this one."""
        if self.generation != other.generation:
            return self.generation > other.generation
        return all(self.arrivals.get(client, 0) >= total for client, total in other.arrivals.items())

    def words(self) -> tuple[bytes | int, ...]:
        """Return the state as arguments of a script."""
        return (self.generation, self.size, *(word for pair in self.arrivals.items() for word in pair))

    @classmethod
    def read(cls, reply: Any) -> LatchState:
        """Return the state that a node replied.

        Raises:
            TypeError, ValueError: The script never replies so.
        """
        if reply.__class__ is not list:
            raise ValueError(f"a latch is a list, not {outline(reply)}")
        generation, size, *rest = reply
        born = [rest.pop()] if len(rest) % 2 else []
        state = cls(generation, size, dict(zip(rest[::2], rest[1::2], strict=True)), vouched=not born)
        numbers = (generation, size, *born, *state.arrivals.values())
        if {number.__class__ for number in numbers} != {int} or {key.__class__ for key in rest[::2]} - {bytes}:
            raise ValueError(f"a latch consists of numbers and clients, not {outline(reply)}")
        if max(numbers) > _HIGHEST:
            raise ValueError(f"a number of absurd size: {outline(reply)}")
        return state


class Arrivals:
    """One client's count-downs of one latch, in all its threads, while calls are under way or in doubt.

    A call that failed may have counted or not. It is *in doubt*, and the client's next call repeats it: so a caller
    that calls again after an error counts once.

    The client keeps this object as long as a call is under way: the state that this call has read from the nodes may be
    older than the count-down of another call.

    Attributes:
        running: The number of calls under way.
        doubt: The sum of the counts in calls that failed.
    """

    __slots__ = ("_generation", "_total", "doubt", "running")

    def __init__(self) -> None:
        self._generation = self._total = self.running = self.doubt = 0

    def begin(self, state: LatchState, client: bytes, n: int) -> int | None:
        """Count `n` more, less the count in doubt; return the client's new total, None if the latch was set again."""
        if state.generation < self._generation:
            return None
        if state.generation > self._generation:
            self._generation, self._total, self.doubt = state.generation, 0, 0
        repeated = min(self.doubt, n)
        total = max(self._total, state.arrivals.get(client, 0)) + n - repeated
        # No call between these: an interrupted call has counted, or else repeated nothing.
        self.doubt, self._total = self.doubt - repeated, total
        return total

    def fail(self, generation: int, n: int) -> None:
        """Record that a call failed, even if another call has sent a higher total: its caller can't know that."""
        if generation == self._generation:
            self.doubt += n
