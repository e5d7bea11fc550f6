"""Interruptions: errors that a signal handler raises in the middle of the driver's work, and their cost.

If an interruption leaves a command or a reply in doubt, the client discards that connection, although the node works.
It reconnects the node at once, and reports no change of the node's state.
"""

from __future__ import annotations

from typing import Final

__all__ = ["HALF_READ", "HALF_SENT", "INTERRUPTED"]

HALF_SENT: Final = "an interruption left a command half sent"
HALF_READ: Final = "an interruption left replies half handed out"

INTERRUPTED: Final = frozenset({HALF_SENT, HALF_READ})
"""The reasons to discard the connection of a working node."""
