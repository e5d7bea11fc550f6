"""The histories that processes write while they work: one line of JSON for each thing that an owner did.

Each process appends to its own file, and writes each line at once. So it may be killed at any time: its lines stay, and
at most the last one is cut short.

Every line has an `event` and the instant `at`. Lines of one acquisition also name the `worker`, counted over all
processes of the run, and the `number` of its attempt.

| event | meaning | fields |
|---|---|---|
| `ready` | the process is ready to work | |
| `asks` | the owner begins to acquire, or to use a latch | name, how, n, timeout or blocking, lease |
| `acquired` | acquire has returned; its quorum was counted at `since` | name, asked, since, until, lease, owner, ... |
| `re-entered`, `left` | the owner re-entered the hold, and released that level | |
| `extended` | the owner extended its hold | |
| `unsure` | a re-entry or an extension met too few nodes | |
| `looked` | what the hold reported of itself | before, remaining, until |
| `writes` | the owner is about to set the counter to this | value |
| `done` | the owner begins to release | kept, until |
| `released`, `lost` | the release is over; `inside`: an earlier call raised the loss | inside |
| `leaves` | the owner does not release | |
| `refused` | a reader asked to write, and got an error at once | asked |
| `found` | it asked if there are readers or writers, or how much is left | reads, writes, available, holders, left |
| `forestalled` | another owner of its client returned its permit | |
| `too many` | the semaphore or rate limiter was resized, and has fewer permits | |
| `resized` | the owner has changed the number of permits, or a rate | permits |
| `told` | `on_lost` was called | lost, remaining, until |
| `busy`, `no quorum` | acquire failed | name, asked |
| `success` | a rate limiter allowed it | name, n, rates, permits |
| `cancels` | the owner is about to return that success | name, permits |
| `set`, `not set` | it set a latch; or did not, for the latch was not open | name, n |
| `deleted`, `not deleted` | it deleted a latch; or did not, for others were setting it | name |
| `counted` | it counted a latch down | name, n |
| `opened` | it waited until the latch was open; `busy`: its timeout passed | name |
| `last` | the outcome of the last acquisition of a thing, after all faults | name, asked, got, why |
| `heard` | a listener got a `HoldLost` | name, owner, reason |
| `complaint` | the library logged an internal error | text |
| `closed` | what the closed client left behind | threads, sockets |

All instants are whole nanoseconds on the clock of the leases, which all processes of a machine share, so they compare
exactly.
"""

import json
import os
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any, TypeAlias

Line: TypeAlias = dict[str, Any]

now_ns: Callable[[], int] = (
    # A client's `valid_until` is an instant on this clock too.
    partial(time.clock_gettime_ns, time.CLOCK_BOOTTIME) if hasattr(time, "CLOCK_BOOTTIME") else time.monotonic_ns
)


def nanoseconds(instant: float) -> int:
    """Return an instant, given in seconds, in ns, rounded down: no hold may seem to be believed longer than it was."""
    return int(instant * 1e9)


class History:
    """Writes the history of this process; from any thread."""

    def __init__(self, path: Path) -> None:
        self._file = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)

    def note(self, event: str, **fields: object) -> None:
        """Append one line; its instant `at` is now by default."""
        os.write(self._file, (json.dumps({"event": event, "at": now_ns(), **fields}) + "\n").encode())


def read(path: Path) -> list[Line]:
    """Return the whole lines of a history; none if its process never wrote."""
    whole = path.read_bytes().rpartition(b"\n")[0] if path.exists() else b""
    return [json.loads(line) for line in whole.splitlines()]
