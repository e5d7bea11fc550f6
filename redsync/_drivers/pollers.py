"""Pollers: find ready descriptors, by epoll where the system has it, otherwise by poll with the same methods.

Any thread may change the polled descriptors while another polls. epoll sees a change at once; poll sees it only in the
next call, so `PollPoller` cuts a long poll into slices.
"""

from __future__ import annotations

import select
import time
from typing import Final

__all__ = ["BOTH", "READ", "WRITE", "PollPoller", "Poller", "make_poller"]

READ: Final = 1  # EPOLLIN, POLLIN
WRITE: Final = 4  # EPOLLOUT, POLLOUT
BOTH: Final = READ | WRITE

_SLICE = 0.02
"""Seconds until a change of the polled descriptors takes effect without epoll."""


class PollPoller:
    """`select.poll` with the methods of `select.epoll`."""

    def __init__(self) -> None:
        self._poll: Final = select.poll()
        self.register: Final = self._poll.register
        self.modify: Final = self._poll.modify
        self.unregister: Final = self._poll.unregister

    def poll(self, timeout: float) -> list[tuple[int, int]]:
        """Return pairs of descriptor and events, within `timeout` seconds."""
        deadline = time.monotonic() + timeout
        while True:
            left = deadline - time.monotonic()
            ready = self._poll.poll(max(min(left, _SLICE), 0.0) * 1000)
            if ready or left <= _SLICE:
                return ready

    def close(self) -> None:
        """Do nothing: there are no resources to free."""


if hasattr(select, "epoll"):
    Poller = select.epoll

    def make_poller() -> select.epoll:
        """Return the system's best poller."""
        return select.epoll()
else:
    Poller = PollPoller  # type: ignore[misc,assignment,unused-ignore]

    def make_poller() -> PollPoller:  # type: ignore[misc,unused-ignore]
        """Return the system's best poller."""
        return PollPoller()
