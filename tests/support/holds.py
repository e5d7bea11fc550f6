"""Holds as checkers get them, made by hand."""

from redsync.testing.harness.holds import Hold

__all__ = ["held"]


def held(worker, granted, ended, value=0, **fields):
    """Return a hold that was kept, and under which the counter was set to `value`; 0: nothing was written."""
    until = granted + 10_000 if ended is None else ended + 100
    usual = {"number": 1, "name": "lock:0", "asked": granted, "since": granted, "until": until, "kept": True}
    given = {**usual, "worker": worker, "granted": granted, "ended": ended, "written": value, "gone": "released"}
    return Hold(**{**given, **fields})
