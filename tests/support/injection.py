"""Interruptions around any call of ours, and before any line of the drivers.

As if a signal's handler raised there, or did something. Versions of Python differ in where they look for signals, but
that is at the beginning of functions, after calls of C, and where loops start over.
"""

import gc
import inspect
import linecache
import signal
import sys
import weakref
from contextlib import contextmanager
from pathlib import Path

import redsync


class Interruption(BaseException):
    """The interruption of a test: neither an Exception nor anything that the code could expect."""


_PACKAGE = str(Path(redsync.__file__).parent)
_DRIVERS = str(Path(redsync.__file__).parent / "_drivers")


def _is_in_finalizer(frame):
    """Return whether Python would only report an exception there: in a `__del__`, a `finalize`, or their calls."""
    while frame is not None and frame.f_code.co_name != "__del__" and frame.f_code.co_filename != weakref.__file__:
        frame = frame.f_back
    return frame is not None


def _is_safe(frame):
    """Return whether no version of Python looks for signals at that line.

    Beginnings of `try` and of endless loops do nothing. To a `with` Python also returns at the end of its block: if a
    signal could strike before the call of `__exit__`, no lock would be safe.
    """
    line = linecache.getline(frame.f_code.co_filename, frame.f_lineno).lstrip()
    return line.startswith(("with ", "try:", "while True:"))


class _Points:
    """Counts the points in code of ours, and strikes at one of them.

    Attributes:
        where: The line at which it struck; None until then.
    """

    def __init__(self, n, strike):
        self.where = None
        self._left = n
        self._strike = strike

    def _count(self, frame):
        self._left -= 1
        if not self._left:
            self.where = f"{Path(frame.f_code.co_filename).name}:{frame.f_lineno} {frame.f_code.co_name}"
            sys.settrace(None)
            sys.setprofile(None)
            self._strike(self.where)

    def enter(self, frame, event, argument):
        """Trace lines."""
        return self._line if frame.f_code.co_filename.startswith(_DRIVERS) and not _is_in_finalizer(frame) else None

    def _line(self, frame, event, argument):
        if event == "line" and not _is_safe(frame):
            self._count(frame)
        return self._line

    def call(self, frame, event, argument):
        """Profile calls: each begins, or one in C ends."""
        code = frame.f_code
        # A generator may be ending. And no code of ours runs after an interruption at the beginning of an `__exit__`:
        # as with any lock in Python, what the `with` acquired stays held.
        begins = event == "call" and not code.co_flags & inspect.CO_GENERATOR and code.co_name != "__exit__"
        if (begins or event == "c_return") and code.co_filename.startswith(_PACKAGE) and not _is_in_finalizer(frame):
            self._count(frame)


def _interrupt(where):
    raise Interruption(where)


def inject(n, function, handler=None):
    """Call a function and interrupt it at its n-th point; return where, None if it ended before.

    With `handler` nothing is raised: it is called there, and the function continues. Only the calling thread counts.
    """
    return _run(n, function, handler, lines=True)


def inject_at_calls(n, function, handler=None):
    """Interrupt a function like `inject`, but only around calls."""
    return _run(n, function, handler, lines=False)


def _run(n, function, handler, *, lines):
    points = _Points(n, _interrupt if handler is None else lambda where: handler())
    before, collects = (sys.gettrace(), sys.getprofile()), gc.isenabled()
    # Leftovers of other tests must not be finalized here: that would count.
    gc.disable()
    if lines:
        sys.settrace(points.enter)
    sys.setprofile(points.call)
    try:
        function()
    except Interruption:
        if points.where is None:
            raise
    finally:
        sys.settrace(before[0])
        sys.setprofile(before[1])
        if collects:
            gc.enable()
    return points.where


@contextmanager
def alarm(handler, seconds=0.2):
    """Call a signal handler once, after some time, in the main thread."""
    before = signal.signal(signal.SIGALRM, lambda *_: handler())
    signal.setitimer(signal.ITIMER_REAL, seconds)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)
