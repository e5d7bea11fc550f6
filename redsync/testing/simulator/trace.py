"""The trace: all that has happened in a run, readable, and the same to the byte for the same seed."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Final

from redsync.testing.simulator.happenings import Happening

__all__ = ["Trace"]

_CLIENT_ID = re.compile(r"[0-9a-f]{8}-[0-9a-f]{4}-4[0-9a-f]{3}-[0-9a-f]{4}-[0-9a-f]{12}")


class Trace:
    """What has happened so far, in order.

    Attributes:
        happenings: All of it.
        add: Adds something that has happened.
        names: The clients' names by their UUIDs.
    """

    def __init__(self) -> None:
        self.happenings: Final[list[Happening]] = []
        self.add: Final = self.happenings.append
        self.names: Final[dict[str, str]] = {}

    def lines(self, last: int | None = None) -> Iterator[str]:
        """Return one line per happening; only of the last ones if a number is given."""
        for happening in self.happenings if last is None else self.happenings[-last:]:
            yield f"{happening.at:11.6f}  {self.named(str(happening))}"

    def named(self, text: str) -> str:
        """Return a text with the clients' names in the place of their UUIDs."""
        return _CLIENT_ID.sub(lambda match: self.names.get(match[0], match[0]), text)

    def text(self, last: int | None = None) -> str:
        """Return the lines as one text."""
        return "".join(f"{line}\n" for line in self.lines(last))
