"""The exit statuses of the `redsync` command, and what ends a command with one of them.

| status | meaning |
|---|---|
| 0 | success |
| 1 | the command found something wrong |
| 64 | wrong usage |
| 69 | too few nodes answer, or something that it needs is not installed or does not start |
| 74 | standard output can't be written, as on a full disk |
| 75 | busy: others hold the lock |
| 77 | the nodes refuse the password, or forbid a command |
| 78 | no nodes configured, or settings that contradict each other |
| 124 | the command was ended: its lock was lost, or it held it for too long |
| 125 | redsync itself failed |
| 126 | the command was found, and can't be executed |
| 127 | the command was not found |
| 128 + n | ended by signal n; 130 for Ctrl-C, 141 where nobody reads our output any more |

64 to 78 are those of sysexits.h, 124 to 127 those of timeout(1) and env(1).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from redsync.exceptions import ConfigurationError, KeyTypeError, QuorumError, RedsyncError

__all__ = [
    "BROKEN",
    "BROKEN_PIPE",
    "BUSY",
    "ENDED",
    "FAILED",
    "FINE",
    "INTERRUPTED",
    "NOT_EXECUTABLE",
    "NOT_FOUND",
    "REFUSED",
    "SIGNALLED",
    "UNAVAILABLE",
    "UNCONFIGURED",
    "UNREADABLE",
    "UNWRITABLE",
    "USAGE",
    "OutputError",
    "SetupError",
    "UsageError",
    "is_refusal",
    "state_of",
    "status_of",
    "status_without_quorum",
]

FINE: Final = 0
BROKEN: Final = 1
USAGE: Final = 64
UNAVAILABLE: Final = 69
UNWRITABLE: Final = 74
BUSY: Final = 75
REFUSED: Final = 77
UNCONFIGURED: Final = 78
ENDED: Final = 124
FAILED: Final = 125
NOT_EXECUTABLE: Final = 126
NOT_FOUND: Final = 127
SIGNALLED: Final = 128
INTERRUPTED: Final = 130
BROKEN_PIPE: Final = 141

UNREADABLE: Final = "answered what can't be read"
"""The begin of the error of a node whose answer is nothing that a server with our scripts would say."""

_REFUSALS = ("noauth", "wrongpass", "noperm", "authentication required", "username-password", "no permission")


class SetupError(Exception):
    """The command can't do its work; its text says why, in a plain sentence.

    Attributes:
        status: The exit status.
    """

    def __init__(self, message: str, status: int) -> None:
        super().__init__(message)
        self.status = status


class UsageError(SetupError):
    """Arguments that contradict each other."""

    def __init__(self, message: str) -> None:
        super().__init__(message, USAGE)


class OutputError(SetupError):
    """Standard output can't be written, so the command's result is lost."""


def is_refusal(text: str | None) -> bool:
    """Whether a node's trouble is that it wants another password, or forbids a command."""
    return text is not None and any(refusal in text.lower() for refusal in _REFUSALS)


def state_of(error: str) -> str:
    """Return, in a word or two, what is wrong with a node that gave no readable answer."""
    if is_refusal(error):
        return "refuses us"
    return "unreadable" if error.startswith(UNREADABLE) else "no answer"


def status_of(error: RedsyncError) -> int:
    """Return the exit status of a command that can't go on because of that error."""
    if isinstance(error, QuorumError):
        return status_without_quorum([vote.detail for vote in error.votes])
    if isinstance(error, ConfigurationError | KeyTypeError):
        return UNCONFIGURED
    return FAILED


def status_without_quorum(troubles: Sequence[str | None]) -> int:
    """Return the exit status if too few nodes answer; `troubles` has an entry for each node, None if it has none."""
    refusals = sum(map(is_refusal, troubles))
    # So many that the other nodes could not make a quorum in any case.
    return REFUSED if refusals and refusals * 2 >= len(troubles) else UNAVAILABLE
