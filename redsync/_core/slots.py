"""Slots: the keys under which nodes keep them.

A separate module, so that programs without semaphores and rate limiters do not load it.
"""

from __future__ import annotations

from dataclasses import dataclass

from redsync._core.keys import LockKeys

__all__ = ["SlotKeys"]


@dataclass(frozen=True, slots=True)
class SlotKeys(LockKeys):
    """The keys of one semaphore: `lock` is a sorted set there, permit -> expiry, node time in ms.

    Attributes:
        slots: Hash permit -> "slot,slot": its slots.
        taken: Bit map of the slots that are taken.
        limit: "version permits": the number of slots, and the version that orders the changes.
    """

    slots: bytes
    taken: bytes
    limit: bytes

    @classmethod
    def of(cls, prefix: bytes, name: bytes, mode: bytes = b"") -> SlotKeys:
        """Return the keys of the semaphore with that name."""
        base = LockKeys.of(prefix, name, mode)
        ours = base.queue.removeprefix(b"redsync_queue:")
        slots, taken, limit = (b"redsync_%s:%s" % (part, ours) for part in (b"slots", b"taken", b"limit"))
        everything = (*base.all, slots, taken, limit)
        held = (base.lock, slots, taken, base.queue, base.places, limit)
        common = base.lock, base.queue, base.places, base.channel, base.token
        return cls(*common, everything, held, base.hold, slots, taken, limit)
