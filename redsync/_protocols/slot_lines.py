"""Lines: how an acquire that was refused slots waits for room, by ticket; see `places`.

Nodes keep with each place how many slots it waits for. A grant removes the place, so a rollback restores the place of
an acquire that continues waiting.
"""

from __future__ import annotations

from typing import Final

from redsync._core.effects import Arg
from redsync._core.limits import Limit
from redsync._core.quorum import Tally
from redsync._core.timing import milliseconds
from redsync._protocols.places import Ticketed, Waiting, highest_ticket
from redsync._protocols.rounds import told
from redsync._protocols.windows import Window

__all__ = ["NO_PLACE", "SlotLine", "WindowLine"]

NO_PLACE: Final = (0, 0, b"")
"""The words of an acquire that asks for no place: how long to keep it, its ticket, the wake channel."""


class SlotLine(Ticketed):
    """A place in the line for the permits of a semaphore, by a ticket that the waiter chooses.

    Attributes:
        has_ticket: True if it has chosen a ticket.
    """

    @property
    def has_ticket(self) -> bool:
        return self._ticket != 0

    @property
    def words(self) -> tuple[Arg, ...]:
        """The place, as arguments of a script."""
        keeps = self._waits and not self._suspended
        return milliseconds(self.kept) if keeps else 0, self._ticket, self._owner.channel

    def given_back(self, wanted: int) -> tuple[Arg, ...]:
        """Return the arguments by which a rollback restores a place that grants removed; empty if there is none."""
        return (wanted, 0, *self.words) if self.taken and self._waits and not self._suspended else ()

    def enough(self, tally: Tally) -> bool:  # noqa: ARG002  (the claim decides that by the slots)
        return True

    def ask(self, now: float) -> tuple[Arg, ...]:  # noqa: ARG002
        self.taken = self.taken or (self.has_ticket and not self._suspended)
        return self.words

    def learn(self, tally: Tally) -> bool:
        tickets = [refusal.ticket for refusal in told(tally)]
        suspended, self._suspended = self._suspended, False
        if not (suspended and self._ticket):
            if self._ticket or not self._waits or len(tickets) < tally.quorum:
                return False
            self._ticket = highest_ticket(tickets) + 1
        return True


class WindowLine(SlotLine):
    """A place in the line for the permits of a rate limiter. These only run out, and nodes tell each waiter when."""

    def __init__(self, waiting: Waiting, window: Window, limit: Limit) -> None:
        super().__init__(waiting)
        self._window = window
        self._limit = limit
        self.kept = window.place_kept

    def longest_pause(self, tally: Tally, random: float) -> float:
        ahead = min((refusal.ahead for refusal in told(tally)), default=0)
        return self._window.longest_pause(random, ahead / self._limit.permits)
