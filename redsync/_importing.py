"""The lock around redsync's late imports: a fork waits for them.

Most modules are imported at their first use, in any thread. Python locks a module while it is imported. If another
thread forks meanwhile, the child inherits that lock without the thread that would release it, and hangs at its own
first use. So every late import stands within `with importing:`, and a fork takes the same lock until the child exists.
Once a synchronizer's class was imported, it is an attribute of the package, found without the lock.

- A thread that forks within its own import (in a signal handler, a finalizer, a module) does not wait: the lock is
  reentrant, and its import continues in the child too.
- Neither a fork nor an import waits for more than 5 s. An import may hang (a network file system), and threads hold
  other locks: one that configures logging may import us while a fork holds our lock and waits for that of logging.
  After that the fork or the import proceeds: a child may hang as it would without this module, but no parent does. A
  fork that gave up reports an un-acquired lock on standard error.
- As with any lock in Python, an interruption right before the end of the `with` may leave it held. Then forks and late
  imports of other threads take 5 s longer, but work.
- `after_in_parent` is a function in C, because a signal handler's error could end one in Python before it begins.

The program's own imports do not belong here, not even those of `redsync.contrib`: they are not late. Nor do those of
`redsync.cli`, which forks only while it has a single thread.
"""

from __future__ import annotations

import os

# Not threading.RLock, its other name: `import redsync` alone does not need that module.
from _thread import RLock
from functools import partial
from typing import Final

__all__ = ["importing"]

_LONGEST: Final = 5.0

_lock: Final = RLock()
_acquire: Final = partial(_lock.acquire, timeout=_LONGEST)


class _Importing:
    """The lock as a context manager that continues without it after too long a wait."""

    __slots__ = ()

    __enter__ = staticmethod(_acquire)

    def __exit__(self, *_: object) -> None:
        _release()


def _release() -> bool:
    """Release the lock; return False if the caller does not hold it."""
    try:
        _lock.release()
    except RuntimeError:
        return False
    return True


importing: Final = _Importing()


def _after_fork_in_child() -> None:
    if not _release():
        _lock._at_fork_reinit()  # type: ignore[attr-defined]  # as the standard library does with its own


if hasattr(os, "register_at_fork"):  # not on Windows
    os.register_at_fork(before=_acquire, after_in_parent=_lock.release, after_in_child=_after_fork_in_child)
