"""The errors, organized by the caller's response.

```
RedsyncError
├── AcquireTimeout        (TimeoutError)      others hold it: try later, or wait longer
├── NotOwnedError         (RuntimeError)      the code released or extended a lock not held: fix the code
│   └── LeaseLostError                        the hold ended before its release: stop the protected work
├── UpgradeError          (RuntimeError)      a reader asked for the write lock: release the read lock first
├── QuorumError           (ConnectionError)   too few nodes answered: look at `.votes`, repair the nodes
├── OverReleaseError      (ValueError)        more permits released than acquired: fix the code
├── KeyTypeError          (TypeError)         the key has another use: choose another name or prefix
├── ConfigurationError    (ValueError)        settings contradict each other or the nodes: fix the settings
├── ReentrantCallError    (RuntimeError)      a signal handler or finalizer interrupted a call: act later
└── ClientClosedError     (RuntimeError)      an operation after `close()`: fix the code
```

An error about one synchronizer has its data as attributes, so programs never parse text.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from redsync._core.quorum import Vote

__all__ = [
    "AcquireTimeout",
    "ClientClosedError",
    "ConfigurationError",
    "KeyTypeError",
    "LeaseLostError",
    "NotOwnedError",
    "OverReleaseError",
    "QuorumError",
    "RedsyncError",
    "ReentrantCallError",
    "UpgradeError",
]


class RedsyncError(Exception):
    """The base of all errors that redsync raises on purpose."""


class ConfigurationError(RedsyncError, ValueError):
    """The settings contradict themselves or the nodes; the message says which to change, and how."""


class ClientClosedError(RedsyncError, RuntimeError):
    """The client was closed before or during the operation.

    Or a signal handler forked this process during the operation, which continues in the parent.
    """

    def __init__(self, message: str = "this client is closed: create a new Client, or close it later") -> None:
        super().__init__(message)


class ReentrantCallError(RedsyncError, RuntimeError):
    """A signal handler or finalizer called the client during another call of the same thread.

    Or Python ran the finalizer in the client's own thread. Nothing was done: a wait for that other call, or for that
    thread, would never end. `release()` and `close()` never raise this error.

    Also raised if a task acquires a lock of a `Client` (for threads) that another task of the same thread holds: for
    this client both are one owner, so both would be inside. Nothing was done; use `AsyncClient` there.
    """

    def __init__(
        self,
        message: str = "this signal handler or finalizer interrupted another call of the same client: set a flag here "
        "and act on it later; only release() and close() work everywhere",
    ) -> None:
        super().__init__(message)


class OverReleaseError(RedsyncError, ValueError):
    """The code released more permits than this client holds; nothing changed."""


class _NamedError(RedsyncError):
    """An error of one synchronizer.

    Attributes:
        name: The synchronizer's name, as given.
        votes: Each node's vote, in the order of the client's nodes, of `QuorumError` and `KeyTypeError`; else empty.
    """

    def __init__(self, name: str | bytes, sentence: str, votes: Sequence[Vote] = ()) -> None:
        # One argument: given more, a base class OSError would take the first as its errno.
        super().__init__(sentence)
        self.name: str | bytes = name
        self.sentence: str = sentence
        self.votes: tuple[Vote, ...] = tuple(votes)

    def __str__(self) -> str:
        if not self.votes:
            return self.sentence
        return f"{self.sentence} [{'; '.join(str(vote) for vote in self.votes)}]"

    def __reduce__(self) -> tuple[Any, ...]:
        return _restore, (type(self), self.sentence), self.__dict__


def _restore(kind: type[_NamedError], sentence: str) -> _NamedError:
    error = kind.__new__(kind)
    error.args = (sentence,)
    return error


class AcquireTimeout(_NamedError, TimeoutError):
    """Other owners held it for the whole `timeout`, or the rate allowed no more.

    Attributes:
        timeout: The caller's longest wait in seconds.
        holder: The owner that kept a lock or mutex away at the last try, as in `Holder.owner`: its holder, or the
            waiter whose turn it is. "readers" or "writers" if it may be several. None if not known, or for other kinds.
    """

    def __init__(
        self, name: str | bytes, timeout: float, problem: str | None = None, holder: str | None = None
    ) -> None:
        problem = problem or f"{name!r} was still held by {holder or 'others'}"
        super().__init__(name, f"{problem} after {timeout:g} s: wait longer, or do without it for now")
        self.timeout: float = timeout
        self.holder: str | None = holder


class NotOwnedError(_NamedError, RuntimeError):
    """The owner does not hold it, so nothing changed on any node."""


class LeaseLostError(NotOwnedError):
    """The hold ended before its release; work done since may have run alongside another owner's.

    A lost hold never becomes valid again. Stop the protected work; its writes are safe only if the resource checked a
    fencing token.
    """


class UpgradeError(_NamedError, RuntimeError):
    """An owner of the read lock asked for the write lock; nothing changed.

    It would wait for its own release, or for another reader that waits in the same way. Release the read lock, acquire
    the write lock, and read the data again: another writer may have come first.
    """


class QuorumError(_NamedError, ConnectionError):
    """Too few nodes answered to decide; `votes` has each node's answer.

    This does not mean busy: whether others hold it is unknown. The lock works again, with the same client, as soon as
    a quorum of its nodes does.
    """


class KeyTypeError(_NamedError, TypeError):
    """The key holds a value of another type, which stays unchanged."""
