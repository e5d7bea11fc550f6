"""What can go wrong, organised by what the caller should do about it.

```
RedsyncError
├── AcquireTimeout        (TimeoutError)      others hold it: try later, or wait longer
├── NotOwnedError         (RuntimeError)      the code released or extended what it does not hold: fix the code
│   └── LeaseLostError                        the hold ended before its release: stop the protected work
├── UpgradeError          (RuntimeError)      a reader asked for the write lock: release the read lock first
├── QuorumError           (ConnectionError)   too few nodes answered: look at `.votes`, mend the nodes
├── OverReleaseError      (ValueError)        more permits given back than taken: fix the code
├── KeyTypeError          (TypeError)         the key is in use for something else: choose another name or prefix
├── ConfigurationError    (ValueError)        the settings contradict themselves or the nodes: fix the settings
├── ReentrantCallError    (RuntimeError)      a signal handler or finalizer came in between: act later, not there
└── ClientClosedError     (RuntimeError)      an operation after `close()`: fix the code
```

Each error keeps what it knows as attributes and writes its own sentence from them, so that programs never parse text.
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
    """Base of every error that redsync raises on purpose."""


class ConfigurationError(RedsyncError, ValueError):
    """The settings contradict themselves or the nodes; the message says which, and what to change."""


class ClientClosedError(RedsyncError, RuntimeError):
    """The client was closed before or during the operation."""

    def __init__(self, message: str = "this client is closed: create a new Client, or close it later") -> None:
        super().__init__(message)


class ReentrantCallError(RedsyncError, RuntimeError):
    """A signal handler or finalizer called the client in the middle of another call of the same thread.

    Nothing was done: to wait for that other call there would be to wait for ever. `release()` and `close()` never
    raise this.
    """

    def __init__(
        self,
        message: str = "this signal handler or finalizer has interrupted another call of the same client: set a flag "
        "here and act on it later; only release() and close() work everywhere",
    ) -> None:
        super().__init__(message)


class OverReleaseError(RedsyncError, ValueError):
    """More permits were given back than this client holds; nothing was changed."""


class _NamedError(RedsyncError):
    """An error about one synchronizer and, where nodes were asked, about what each of them said.

    Attributes:
        name: The synchronizer's name as the caller gave it.
        votes: What each node said, in the order of the client's nodes; empty when no node was asked.
    """

    name: str | bytes
    sentence: str
    votes: tuple[Vote, ...]

    def __init__(self, name: str | bytes, sentence: str, votes: Sequence[Vote] = ()) -> None:
        # One argument: of two or more, the OSError among the bases would take the first for its errno.
        super().__init__(sentence)
        self.name = name
        self.sentence = sentence
        self.votes = tuple(votes)

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
    """Others held it for the whole `timeout`.

    Attributes:
        timeout: How long the caller was ready to wait, in seconds.
    """

    timeout: float

    def __init__(self, name: str | bytes, timeout: float) -> None:
        super().__init__(
            name, f"{name!r} was still held by others after {timeout:g} s: wait longer, or do without it for now"
        )
        self.timeout = timeout


class NotOwnedError(_NamedError, RuntimeError):
    """This owner does not hold it, so nothing was changed on any node."""


class LeaseLostError(NotOwnedError):
    """The hold ended before its owner released it; work done since may have run beside another owner's.

    A lost hold never becomes valid again. Stop the protected work; what it wrote is only safe where the written
    resource checked a fencing token.
    """


class UpgradeError(_NamedError, RuntimeError):
    """An owner that has the read lock asked for the write lock; nothing was changed.

    It would wait for its own release, or for that of another reader that waits for the same. Release the read lock,
    acquire the write lock, and look again at what was read: another writer may have come first.
    """


class QuorumError(_NamedError, ConnectionError):
    """Too few nodes answered to decide; `votes` tells what each of them said.

    Not busy: whether others hold it is unknown. The lock works again, with the same client, as soon as a quorum of
    its nodes does.
    """


class KeyTypeError(_NamedError, TypeError):
    """The key holds a value of another type, which is left as it is."""
