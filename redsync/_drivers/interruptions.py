"""Interruptions: what a signal's handler raises in the middle of our work, and what that costs.

A connection on which a command or a reply is in doubt is given up, though its node is well: it is connected again at
once, which is no news to anybody.
"""

from __future__ import annotations

from typing import Final

__all__ = ["HALF_READ", "HALF_SENT", "INTERRUPTED"]

HALF_SENT: Final = "an interruption left a command half sent"
HALF_READ: Final = "an interruption left replies half handed out"

INTERRUPTED: Final = frozenset({HALF_SENT, HALF_READ})
"""Why connections were given up whose nodes are well."""
