"""Interruptions: errors that a signal's handler raises in the middle of the driver's work, and their cost.

The client gives up a connection on which a command or a reply is in doubt, although its node is well. It connects the
node again at once, and reports no change of the node's state.
"""

from __future__ import annotations

from typing import Final

__all__ = ["HALF_READ", "HALF_SENT", "INTERRUPTED"]

HALF_SENT: Final = "an interruption left a command half sent"
HALF_READ: Final = "an interruption left replies half handed out"

INTERRUPTED: Final = frozenset({HALF_SENT, HALF_READ})
"""The reasons for which a connection is given up although its node is well."""
