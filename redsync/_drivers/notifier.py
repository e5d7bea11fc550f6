"""The notifier tells the application about events: by logs, callbacks and listeners. Both drivers share it."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Sequence
from typing import Any, Final

from redsync._core.events import Event, HoldLost, HoldOrphaned, NodeChanged
from redsync._core.observing import Detail, Ear, Observer
from redsync._core.quorum import Tally

__all__ = ["Notifier"]

log = logging.getLogger("redsync.watchdog")


class Notifier:
    """Logs events and hands them to callbacks and listeners, in the thread in which they happen.

    Attributes:
        ears: The receivers of all events and details, one for each observer.
    """

    def __init__(
        self,
        listeners: Sequence[Callable[[Event], object]],
        contain: Callable[[BaseException], bool] | None = None,
        nodes: Sequence[str] = (),
        now: Callable[[], float] = time.monotonic,
    ) -> None:
        """Make a notifier, which calls the listeners with each event.

        `contain` is called with a callback's error that is not an `Exception`, and returns True if it handled the
        error: so a callback that calls `sys.exit()` does not end a client's maintenance.
        """
        self.ears: Final[tuple[Ear, ...]] = tuple(
            listener.listen(nodes, now) for listener in listeners if isinstance(listener, Observer)
        )
        plain = [listener for listener in listeners if not isinstance(listener, Observer)]
        self._listeners: Final = (*plain, *(ear.hear for ear in self.ears))
        self._contain: Final = contain

    def announce(self, event: Event | Detail) -> None:
        """Report an event of a hold: log it, then call the holder's callbacks, then the listeners.

        Only observers get details.
        """
        if not isinstance(event, (HoldLost, HoldOrphaned, NodeChanged)):
            for ear in self.ears:
                self._call(ear.hear, event)
            return
        if isinstance(event, HoldLost):
            log.error("lost the hold of %r by %s: %s", event.name, event.owner, event.reason)
            # Each callback is called once, however often its holder re-entered the lock object.
            for callback in (*dict.fromkeys(event.state.on_lost), *event.state.watching):
                self._call(callback, event.state)
        elif isinstance(event, HoldOrphaned):
            log.warning("released the hold of %r for %s, which ended without releasing it", event.name, event.owner)
        self.tell(event)

    def tell(self, event: Event) -> None:
        """Call the listeners."""
        for listener in self._listeners:
            self._call(listener, event)

    def note_votes(self, tally: Tally) -> None:
        """Tell observers which votes of a round failed."""
        for ear in self.ears:
            ear.note_votes(tally)

    def _call(self, function: Callable[..., object], *args: Any) -> None:
        try:
            function(*args)
        except Exception:
            # The application's own callback failed; the hold, the watchdog and the other listeners continue.
            logging.getLogger("redsync").exception("%r raised", function)
        except BaseException as error:
            if self._contain is None or not self._contain(error):
                raise
