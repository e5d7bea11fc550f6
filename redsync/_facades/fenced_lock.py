"""The fenced lock: each acquisition has a number that is higher than those of all before it.

```python
with client.get_fenced_lock("account:7") as hold:
    store.write(balance, token=hold.fencing_token)  # which refuses a token below the highest it has seen
```

The decisions are in `redsync._protocols.fenced_lock` and `tokens`; this module has only what callers touch.
"""

from __future__ import annotations

from typing import Any

from redsync._core.effects import Steps
from redsync._core.holds import HoldState
from redsync._core.runner import AnyHost, RunnerT_co, Session
from redsync._facades.claimable import HoldT
from redsync._facades.exclusive import Exclusive
from redsync._facades.lock import AsyncLock, Lock
from redsync._protocols import fenced_lock as protocol
from redsync._protocols.acquire_requests import AcquireRequest
from redsync._protocols.tokens import Fence

__all__ = ["AsyncFencedLock", "FencedLock"]


class _Fenced(Exclusive[RunnerT_co, HoldT]):
    _KIND = protocol.FENCED_LOCK

    def __init__(self, host: AnyHost[RunnerT_co], name: str | bytes, **options: Any) -> None:
        super().__init__(host, name, **options)
        self._fence = Fence(self._keys)

    def _acquire_steps(self, session: Session, request: AcquireRequest, now: float) -> Steps[HoldState | None]:
        return protocol.acquire(session, request, self._fence, now)


class FencedLock(_Fenced[Any, Any], Lock):
    """A reentrant lock whose every acquisition has a token, owned by the thread that acquired it.

    The guarantees are those of `Lock`, and one more: `hold.fencing_token` is higher than that of every earlier
    acquisition of the name, whichever nodes failed, lagged behind, lost their data or came back with older data. A
    node that forgot its token, or gave none for a day, goes on from its clock. So the order breaks if the clocks of
    nodes are further apart than `restart_guard` and one of them lost data, or further apart than a day; or if the
    only node's clock was set back over a restart. A nested acquire keeps the token. A token is a positive integer
    below 2**53.

    Use it where the resource can compare tokens: the resource keeps the highest token that it has seen, and refuses
    writes with a lower one. So it refuses a write of a holder that was paused for too long, however late it comes.

    Use one kind of lock per name: a `Lock` of the same name excludes this one, but its holds have no tokens.

    Algorithm: fencing tokens as M. Kleppmann describes them; each node counts, and the client writes the maximum of a
    quorum back to a quorum. Made by `Client.get_fenced_lock`.
    """


class AsyncFencedLock(_Fenced[Any, Any], AsyncLock):
    """A reentrant lock whose every acquisition has a token, owned by the task that acquired it.

    As `FencedLock`, with tasks instead of threads. Made by `AsyncClient.get_fenced_lock`.
    """
