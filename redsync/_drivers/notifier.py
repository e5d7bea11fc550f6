"""The notifier tells the application about events: by logs, callbacks and listeners. Both drivers share it."""

from __future__ import annotations

import logging
import threading
import time
import traceback
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import partial
from queue import SimpleQueue
from typing import Any, Final

from redsync._core.observing import Detail, Event, HoldLost, HoldOrphaned, NodeChanged, Observer, round_of
from redsync._core.quorum import Tally

__all__ = ["EventThread", "Notifier", "note_exit", "quietly"]

log = logging.getLogger("redsync")
watchdog_log = logging.getLogger("redsync.watchdog")
node_log = logging.getLogger("redsync.node")

_LAST_EVENTS = 1.0
"""The most seconds that a closing client waits for listeners and callbacks."""


def quietly(write: Callable[..., None], *args: object, **options: Any) -> None:
    """Write a log line; if the application's own filter or handler raises, show that on standard error instead."""
    try:
        write(*args, **options)
    except Exception:
        with suppress(Exception):  # Standard error may be closed.
            traceback.print_exc()


def note_exit(error: BaseException) -> None:
    """Log what a callback raised in a client's own thread, which continues even if the log handler exits, too."""
    with suppress(BaseException):
        quietly(log.error, "a callback raised %r in the client's own thread, which continues", error)


class Notifier:
    """Logs events and hands them to callbacks and listeners, in the thread in which they happen.

    Attributes:
        subscriptions: The receivers of all events and details, one for each observer.
    """

    def __init__(
        self,
        listeners: Sequence[Callable[[Event], object]],
        contain: Callable[[BaseException], bool] | None = None,
        now: Callable[[], float] = time.monotonic,
    ) -> None:
        """Make a notifier, which calls the listeners with each event.

        `contain` is called with a callback's error that is not an `Exception`, and returns True if it handled the
        error: so a callback that calls `sys.exit()` does not end a client's maintenance.
        """
        self.subscriptions: Final = [listener.listen(now) for listener in listeners if isinstance(listener, Observer)]
        plain = [listener for listener in listeners if not isinstance(listener, Observer)]
        self._listeners: Final = (*plain, *(subscription.hear for subscription in self.subscriptions))
        self._contain: Final = contain

    def announce(self, event: Event | Detail) -> None:
        """Report an event: log it, then call the holder's callbacks, then the listeners.

        Only observers get details.
        """
        if not isinstance(event, (HoldLost, HoldOrphaned, NodeChanged)):
            for subscription in self.subscriptions:
                self._call(subscription.hear, event)
            return
        if isinstance(event, HoldLost):
            self._log(watchdog_log.error, "lost the hold of %r by %s: %s", event.name, event.owner, event.reason)
            # Each callback is called once, however often its holder re-entered the lock object.
            for callback in (*dict.fromkeys(event.state.on_lost), *event.state.loss_callbacks):
                self._call(callback, event.state)
        elif isinstance(event, HoldOrphaned):
            text = "ended the hold of %r by %s, which ended without releasing it"
            self._log(watchdog_log.warning, text, event.name, event.owner)
        elif event.state == "up":
            self._log(node_log.info, "node %s is up", event.node)
        else:
            self._log(node_log.warning, "node %s is %s: %s", event.node, event.state, event.reason)
        for listener in self._listeners:
            self._call(listener, event)

    def note_round(self, tally: Tally) -> None:
        """Tell observers of a round that is over."""
        for subscription in self.subscriptions:
            subscription.rounds.append(round_of(tally))

    def _log(self, write: Callable[..., None], *args: Any) -> None:
        """Write a log line: the application's handler may exit, like a callback."""
        self._call(quietly, write, *args)

    def _call(self, function: Callable[..., object], *args: Any) -> None:
        try:
            function(*args)
        except Exception:
            # The application's own callback failed; the hold, the watchdog and the other listeners continue.
            self._log(log.exception, "a callback or listener raised")
        except BaseException as error:
            if self._contain is None or not self._contain(error):
                raise


class EventThread:
    """Runs its own thread, which reports what the maintenance notices; only that calls `start`, `post` and `log`.

    So nothing that the application's listeners, callbacks, log handlers and filters do keeps holds from being renewed.
    """

    def __init__(self, announce: Callable[[Event | Detail], None]) -> None:
        self._announce: Final = announce
        self._reports: Final[SimpleQueue[Callable[[], None] | None]] = SimpleQueue()
        self._thread: threading.Thread | None = None

    def start(self) -> None:
        """Start the thread, unless that was done. Early: later the system may have no more threads."""
        if self._thread is None:
            thread = threading.Thread(target=self._main, name="redsync-events", daemon=True)
            try:
                thread.start()
            except RuntimeError:
                return  # There are no more threads now: the next event starts it.
            self._thread = thread

    def post(self, event: Event | Detail) -> None:
        """Report an event soon."""
        self._report(partial(self._announce, event))

    def log(self, write: Callable[..., None], *args: object) -> None:
        """Write a log line soon."""
        self._report(partial(quietly, write, *args))

    def _report(self, report: Callable[[], None]) -> None:
        self._reports.put(report)
        self.start()

    def is_current(self) -> bool:
        """Return True in the thread that reports events."""
        return self._thread is threading.current_thread()

    def close(self) -> None:
        """Let the thread end after the events so far, and wait for it briefly."""
        self._reports.put(None)
        if self._thread is not None and not self.is_current():
            self._thread.join(_LAST_EVENTS)

    def _main(self) -> None:
        self._thread = threading.current_thread()  # The first callback may come before `start` has returned.
        while (report := self._reports.get()) is not None:
            try:
                report()
            except BaseException as error:
                # A callback that calls `sys.exit()` must not keep the others from being called.
                note_exit(error)
            del report  # It may refer to a client that the application drops.
