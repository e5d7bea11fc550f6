"""Interruptions at every point where one can come."""

import dis
import functools
import gc
import inspect
import sys
import weakref
from pathlib import Path

import redsync

__all__ = ["Interruption", "Strikes", "inject"]


class Interruption(BaseException):
    """The interruption of a test: neither an Exception nor anything that the code could expect."""


_PACKAGE = str(Path(redsync.__file__).parent)
_TESTS = str(Path(__file__).parent)


@functools.cache
def _instructions(code):
    """Return the name of the instruction at each offset, and where an exception there is handled."""
    handlers = {}
    for entry in dis._parse_exception_table(code):
        for offset in range(entry.start, entry.end, 2):
            handlers[offset] = entry.target
    return {each.offset: each.opname for each in dis.get_instructions(code)}, handlers


class _Frame:
    """Follows one frame, and reports its points to `hit`."""

    def __init__(self, hit, previous=None):
        self._hit = hit
        self._previous = previous
        # The kind of the last call: Python checks for signals when a C function returns, but not when a Python function
        # returns. A call by way of C (a class, a generator) counts as C.
        self.was_python = False

    def __call__(self, frame, event, argument):
        if event == "opcode":
            names, handlers = _instructions(frame.f_code)
            now, before = frame.f_lasti, self._previous
            self._previous = now
            was_python, self.was_python = self.was_python, False
            name = names.get(before, "")
            called = name.startswith("CALL") and not name.startswith("CALL_INTRINSIC") and not was_python
            loops = name == "JUMP_BACKWARD"  # not ..._NO_INTERRUPT
            # The signal comes at the end of the call, but this exception at the next instruction: only where that makes
            # no difference.
            if (called or loops) and handlers.get(before) == handlers.get(now):
                self._hit(frame)
        return self


def _resumes_in_yield_from(frame):
    """Return whether a generator resumes in a `yield from`: as in an `await`, Python checks for no signals there.

    Nor does it where a generator is closed that has not begun.
    """
    names, _ = _instructions(frame.f_code)
    begins = next(offset for offset, name in names.items() if name == "RESUME")
    goes_on = frame.f_code.co_flags & inspect.CO_GENERATOR and frame.f_lasti != begins
    return goes_on and not frame.f_code.co_filename.endswith("effects.py")


def _is_inlined(code):
    """Return whether Python checks for no signals when that function returns; the tests' locks stand for those in C."""
    inlined = not code.co_flags & inspect.CO_GENERATOR and not code.co_name.startswith("__")
    return inlined and not code.co_filename.startswith(_TESTS)


def _is_in_finalizer(frame):
    """Return whether Python would only report an exception there: in a `__del__`, a `finalize`, or their calls."""
    while frame is not None and frame.f_code.co_name != "__del__" and frame.f_code.co_filename != weakref.__file__:
        frame = frame.f_back
    return frame is not None


def _is_exempt(code):
    """Return whether an interruption in the first instruction of that function is unavoidable.

    In `__exit__` that is before its `try`, and no code calls it again: as with any lock in Python, what the `with`
    acquired stays held. In `data_received` that is outside the link: asyncio has taken the data from the socket, and
    loses them by an interruption before the call as well.
    """
    file = code.co_filename
    exits = code.co_name == "__exit__" and file.endswith(("enterable.py", "_importing.py"))
    return exits or code.co_name == "data_received"


class Strikes:
    """Interrupts a function at some of its points, one after the other.

    Attributes:
        where: The places at which interruptions came.
        passed: The number of points since the latest, or since the beginning.
    """

    def __init__(self, *points, handler=None, error=Interruption):
        """Choose the points.

        Args:
            points: The first counts from the beginning, each other one from the interruption before it.
            handler: Called at the points, instead of an interruption; the function continues.
            error: The class of interruption.
        """
        self.where = []
        self._points = list(points)
        self._handler = handler
        self._error = error
        self.passed = 0
        self._runs = False

    def run(self, function):
        """Call the function, and suppress the interruption that ends it."""
        before, collects = sys.gettrace(), gc.isenabled()
        # Leftovers of other tests must not be finalized here: that would count.
        gc.disable()
        self._runs = True
        sys.settrace(self._trace)
        try:
            function()
        except Interruption:
            assert self.where
        finally:
            self._runs = False
            sys.setprofile(None)
            sys.settrace(before)
            if collects:
                gc.enable()

    def is_due(self, where):
        """Count a point, also one that no trace shows; return whether the function must be interrupted there."""
        if not self._runs:
            return False
        self.passed += 1
        if not self._points or self.passed < self._points[0]:
            return False
        del self._points[0]
        self.passed = 0
        self.where.append(where)
        return True

    def _hit(self, frame):
        if not self.is_due(frame):
            return
        code = frame.f_code
        self.where[-1] = where = f"{Path(code.co_filename).name}:{frame.f_lineno} {code.co_name}"
        # Python ends a trace that raises. If another interruption is to come, the next call resumes it.
        sys.settrace(None)
        if self._points:
            sys.setprofile(self._resume)
        if self._handler is None:
            raise self._error(where)
        self._handler()

    def _trace(self, frame, event, argument):
        caller = frame.f_back and frame.f_back.f_trace
        if isinstance(caller, _Frame):
            caller.was_python = _is_inlined(frame.f_code)
        if not frame.f_code.co_filename.startswith(_PACKAGE):
            return None
        frame.f_trace_lines, frame.f_trace_opcodes = False, True
        if _is_in_finalizer(frame):
            return None
        if not _resumes_in_yield_from(frame) and not _is_exempt(frame.f_code):
            self._hit(frame)
        return _Frame(self._hit)

    def _resume(self, frame, event, argument):
        """Trace again, from the first call or return after an interruption."""
        if frame.f_code.co_filename == __file__:
            return
        sys.setprofile(None)
        each = frame
        while each is not None:
            if each.f_code.co_filename.startswith(_PACKAGE) and not _is_in_finalizer(each):
                each.f_trace = _Frame(self._hit, each.f_lasti)
                each.f_trace.was_python = not (each is frame and event.startswith("c_"))
                each.f_trace_lines, each.f_trace_opcodes = False, True
            each = each.f_back
        sys.settrace(self._trace)
        if event == "call":
            frame.f_trace = self._trace(frame, event, argument)


def inject(n, function, handler=None):
    """Call a function and interrupt it at its n-th point; return where, None if it ended before.

    With `handler` nothing is raised: the handler is called at the point, and the function continues.

    Python checks for signals when a function begins, after a call of a C function, and when a loop starts over. So
    these are the points at which a signal's handler, and so an interruption, can come. All modules of the package are
    covered, except the very first instruction of a lock's `__exit__`.
    """
    strikes = Strikes(n, handler=handler)
    strikes.run(function)
    return strikes.where[0] if strikes.where else None
