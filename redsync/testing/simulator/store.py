"""What one virtual node remembers, and its execution of commands.

The node has no clock of its own: it is handed in, so that a simulation decides what time it is there, and no two nodes
need agree. Keys expire in whole milliseconds, lazily: one that is due is removed when somebody looks for it.
"""

from __future__ import annotations

from collections.abc import Callable

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

COMMANDS = commands.COMMANDS | sorted_sets.COMMANDS

_GROWING = frozenset(b"set setnx incr incrby setbit hset hincrby zadd zincrby".split())
"""Commands that nodes without memory refuse."""

_WRITING = _GROWING | frozenset(
    b"del persist pexpire expire pexpireat hdel zrem zremrangebyscore zremrangebyrank zpopmin".split()
)
"""Commands that nodes refuse that can't write."""


class UnknownCommandError(RedsyncError, LookupError):
    """A script used a command that virtual nodes do not have; real ones may."""


def find_command(name: bytes) -> Command:
    """Return a command's function; upper and lower case are the same.

    Raises:
        UnknownCommandError: There is none.
    """
    command = COMMANDS.get(name.lower())
    if command is None:
        raise UnknownCommandError(
            f"virtual nodes do not have the command {name.decode(errors='replace')!r}: "
            f"add it to redsync.testing.simulator.commands"
        )
    return command


def nobody_listens(_channel: bytes, _message: bytes) -> int:
    """Publish to nobody."""
    return 0


class Refusal:
    """Why a node lets no script write: it can't save its data, it is a replica, or it is out of memory.

    Commands that need no memory are executed without any, and so is all that a script does once it has written.

    Args:
        text: The error.
    """

    __slots__ = ("_oom", "_text", "_written")

    def __init__(self, text: str) -> None:
        self._text = text
        self._oom = text.startswith("OOM")
        self._written = False

    def begin(self) -> None:
        """Let a script begin."""
        self._written = False

    def look_at(self, name: bytes) -> None:
        """Return if a script may execute a command.

        Raises:
            CommandError: It may not.
        """
        name = name.lower()
        if name in _WRITING:
            if not self._oom or (name in _GROWING and not self._written):
                raise CommandError(self._text)
            self._written = True


class Store:
    """The keyspace of one node.

    Time stands still between two calls of `read_clock`, so that a script sees one instant from its beginning to its
    end, as on a real node.

    Args:
        clock: The node's time, in seconds since the epoch.
        publish: Gets channel and message of each PUBLISH; returns how many subscribers got it.

    Attributes:
        publish: As given.
        run_id: The identity of the process.
        now_us: The instant that commands see, in microseconds.
        now_ms: The same in whole milliseconds.
        refusal: Why scripts can't write; None if they can.
    """

    __slots__ = ("_clock", "_entries", "_era", "now_ms", "now_us", "publish", "refusal", "run_id")

    def __init__(self, clock: Callable[[], float], publish: Callable[[bytes, bytes], int] = nobody_listens) -> None:
        self._clock = clock
        self._entries: dict[bytes, Entry] = {}
        self._era = 0
        self.publish = publish
        self.refusal: Refusal | None = None
        self.run_id = b""
        self.read_clock()

    def read_clock(self) -> None:
        """Let the node's present be what its clock says."""
        self.now_us = round(self._clock() * 1_000_000)
        self.now_ms = self.now_us // 1000

    def execute(self, name: bytes, *words: bytes) -> Reply:
        """Execute one command at the present instant.

        Raises:
            CommandError: The node refuses it.
            UnknownCommandError: Virtual nodes do not have it.
        """
        self.read_clock()
        return find_command(name)(self, *words)

    def peek(self, key: bytes) -> tuple[Value, int | None] | None:
        """Return what a key stands for now, and for how many ms yet, None for ever; not even what is due is removed."""
        found = self.look(key)
        if found is None:
            return None
        entry, now_ms = found
        return entry.value, None if entry.expires == NEVER else entry.expires - now_ms

    def look(self, key: bytes) -> tuple[Entry, int] | None:
        """Return what a key stands for now, and the ms of the node's clock that this is; None if it is not there."""
        entry = self._entries.get(key)
        if entry is None:
            return None
        now_ms = round(self._clock() * 1_000_000) // 1000
        return None if entry.expires < now_ms else (entry, now_ms)

    def flush(self) -> None:
        """Forget everything, as FLUSHALL and a restart without data do."""
        self._entries.clear()

    def snapshot(self) -> dict[bytes, tuple[Value, int | None]]:
        """Return a copy of all that is there now: the values, and for how many ms each is kept, None for ever."""
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
        """Return what `load` takes: all that is there now. Nothing is copied before it is looked up again."""
        self._era += 1
        return dict(self._entries)

    def load(self, entries: dict[bytes, Entry]) -> None:
        """Let all be as it was when that copy was made; what was due meanwhile expires."""
        self._era += 1
        self._entries = dict(entries)

    # For the commands.

    def find(self, key: bytes) -> Entry | None:
        """Return what a key stands for, None if it is not there (any more)."""
        entry = self._entries.get(key)
        if entry is None:
            return None
        if entry.expires < self.now_ms:
            del self._entries[key]
            return None
        if entry.era != self._era:
            entry = self._entries[key] = Entry(copy_of(entry.value), entry.expires, self._era)
        return entry

    def find_string(self, key: bytes) -> bytes | None:
        """Return a string, None if the key is not there."""
        entry = self.find(key)
        if entry is None:
            return None
        if type(entry.value) is not bytes:
            raise WrongTypeError
        return entry.value

    def find_hash(self, key: bytes) -> Hash | None:
        """Return a hash, to be changed in place, None if the key is not there."""
        entry = self.find(key)
        if entry is None:
            return None
        if type(entry.value) is not Hash:
            raise WrongTypeError
        return entry.value

    def find_sorted_set(self, key: bytes) -> SortedSet | None:
        """Return a sorted set, to be changed in place, None if the key is not there."""
        entry = self.find(key)
        if entry is None:
            return None
        if type(entry.value) is not SortedSet:
            raise WrongTypeError
        return entry.value

    def put(self, key: bytes, value: Value, expires: int = NEVER) -> None:
        """Replace what a key stands for, and its expiry."""
        self._entries[key] = Entry(value, expires, self._era)

    def remove(self, key: bytes) -> bool:
        """Forget a key; return whether it was there."""
        if self.find(key) is None:
            return False
        del self._entries[key]
        return True
