"""The fenced lock: each acquisition has a number higher than all before it.

```python
with client.get_fenced_lock("account:7") as hold:
    store.write(balance, token=hold.fencing_token)  # the store refuses a token below the highest it has seen
```

`redsync._protocols.fenced_lock` makes the decisions; this module has only the interface.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any

from redsync._core.session import AnyHost, RunnerT_co
from redsync._facades.claimable import HoldT
from redsync._facades.exclusive import Exclusive
from redsync._facades.hold import AnyHold, AsyncHold, Hold
from redsync._facades.lock import AsyncLock, Lock
from redsync._protocols import fenced_lock as protocol
from redsync._protocols.fenced_lock import Fence

__all__ = ["AsyncFencedHold", "AsyncFencedLock", "FencedHold", "FencedLock"]


class _FencedHold(AnyHold[RunnerT_co]):
    @property
    def fencing_token(self) -> int:
        """The token: higher than that of every earlier acquisition of the lock."""
        token = self._state.fencing_token
        assert token is not None, "a fenced lock's holds have tokens"
        return token


class FencedHold(_FencedHold[Any], Hold):
    """One acquisition of a fenced lock: a `Hold` whose token is always a number."""


class AsyncFencedHold(_FencedHold[Any], AsyncHold):
    """One acquisition of an async fenced lock: an `AsyncHold` whose token is always a number."""


class _Fenced(Exclusive[RunnerT_co, HoldT]):
    _KIND = protocol.FENCED_LOCK

    def __init__(self, host: AnyHost[RunnerT_co], name: str | bytes, **options: Any) -> None:
        super().__init__(host, name, **options)
        self._acquire_steps = partial(protocol.acquire, fence=Fence())


class FencedLock(_Fenced[Any, Any], Lock):
    """A reentrant lock with a token for each acquisition, owned by the thread that acquired it.

    The guarantees are those of `Lock`, and one more: `hold.fencing_token` is higher than that of every earlier
    acquisition of the name, no matter which nodes failed, lagged behind, lost their data or came back with older data.
    A node that forgot its token, or issued none for a day, continues from its clock. So the order breaks if the nodes'
    clocks differ by more than `restart_guard` and one of the nodes lost data, or if they differ by more than a day; or
    if the clock of a single node was set back during a restart. A nested acquire keeps the token. A token is a positive
    integer below `2**53`.

    Use it where the resource can compare tokens: the resource keeps the highest token that it has seen, and refuses
    writes with a lower one. So it refuses the late write of a holder that was paused for too long.

    Use one kind of lock per name: a `Lock` of the same name excludes this one, but its holds have no tokens. An
    owner that holds one gets `KeyTypeError` here.

    Algorithm: fencing tokens as described by M. Kleppmann; each node counts, and the client writes the maximum of a
    quorum back to a quorum. Made by `Client.get_fenced_lock`.
    """

    _HOLD = FencedHold

    if TYPE_CHECKING:

        def __enter__(self) -> FencedHold: ...


class AsyncFencedLock(_Fenced[Any, Any], AsyncLock):
    """A reentrant lock with a token for each acquisition, owned by the task that acquired it.

    Like `FencedLock`, with tasks instead of threads. Made by `AsyncClient.get_fenced_lock`.
    """

    _HOLD = AsyncFencedHold

    if TYPE_CHECKING:

        async def __aenter__(self) -> AsyncFencedHold: ...
