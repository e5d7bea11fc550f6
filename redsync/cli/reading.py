"""redis-py's parser for the inspecting commands, with our bounds on replies.

A node that announces two billion elements loses its answer, but costs neither memory nor time.
"""

from __future__ import annotations

from typing import Any

from redis._parsers import _HiredisParser

from redsync._core.replies import BoundedReader

__all__ = ["BoundedParser"]


class BoundedParser(_HiredisParser):
    """Rejects replies beyond the bounds."""

    def on_connect(self, connection: Any, **kwargs: Any) -> None:
        """Start reading."""
        super().on_connect(connection, **kwargs)  # type: ignore[no-untyped-call]  # as in all of redis-py
        parser: Any = self
        parser._reader = BoundedReader(parser._reader)
