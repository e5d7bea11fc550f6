"""Pollers: find ready descriptors, by epoll where the system has it, otherwise by poll or select with the same methods.

Any thread may change the polled descriptors while another polls. epoll sees a change at once; the others see it only in
the next call, so `SelectorPoller` cuts a long poll into slices.
"""

from __future__ import annotations

import select
import selectors
import time
from typing import Final

__all__ = ["BOTH", "READ", "WRITE", "Poller", "SelectorPoller", "make_poller"]

READ: Final = 1  # EPOLLIN
WRITE: Final = 4  # EPOLLOUT
BOTH: Final = READ | WRITE

_MASKS: Final = {
    READ: selectors.EVENT_READ,
    WRITE: selectors.EVENT_WRITE,
    BOTH: selectors.EVENT_READ | selectors.EVENT_WRITE,
}
_EVENTS: Final = {mask: events for events, mask in _MASKS.items()}

_SLICE = 0.02
"""Seconds until a change of the polled descriptors takes effect without epoll."""


class SelectorPoller:
    """`select.poll`, or `select.select` where there is none (Windows), with the methods of `select.epoll`."""

    def __init__(self) -> None:
        self._selector: Final = getattr(selectors, "PollSelector", selectors.SelectSelector)()
        self.unregister: Final = self._selector.unregister

    def register(self, descriptor: int, events: int) -> None:
        """Begin to poll a descriptor for these events."""
        self._selector.register(descriptor, _MASKS[events])

    def modify(self, descriptor: int, events: int) -> None:
        """Poll a descriptor for these events from now on."""
        self._selector.modify(descriptor, _MASKS[events])

    def poll(self, timeout: float) -> list[tuple[int, int]]:
        """Return pairs of descriptor and events, within `timeout` seconds."""
        deadline = time.monotonic() + timeout
        while True:
            left = deadline - time.monotonic()
            ready = self._selector.select(max(min(left, _SLICE), 0.0))
            if ready or left <= _SLICE:
                return [(key.fd, _EVENTS[mask]) for key, mask in ready]

    def close(self) -> None:
        """Do nothing: there are no resources to free."""


if hasattr(select, "epoll"):
    Poller = select.epoll

    def make_poller() -> select.epoll:
        """Return the system's best poller."""
        return select.epoll()
else:
    Poller = SelectorPoller  # type: ignore[misc,assignment,unused-ignore]

    def make_poller() -> SelectorPoller:  # type: ignore[misc,unused-ignore]
        """Return the system's best poller."""
        return SelectorPoller()
