"""Common helpers for tests of a transport and its parts; the rig itself is a fixture of `tests/drivers`."""

import sys

from redsync._core.replies import ReplyReader
from redsync._drivers.links import Link

MANY = 40 if sys.version_info < (3, 12) else 10
"""The least number of points at which an interruption can come; later versions of Python have fewer."""

TOO_MANY = 10
"""Faults after which a test has seen enough."""

LATER = 1e12


def choices(tally):
    return [choice.value if choice else None for choice in tally.choices]


class Wire(Link):
    """A link without a network: it reads what the test provides."""

    swift = True

    def __init__(self, node):
        super().__init__(node)
        reader = ReplyReader()
        self.feed, self.gets, self.has_more = reader.feed, reader.gets, reader.has_more
        self.sent = []
        self.come = b""
        self.is_shut = False

    def read(self):
        data, self.come = self.come, b""
        return data or None

    def send(self, data):
        self.sent.append(data)
        return len(data)

    def write(self, data):
        self.send(data)

    def keep(self, data):
        self.send(data)

    def flush(self):
        pass

    def shut(self):
        self.is_shut = True

    def forget(self):
        pass
