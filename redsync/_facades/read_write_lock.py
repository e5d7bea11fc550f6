"""The read-write lock, for threads and for asyncio: many readers, or one writer.

```python
lock = client.get_read_write_lock("catalogue")
with lock.read_lock:  # alongside other readers
    show(catalogue)
with lock.write_lock:  # alone
    catalogue.update(changes)
```

`redsync._protocols.read_write_lock` makes the decisions; this module has only the interface.
"""

from __future__ import annotations

from functools import partial
from typing import Any, ClassVar, Generic, TypeVar

from redsync._core.session import AnyHost, RunnerT_co
from redsync._facades.claimable import Acquire, HoldT
from redsync._facades.exclusive import AsyncExclusiveLock, Exclusive, ExclusiveLock
from redsync._facades.lock import AsyncLock, Lock
from redsync._protocols import read_write_lock as protocol

__all__ = ["AsyncReadLock", "AsyncReadWriteLock", "AsyncWriteLock", "ReadLock", "ReadWriteLock", "WriteLock"]

ReadT_co = TypeVar("ReadT_co", bound=Exclusive[Any, Any], covariant=True)
WriteT_co = TypeVar("WriteT_co", bound=Exclusive[Any, Any], covariant=True)


class _Writing(Exclusive[RunnerT_co, HoldT]):
    _KIND = protocol.WRITE
    _acquire_steps: Acquire = staticmethod(protocol.acquire_to_write)


class ReadLock(ExclusiveLock):
    """The read lock of a `ReadWriteLock`: held by any number of threads at once, while no other thread writes.

    Everything else is as with `Lock`: timeout, lease, watchdog, loss. Each reader's claim expires automatically, even
    while others renew theirs. A thread that already has it, or has the write lock, gets it even if a writer waits.
    `locked()` returns True while any owner reads; `force_release()` takes the lock from all readers.
    """

    _KIND = protocol.READ


class WriteLock(_Writing[Any, Any], Lock):
    """The write lock of a `ReadWriteLock`: held by one thread, while no other reads.

    Everything else is as with `Lock`: timeout, lease, watchdog, loss, `threading.Condition`. `locked()` returns True
    while any owner writes. In a thread that only reads, `acquire` raises `UpgradeError` at once, because it would wait
    for itself.
    """


class AsyncReadLock(AsyncExclusiveLock):
    """The read lock of an `AsyncReadWriteLock`: like `ReadLock`, with tasks instead of threads."""

    _KIND = protocol.READ


class AsyncWriteLock(_Writing[Any, Any], AsyncLock):
    """The write lock of an `AsyncReadWriteLock`: like `WriteLock`, with tasks instead of threads."""


class _Pair(Generic[ReadT_co, WriteT_co]):
    _READ: ClassVar[type[Any]]
    _WRITE: ClassVar[type[Any]]

    def __init__(self, host: AnyHost[Any], name: str | bytes, **options: Any) -> None:
        self._host = host
        self._options = options
        self._read_lock: ReadT_co = self._READ(host, name, **options)
        self._write_lock: WriteT_co = self._WRITE(host, name, **options)

    @property
    def name(self) -> str | bytes:
        """The lock's name, as given."""
        return self._read_lock.name

    @property
    def read_lock(self) -> ReadT_co:
        """The lock for readers."""
        return self._read_lock

    @property
    def write_lock(self) -> WriteT_co:
        """The lock for writers."""
        return self._write_lock

    def __reduce__(self) -> tuple[Any, ...]:
        return partial(type(self), **self._options), (self._host, self.name)

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self.name!r}>"


# Its methods come from those of AsyncReadWriteLock: change those, then run `make twins`.
class ReadWriteLock(_Pair[ReadLock, WriteLock]):
    """A lock that many threads may hold to read, or one to write, over all nodes of a client.

    At any instant either one owner has a valid hold to write, and no other to read, or any number have valid holds to
    read; under the conditions of `Lock`, and for as long. Both locks are reentrant. An owner that writes may also
    acquire the read lock, and may then release the write lock first. A waiting writer keeps new readers out, so readers
    can't starve it; readers that have waited longer are served before it, all at once.

    It uses the keys of a lock of the same name: use one kind per name, or you get `KeyTypeError`.

    Algorithm: Redlock's quorum, with the readers' claims in a sorted set by expiry. Made by
    `Client.get_read_write_lock`.
    """

    _READ = ReadLock
    _WRITE = WriteLock


class AsyncReadWriteLock(_Pair[AsyncReadLock, AsyncWriteLock]):
    """A lock that many tasks may hold to read, or one to write, over all nodes of a client.

    Like `ReadWriteLock`, with tasks instead of threads. Made by `AsyncClient.get_read_write_lock`.
    """

    _READ = AsyncReadLock
    _WRITE = AsyncWriteLock
