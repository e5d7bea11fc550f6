"""Kinds of claims: what nodes keep for one holder at a time, and the scripts that make, end and renew it.

All kinds follow one convention, so trying, waiting, renewing, losing and releasing are written once:

* `acquire`: KEYS claim, and from a waiter queue and places (for a kind with modes, from every new acquire); ARGV claim,
  hold count, lease in ms, guard (ms and processes), and from a waiter: how long to keep its place in ms, its rank (ms
  waited so far, or ticket), wake channel, mark. Reply 1 new, 2 was ours already, [remaining ms or -1, holder, its or
  the highest ticket if by ticket, number of waiters before it if it has a place] held, 0 foreign type, or the error
  FORGETFUL.
  With fencing tokens: one more key, the node's latest token, and one more argument, the highest known token; the reply
  to a grant is token instead of 1, -token instead of 2. A re-entry has neither, as it keeps its token.
* `release`: KEYS claim, queue, places; ARGV claim, hold count that remains, Redisson's channel. Reply 1 had ours, or 0.
  The script hands a freed lock over to the head of the queue, for the lease in the head's mark if it has one.
* `abandon`: KEYS claim, queue, places; ARGV claim, 1 to leave the queue too. Reply 1 had ours, or 0.
* `renew`: KEYS claims; ARGV claim, hold count and lease in ms of each, and 1 if memory is guarded. Reply for each
  2 ours, 1 healed, 0 not ours, -1 foreign type.

Permits differ: they claim *slots*, and nodes may grant different ones. Their `acquire` has more arguments and other
replies (see `_protocols.slot_claims`), their `release` says which slots remain, their `renew` which to keep, and
carries the limits of their semaphores.
"""

from __future__ import annotations

from typing import NamedTuple

from redsync._core.scripts import Script

__all__ = ["ClaimKind"]


class ClaimKind(NamedTuple):
    """The scripts of one kind of claim.

    Attributes:
        noun: Its name in code; its acquire script is `<noun>_acquire`.
        value_type: The type of the value at its key, as the nodes call it.
        acquire: Claims, or refuses and queues.
        release: Lowers the hold count; at 0 hands the lock over to the next waiter.
        abandon: Rolls an attempt back.
        renew: Lengthens many claims.
        label: The noun for it in messages.
        mode: Distinguishes kinds that share a lock's keys; empty if none does. With a mode, even an acquire that does
            not wait respects the queue.
    """

    noun: str
    value_type: bytes
    acquire: Script
    release: Script
    abandon: Script
    renew: Script
    label: str = "lock"
    mode: bytes = b""

    @property
    def is_threads(self) -> bool:
        """True if a thread or task holds it; a mutex or permit belongs to its object."""
        return self.value_type == b"hash" or self.mode != b""

    @classmethod
    def of(
        cls,
        noun: str,
        value_type: bytes,
        *,
        label: str = "lock",
        mode: bytes = b"",
    ) -> ClaimKind:
        """Return the kind whose scripts are called `<noun>_acquire` and so on."""
        acquire, release, abandon, renew = (
            Script.load(f"{noun}_{verb}") for verb in ("acquire", "release", "abandon", "renew")
        )
        return cls(noun, value_type, acquire, release, abandon, renew, label, mode)
