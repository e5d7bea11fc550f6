"""The count-down latch: waiters sleep until a number of events has happened.

```python
latch = client.get_count_down_latch("import:2026")
latch.try_set_count(3)  # three workers then call latch.count_down() at their end
latch.wait()
```

`redsync._protocols.latch` makes the decisions; this module has only the interface.
"""

from __future__ import annotations

from functools import partial
from typing import Any, Generic

from redsync._core.effects import Steps
from redsync._core.keys import LatchKeys, encode_name
from redsync._core.session import AnyHost, AsyncRunner, Runner, RunnerT_co
from redsync._core.timing import MAX_LEASE, check_timeout, finite, whole
from redsync._protocols import latch as protocol

__all__ = ["AsyncCountDownLatch", "CountDownLatch"]

_MOST = 2**31 - 1


def _check_number(number: int) -> int:
    if (count := whole(number, _MOST)) is None:
        raise ValueError(f"a latch counts integers from 1 to {_MOST}, not {number!r}")
    return count


class _AnyLatch(Generic[RunnerT_co]):
    """The common base of latches of both flavours: the methods that do not wait."""

    def __init__(
        self, host: AnyHost[RunnerT_co], name: str | bytes, *, timeout: float = 10.0, keep: float = 86400.0
    ) -> None:
        self._host = host
        self._runner = host.runner
        checked = check_timeout(True, timeout)
        if checked is None:
            raise ValueError("a count-down must not retry without limit: its timeout must be a number of seconds")
        seconds = finite(keep)
        if seconds is None or not 0 < seconds <= MAX_LEASE:
            raise ValueError(f"keep must be a positive number of seconds, at most a year, not {keep!r}")
        self._timeout, self._keep = checked, seconds
        self._latch = protocol.Latch(name, LatchKeys.of(host.prefix, encode_name(name)), self._keep)

    @property
    def name(self) -> str | bytes:
        """The latch's name, as given."""
        return self._latch.name

    def _set_steps(self, n: int) -> Steps[bool]:
        runner = self._runner
        return protocol.set_count(runner.session, self._latch, runner.owner(), n, runner.now())

    def _count_down_steps(self, n: int) -> Steps[None]:
        runner, n = self._runner, _check_number(n)
        return protocol.count_down(
            runner.session, self._latch, runner.owner(), runner.now(), n=n, timeout=self._timeout
        )

    def _count_steps(self) -> Steps[int]:
        runner = self._runner
        return protocol.count_left(runner.session, self._latch, runner.owner(), runner.now())

    def _wait_steps(self, timeout: float | None) -> Steps[bool]:
        runner, timeout = self._runner, check_timeout(True, timeout)
        return protocol.wait_open(runner.session, self._latch, runner.owner(), timeout, runner.now())

    def __reduce__(self) -> tuple[Any, ...]:
        return partial(type(self), timeout=self._timeout, keep=self._keep), (self._host, self.name)

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self.name!r}>"


# Its methods come from those of AsyncCountDownLatch: change those, then run `make twins`.
class CountDownLatch(_AnyLatch[Runner]):
    """A count on all nodes of a client that wakes all waiters once it is counted down to 0.

    It opens only once counted down to 0: no node failure opens it, and each call counts once, no matter how often its
    command is repeated. It opens late, or never, if a majority of the nodes forgot the count-downs. After a majority
    restarted, a latch that was set before needs all nodes: while one is down, calls raise `QuorumError`. A latch that
    was never set, or not used for `keep` seconds, counts as open. If all nodes forgot a latch while no client was
    connected, it counts as open for a client that has not seen it set.

    Once open, it can be set again. No client holds it: a client's count-downs remain after the client is closed.

    Algorithm: a grow-only counter per client, merged over a quorum and written back; set under a fenced lock. Made by
    `Client.get_count_down_latch`.
    """

    def try_set_count(self, n: int) -> bool:
        """Set the latch to `n`, at least 1; return False if it is set and not open.

        Raises:
            QuorumError: Too few nodes answered, or too late; the latch may still have been set.
            AcquireTimeout: Other clients were setting or deleting the latch for 10 s.
        """
        return self._runner.run(self._set_steps(_check_number(n)))

    def count_down(self, n: int = 1) -> None:
        """Count the latch down by `n`, and open it at 0; no effect if it is open or was never set.

        While too few nodes answer, the call tries again, for up to the `timeout` option, and at most `outage_timeout`.

        Raises:
            QuorumError: Too few nodes answered for that long. The call may or may not have counted: call again with
                the same client, and the two calls together count once.
        """
        self._runner.run(self._count_down_steps(n))

    def count(self) -> int:
        """Return the remaining count; 0 if the latch is open or was never set.

        Raises:
            QuorumError: Too few nodes answered, or too many forgot whether the latch was set.
        """
        return self._runner.run(self._count_steps())

    def wait(self, timeout: float | None = None) -> bool:
        """Sleep until the latch is open; return False if the timeout ends first, else True.

        Args:
            timeout: The longest wait in seconds; None for no limit, 0 to check once.

        Raises:
            QuorumError: Too few nodes answered for `outage_timeout`, or at the end of the timeout. If it cut the last
                look short, the one before counts.
        """
        return self._runner.run(self._wait_steps(timeout))

    def delete(self) -> None:
        """Delete the latch, as if it had never been set, and wake all waiters.

        Raises:
            QuorumError: Too few nodes answered, or too late; the latch may still have been deleted.
            AcquireTimeout: Other clients were setting or deleting the latch for 10 s.
        """
        self._runner.run(self._set_steps(0))


class AsyncCountDownLatch(_AnyLatch[AsyncRunner]):
    """A count on all nodes of a client that wakes all waiters once it is counted down to 0.

    Like `CountDownLatch`, with tasks instead of threads. Made by `AsyncClient.get_count_down_latch`.
    """

    async def try_set_count(self, n: int) -> bool:
        """Set the latch to `n`; return False if it is set and not open. See `CountDownLatch.try_set_count`."""
        return await self._runner.run(self._set_steps(_check_number(n)))

    async def count_down(self, n: int = 1) -> None:
        """Count the latch down by `n`, and open it at 0. See `CountDownLatch.count_down`.

        A cancelled call may or may not have counted, like a failed one.
        """
        await self._runner.run(self._count_down_steps(n))

    async def count(self) -> int:
        """Return the remaining count; 0 if the latch is open or was never set. See `CountDownLatch.count`."""
        return await self._runner.run(self._count_steps())

    async def wait(self, timeout: float | None = None) -> bool:
        """Sleep until the latch is open; return False if the timeout ends first. See `CountDownLatch.wait`."""
        return await self._runner.run(self._wait_steps(timeout))

    async def delete(self) -> None:
        """Delete the latch, and wake all waiters. See `CountDownLatch.delete`."""
        await self._runner.run(self._set_steps(0))
