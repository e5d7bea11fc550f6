"""The exit statuses of the `redsync` command, and the errors that end a command with one of them.

64 to 78 are from sysexits.h, 124 to 127 from timeout(1) and env(1).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from redsync._core.text import is_refusal
from redsync.exceptions import ConfigurationError, KeyTypeError, QuorumError

FINE: Final = 0  # success
BROKEN: Final = 1  # the command found a problem
USAGE: Final = 64  # wrong usage
UNAVAILABLE: Final = 69  # too few nodes answer, or a dependency is not installed or does not start
UNWRITABLE: Final = 74  # standard output can't be written, for example because the disk is full
BUSY: Final = 75  # busy: others hold the lock
REFUSED: Final = 77  # the nodes refuse the password, or forbid a command
UNCONFIGURED: Final = 78  # no nodes configured, contradictory settings, or a name of another type
ENDED: Final = 124  # redsync ended the command: its lock was lost, or `--max-hold` had passed
FAILED: Final = 125  # redsync itself failed
NOT_EXECUTABLE: Final = 126  # the command was found but can't be executed
NOT_FOUND: Final = 127  # the command was not found
SIGNALLED: Final = 128
"""Plus n: ended by signal n."""
INTERRUPTED: Final = SIGNALLED + 2
BROKEN_PIPE: Final = SIGNALLED + 13

UNREADABLE: Final = "unreadable answer"
"""The start of a node's error if no server with our scripts would give its answer."""

NO_TLS: Final = "its port does not speak TLS"  # an error of a node whose URL has the wrong scheme, as the next one
ONLY_TLS: Final = "its port speaks TLS"


class SetupError(Exception):
    """The command can't do its work; the message says why.

    Attributes:
        status: The exit status; without one, arguments are missing or contradict each other.
    """

    def __init__(self, message: str, status: int = USAGE) -> None:
        super().__init__(message)
        self.status = status


def state_of(error: str) -> str:
    """Return the error of a node in one or two words."""
    if is_refusal(error):
        return "access denied"
    return "unreadable" if error.startswith(UNREADABLE) else "no answer"


def status_of(error: Exception) -> int:
    """Return the exit status of a command that fails with that error."""
    if isinstance(error, QuorumError):
        return status_without_quorum([vote.detail for vote in error.votes])
    if isinstance(error, ConfigurationError | KeyTypeError):
        return UNCONFIGURED
    return FAILED


def status_without_quorum(troubles: Sequence[str | None]) -> int:
    """Return the exit status if too few nodes answer; `troubles` has each node's error, None if it answered."""
    refusals = sum(is_refusal(trouble) for trouble in troubles if trouble is not None)
    # Enough refusals that the other nodes alone could not make a quorum.
    return REFUSED if refusals and refusals * 2 >= len(troubles) else UNAVAILABLE
