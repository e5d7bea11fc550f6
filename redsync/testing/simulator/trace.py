"""The trace: all that happened in a run, readable, and byte for byte the same for the same seed."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Final

from redsync.testing.simulator.happenings import Happening

__all__ = ["Trace"]

_CLIENT_ID = re.compile(r"[0-9a-f]{8}-[0-9a-f]{4}-4[0-9a-f]{3}-[0-9a-f]{4}-[0-9a-f]{12}")
_PROCESS = re.compile(r"\b[0-9a-f]{16}\b")


class Trace:
    """The happenings so far, in order.

    Attributes:
        happenings: All happenings.
        add: Adds a happening.
        names: The clients' names, by UUID.
        processes: The names of server processes, by their identity in birth records.
    """

    def __init__(self) -> None:
        self.happenings: Final[list[Happening]] = []
        self.add: Final = self.happenings.append
        self.names: Final[dict[str, str]] = {}
        self.processes: Final[dict[str, str]] = {}

    def name_process(self, process: bytes, node: str) -> None:
        """Name a server process after its node, numbered."""
        count = sum(name.startswith(f"{node}.") for name in self.processes.values())
        self.processes[process.decode()] = f"{node}.{count + 1}"

    def lines(self, last: int | None = None) -> Iterator[str]:
        """Return one line per happening; with `last`, only for that many last ones."""
        for happening in self.happenings if last is None else self.happenings[-last:]:
            yield f"{happening.at:11.6f}  {self.named(str(happening))}"

    def named(self, text: str) -> str:
        """Return a text in which names replace the identities of clients and server processes."""
        text = _CLIENT_ID.sub(lambda match: self.names.get(match[0], match[0]), text)
        return _PROCESS.sub(lambda match: self.processes.get(match[0], match[0]), text)

    def text(self, last: int | None = None) -> str:
        """Return the lines as one text."""
        return "".join(f"{line}\n" for line in self.lines(last))
