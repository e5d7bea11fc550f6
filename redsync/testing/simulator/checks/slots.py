"""Slots: a node's records of a semaphore or a rate limiter agree with each other, after every script.

* A slot is marked as taken if and only if a permit has it on that node, and no two permits have the same slot.
* Each permit in the list of slots has an expiry, and each with an expiry is in that list.
* The three keys of these records expire at the same instant: a bit map that outlived its permits would block slots
  forever.
* No slot is granted beyond the limit of the request.

It holds at every instant, for each node separately, until its clock jumps. When a clock is set back to before the end
of the keys, the node has those keys again that no command has touched in between, and not the others. So unowned slots
may be blocked there until the last permit is gone; the checker ignores that. A promoted replica may have some of the
keys without the others, see `_purge_permits.lua`; the checker ignores that until they are deleted.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Final

from redsync._core.permits import read_slots
from redsync.testing.simulator.checks.checker import Checker, Simulation
from redsync.testing.simulator.checks.rounds import PERMIT, granted_slots, parse
from redsync.testing.simulator.happenings import Executed, Faulted
from redsync.testing.simulator.values import Hash, SortedSet

__all__ = ["Slots"]

_RENEWED = 6
"""The number of keys of each semaphore in a renewal: claim, slots, taken, queue, places, limit."""


class Slots(Checker):
    """A node's records of slots agree."""

    name = "slots"
    watches = (Executed, Faulted)

    def __init__(self, sim: Simulation) -> None:
        super().__init__(sim)
        self._jumped: Final[dict[str, None]] = {}
        self._promoted: Final[dict[str, None]] = {}

    def see(self, happening: Executed | Faulted) -> str | None:
        """Look at the records after a script."""
        if isinstance(happening, Executed):
            return None if self._node(happening) in self._jumped else self._see_executed(happening)
        if happening.kind == "node jump":
            self._jumped[happening.text.partition(" ")[0]] = None
        elif happening.kind == "group failover":
            self._promoted[happening.text.partition(": ")[2].partition(" ")[0]] = None
        return None

    def _see_executed(self, happening: Executed) -> str | None:
        noun, verb = parse(happening.script)
        if noun != PERMIT:
            return None
        if verb == "acquire" and (slots := granted_slots(happening.reply, happening.args)):
            limit = int(happening.args[8])
            if max(slots) >= limit:
                return f"{self._node(happening)} granted slots {slots} of {limit}"
        keys = happening.keys
        if verb == "renew":
            books = [(keys[i], keys[i + 1], keys[i + 2]) for i in range(0, len(keys), _RENEWED)]
        else:
            books = [(keys[0], keys[3], keys[4])]
        return next((text for each in books for text in self._look_at(happening, *each)), None)

    def _look_at(self, executed: Executed, claim: bytes, slots: bytes, taken: bytes) -> Iterator[str]:
        (permits, ends), (has, slots_end), (bits, bits_end) = (
            self._peek(executed, key) for key in (claim, slots, taken)
        )
        if permits is not None and not isinstance(permits, SortedSet):
            return
        if None in (permits, has, bits) and self._node(executed) in self._promoted:
            return  # the next acquire request or renewal deletes the rest
        where = f"{self._node(executed)} after {executed.script}: {claim.decode(errors='replace')!r}"
        assert isinstance(has, Hash | None), "no other code writes there"
        # Other fields name the successes that get a slot as soon as it is free.
        permitted = {permit: text for permit, text in (has or {}).items() if not permit.startswith(b">")}
        given = [slot for text in permitted.values() if text for slot in read_slots(text)]
        marked = [i for i in range(8 * len(bits or b"")) if (bits or b"")[i // 8] >> (7 - i % 8) & 1]
        if sorted(given) != marked:
            yield f"{where}: permits have slots {sorted(given)}, and {marked} are marked as taken"
        if permitted.keys() != set(permits or ()):
            yield f"{where}: {len(permitted)} permits have slots, and {len(permits or ())} have an expiry"
        if not ends == slots_end == bits_end:
            yield f"{where}: its keys end in {ends}, {slots_end} and {bits_end} ms"

    def _peek(self, executed: Executed, key: bytes) -> tuple[Any, int | None]:
        return self.sim.nodes[executed.node].store.peek(key) or (None, None)

    def _node(self, executed: Executed) -> str:
        return self.sim.nodes[executed.node].name
