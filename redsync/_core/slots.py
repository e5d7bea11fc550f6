"""Slots: the keys under which nodes keep them.

A separate module, so that programs without semaphores and rate limiters do not load it.
"""

from __future__ import annotations

from typing import Final

from redsync._core.keys import LockKeys

__all__ = ["SlotKeys"]


class SlotKeys(LockKeys):
    """The keys of one semaphore: `lock` is a sorted set there, permit -> expiry, node time in ms.

    Attributes:
        slots: Hash permit -> "slot,slot": its slots.
        taken: Bit map of the slots that are taken.
        limit: "version permits": the number of slots, and the version that orders the changes.
    """

    __slots__ = ("limit", "slots", "taken")

    def __init__(self, prefix: bytes, name: bytes, mode: bytes = b"") -> None:
        super().__init__(prefix, name, mode)
        ours = self.queue.removeprefix(b"redsync_queue:")
        self.slots: Final = b"redsync_slots:" + ours
        self.taken: Final = b"redsync_taken:" + ours
        self.limit: Final = b"redsync_limit:" + ours
        self.all = (*self.all, self.slots, self.taken, self.limit)
        self.held = self.lock, self.slots, self.taken, self.queue, self.places, self.limit
