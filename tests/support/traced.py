"""Code in which other threads do something at each line, as they may on a busy machine."""

import sys
from contextlib import contextmanager


@contextmanager
def at_each_line(action, most=100):
    """Call the action before each line of Python that runs in this thread, at most that many times."""
    left = iter(range(most))

    def trace(*_):
        if next(left, None) is not None:
            action()
        return trace

    before = sys.gettrace()
    sys.settrace(trace)
    try:
        yield
    finally:
        sys.settrace(before)
