"""The data of one virtual node, and its execution of commands.

The clock is an argument, so a simulation decides the node's time, and nodes may disagree. Keys expire in whole
milliseconds, lazily: a key that is due is removed when a command looks for it.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Final, TypeVar

from redsync.exceptions import RedsyncError
from redsync.testing.simulator import commands, sorted_sets
from redsync.testing.simulator.commands import Command
from redsync.testing.simulator.values import (
    NEVER,
    CommandError,
    Entry,
    Hash,
    Reply,
    SortedSet,
    Value,
    WrongTypeError,
    copy_of,
)

__all__ = ["COMMANDS", "Refusal", "Store", "UnknownCommandError", "find_command"]

V = TypeVar("V", bytes, Hash, SortedSet)

COMMANDS = commands.COMMANDS | sorted_sets.COMMANDS

_GROWING = frozenset(b"set setnx incr incrby setbit hset hincrby zadd".split())
"""Commands that nodes refuse when they are out of memory."""

_WRITING = _GROWING | frozenset(b"del pexpire expire pexpireat hdel zrem zremrangebyscore".split())
"""Commands that nodes refuse when they can't write."""


class UnknownCommandError(RedsyncError, LookupError):
    """A script used a command that virtual nodes lack; real ones may have it."""


def find_command(name: bytes) -> Command:
    """Return a command's function; the case of letters does not matter.

    Raises:
        UnknownCommandError: There is none.
    """
    command = COMMANDS.get(name.lower())
    if command is None:
        raise UnknownCommandError(
            f"virtual nodes lack the command {name.decode(errors='replace')!r}: "
            f"add it to redsync.testing.simulator.commands"
        )
    return command


def to_none(_channel: bytes, _message: bytes) -> int:
    """Publish to no subscribers; return 0."""
    return 0


class Refusal:
    """The reason why a node lets no script write: it can't save its data, it is a replica, or it is out of memory.

    A node out of memory still executes commands that need no memory, and all that a script does after its first write.
    """

    def __init__(self, text: str) -> None:
        self._text = text
        self._oom = text.startswith("OOM")
        self._written = False

    def begin(self) -> None:
        """Let a script begin."""
        self._written = False

    def look_at(self, name: bytes) -> None:
        """Check that a script may execute a command.

        Raises:
            CommandError: It may not.
        """
        name = name.lower()
        if name in _WRITING:
            if not self._oom or (name in _GROWING and not self._written):
                raise CommandError(self._text)
            self._written = True


_eras: Final = itertools.count()
"""Numbers that no two stores share, so that one may load the state of another."""


class Store:
    """The keyspace of one node.

    No time passes between two calls of `read_clock`, so a script sees one instant throughout, as on a real node.

    Args:
        clock: The node's time, in seconds since the epoch.
        publish: Called with channel and message of each PUBLISH; returns the number of subscribers that got it.

    Attributes:
        run_id: The identity of the process.
        now_us: The instant that commands see, in microseconds.
        now_ms: The same in whole milliseconds.
        refusal: The reason why scripts can't write; None if they can.
    """

    def __init__(self, clock: Callable[[], float], publish: Callable[[bytes, bytes], int] = to_none) -> None:
        self._clock = clock
        self._entries: dict[bytes, Entry] = {}
        self._era = next(_eras)
        self.publish = publish
        self.refusal: Refusal | None = None
        self.run_id = b""
        self.read_clock()

    def read_clock(self) -> None:
        """Set the node's present to the time on its clock."""
        self.now_us = round(self._clock() * 1_000_000)
        self.now_ms = self.now_us // 1000

    def execute(self, name: bytes, *words: bytes) -> Reply:
        """Execute one command at the present instant.

        Raises:
            CommandError: The node refuses it.
            UnknownCommandError: Virtual nodes lack it.
        """
        self.read_clock()
        return find_command(name)(self, *words)

    def peek(self, key: bytes) -> tuple[Value, int | None] | None:
        """Return a key's value, and for how many more ms it lasts (None: forever), without removing anything."""
        found = self.look(key)
        if found is None:
            return None
        entry, now_ms = found
        return entry.value, None if entry.expires == NEVER else entry.expires - now_ms

    def look(self, key: bytes) -> tuple[Entry, int] | None:
        """Return a key's entry, and the node's present time in ms; None if the key does not exist."""
        entry = self._entries.get(key)
        if entry is None:
            return None
        now_ms = round(self._clock() * 1_000_000) // 1000
        return None if entry.expires < now_ms else (entry, now_ms)

    def flush(self) -> None:
        """Forget everything, as after FLUSHALL or a restart without data."""
        self._entries.clear()

    def snapshot(self) -> dict[bytes, tuple[Value, int | None]]:
        """Return a copy of all keys: each with its value, and for how many more ms it lasts (None: forever)."""
        self.read_clock()
        return {
            key: (
                copy_of(entry.value),
                None if entry.expires == NEVER else entry.expires - self.now_ms,
            )
            for key in sorted(self._entries)
            if (entry := self.find(key)) is not None
        }

    def copy(self) -> dict[bytes, Entry]:
        """Return the present state for `load`; an entry is copied only when it is looked up again."""
        self._era = next(_eras)
        return dict(self._entries)

    def differs(self, entries: dict[bytes, Entry]) -> bool:
        """Return whether the present state differs from that of a copy."""
        if len(entries) != len(self._entries):
            return True
        for key, entry in self._entries.items():
            before = entries.get(key)
            if before is not entry and (
                before is None or before.expires != entry.expires or before.value != entry.value
            ):
                return True
        return False

    def load(self, entries: dict[bytes, Entry]) -> None:
        """Restore the state of a copy, of this store or another; keys that came due meanwhile expire."""
        self._era = next(_eras)
        self._entries = dict(entries)

    # For the commands.

    def find(self, key: bytes) -> Entry | None:
        """Return a key's entry; None if it does not exist or has expired."""
        entry = self._entries.get(key)
        if entry is None:
            return None
        if entry.expires < self.now_ms:
            del self._entries[key]
            return None
        if entry.era != self._era:
            entry = self._entries[key] = Entry(copy_of(entry.value), entry.expires, self._era)
        return entry

    def find_value(self, key: bytes, kind: type[V]) -> V | None:
        """Return a key's value, to be changed in place; None if the key does not exist.

        Raises:
            WrongTypeError: The value is of another kind.
        """
        entry = self.find(key)
        if entry is None:
            return None
        if type(entry.value) is not kind:
            raise WrongTypeError
        return entry.value

    def put(self, key: bytes, value: Value, expires: int = NEVER) -> None:
        """Replace a key's value and its expiry."""
        self._entries[key] = Entry(value, expires, self._era)

    def adopt(self, key: bytes, entry: Entry, now_ms: int) -> None:
        """Take over a key of another store, whose clock showed `now_ms`; the rest of its lifetime is the same."""
        self.read_clock()
        expires = entry.expires if entry.expires == NEVER else entry.expires - now_ms + self.now_ms
        self.put(key, copy_of(entry.value), expires)

    def remove(self, key: bytes) -> bool:
        """Forget a key; return whether it existed."""
        if self.find(key) is None:
            return False
        del self._entries[key]
        return True
