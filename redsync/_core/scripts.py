"""The Lua scripts as values: a name, a source, a digest; and commands, which execute them.

Each script is one file in `redsync/_lua`. A line `-- include: name` is replaced by the snippet `_lua/_name.lua`, so
that code which several scripts share (such as the hand-over) exists once. Comments are not sent: they would be half of
the text that a new node gets. Every script is idempotent: a duplicate, a resend or a missed node cannot corrupt
anything, because scripts set counts and never add to them.

**Kinds of claims:** what nodes keep for one holder at a time, and the scripts that make, end and renew it.

All kinds follow one convention, so trying, waiting, renewing, losing and releasing are written once:

* `acquire`: KEYS claim, and from a waiter queue and places (for a kind with modes, from every new acquire); ARGV claim,
  hold count, lease in ms, guard (ms and processes), and from a waiter: how long to keep its place in ms, its rank (ms
  waited so far, or ticket), wake channel, ask id. Reply 1 new, 2 was ours already, [remaining ms or -1, holder, its or
  the highest ticket or 0, number of waiters before it if it has a place] held, 0 foreign type, or the error FORGETFUL.
  With fencing tokens: one more key, the node's latest token, and one more argument, the highest known token; the reply
  to a grant is token instead of 1, -token instead of 2.
* `release`: KEYS claim, queue, places; ARGV claim, hold count, Redisson's channel. Reply 1 had ours, or 0. At count 0
  the script hands the freed lock over to the head of the queue, for the lease in the ask id of the head if it has one.
  An attempt is rolled back by the same script: with count 0, or -1 to keep its place.
* `renew`: KEYS claims; ARGV claim, hold count and lease in ms of each, and 1 if memory is guarded. Reply for each
  2 ours, 1 repaired, 0 not ours, -1 foreign type.

Permits differ: they claim *slots*, and nodes may grant different ones. Their `acquire` has more arguments and other
replies (see `_protocols.slot_claims`), their `release` says which slots remain, their `renew` which to keep, and
carries the limits of their semaphores. Another script, `abandon`, rolls back, and may restore the place.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Callable
from functools import cache
from importlib.resources import files
from typing import Any, NamedTuple, TypeAlias

__all__ = ["Arg", "ClaimKind", "Command", "Script"]

Arg: TypeAlias = bytes | int | Callable[[], bytes]
"""An argument of a script; a function makes it when the command is sent."""

_PASSING = ("_release", "_abandon", "_leave", "_confirm", "name_inspect", "names_scan", "client_announce")
"""Suffixes of the names of scripts that write nothing on which others rely; a look at a semaphore writes its limit."""

_FOLDER = files("redsync").joinpath("_lua")
_INCLUDE = re.compile(r"^-- include: (\w+)$", re.MULTILINE)
_COMMENT = re.compile(r"^[ ]*--.*\n", re.MULTILINE)


@cache
def _read(file_name: str) -> str:
    return _FOLDER.joinpath(file_name).read_text("utf-8")


def _expand(text: str) -> str:
    """Replace each line that includes a snippet; snippets may include others."""
    return _INCLUDE.sub(lambda match: _expand(_read(f"_{match[1]}.lua")), text)


class Script(NamedTuple):
    """One script that nodes execute atomically.

    Attributes:
        name: The file's name without `.lua`.
        source: The text that the node gets, UTF-8.
        sha: The SHA-1 by which the node knows the script, hexadecimal ASCII.
    """

    name: str
    source: bytes
    sha: bytes

    def __repr__(self) -> str:
        return f"{type(self).__name__}(name={self.name!r})"

    @property
    def must_last(self) -> bool:
        """True if others rely on what it writes, so that a node's replicas must have it before its vote counts."""
        return not self.name.endswith(_PASSING)

    @classmethod
    @cache
    def load(cls, name: str) -> Script:
        """Return the script in `_lua/<name>.lua`, always the same object."""
        source = _COMMENT.sub("", _expand(_read(f"{name}.lua"))).encode()
        return cls(name, source, hashlib.sha1(source, usedforsecurity=False).hexdigest().encode())

    @classmethod
    @cache
    def shipped(cls) -> tuple[Script, ...]:
        """Return all scripts of the package, for nodes to load before their first use."""
        names = sorted(entry.name for entry in _FOLDER.iterdir())
        return tuple(cls.load(name[:-4]) for name in names if name.endswith(".lua") and not name.startswith("_"))


class Command(NamedTuple):
    """A script with its keys and arguments, the same for every node.

    Attributes:
        script: The script to execute.
        keys: The script's KEYS.
        args: The script's ARGV.
    """

    script: Script
    keys: tuple[bytes, ...]
    args: tuple[Arg, ...]

    @property
    def words(self) -> tuple[bytes | int, ...]:
        """The arguments as a driver would send them now."""
        return tuple(arg() if callable(arg) else arg for arg in self.args)


class ClaimKind(NamedTuple):
    """The scripts of one kind of claim, and how its waiters queue.

    Attributes:
        value_type: The type of the value at its key, as the nodes call it.
        acquire: Claims, or refuses and queues.
        release: Lowers the hold count; at 0 hands the lock over to the next waiter.
        abandon: Rolls an attempt back; for all but permits the same as `release`.
        renew: Lengthens many claims.
        label: The noun for it in messages.
        mode: Distinguishes kinds that share a lock's keys and scripts: their claims begin with it. Empty if none does.
            With a mode, even an acquire that does not wait respects the queue.
        queue: Makes the policy by which its waiters queue, which must fit `acquire`.
    """

    value_type: bytes
    acquire: Script
    release: Script
    abandon: Script
    renew: Script
    label: str = "lock"
    mode: bytes = b""
    queue: Any = None

    @property
    def shares_names(self) -> bool:
        """True if other libraries' locks may have the same key: those of Redisson, or of the Redlock family."""
        return self.value_type in (b"hash", b"string")

    def hold_count(self, acquisitions: int) -> int | bytes:
        """Return a hold count as an argument of scripts; empty for a mutex, which is a string and has none."""
        return b"" if self.value_type == b"string" else acquisitions

    @property
    def is_threads(self) -> bool:
        """True if a thread or task holds it; a mutex or permit belongs to its object."""
        return self.value_type == b"hash" or self.mode != b""

    @property
    def is_shared(self) -> bool:
        """True if several owners may hold it together."""
        return self.mode == b"r:"

    @classmethod
    def of(cls, noun: str, value_type: bytes, *, label: str = "lock") -> ClaimKind:
        """Return the kind whose scripts are called `<noun>_acquire` and so on."""
        acquire, release, renew = (Script.load(f"{noun}_{verb}") for verb in ("acquire", "release", "renew"))
        return cls(value_type, acquire, release, release, renew, label)
