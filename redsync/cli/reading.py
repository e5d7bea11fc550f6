"""Reading: redis-py's parser for the inspecting commands, within the bounds of all replies.

A node that announces two billion elements costs its own answer, and neither memory nor time.
"""

from __future__ import annotations

from typing import Any

from redis._parsers import _HiredisParser

from redsync._core.replies import BoundedReader

__all__ = ["BoundedParser"]


class BoundedParser(_HiredisParser):
    """Reads no more than a reply may cost."""

    def on_connect(self, connection: Any, **kwargs: Any) -> None:
        """Begin to read."""
        super().on_connect(connection, **kwargs)  # type: ignore[no-untyped-call]  # nor are others of redis-py's
        parser: Any = self
        parser._reader = BoundedReader(parser._reader)
