"""The Lua scripts as values: a name, a source, a digest.

Each script is one file in `redsync/_lua`. A line `-- include: name` is replaced by the snippet `_lua/_name.lua`, so
that code which several scripts share (such as the hand-over) exists once. Comments are not sent: they would be half of
the text that a new node gets. Every script is idempotent: a duplicate, a resend or a missed node cannot corrupt
anything, because scripts set counts and never add to them.
"""

from __future__ import annotations

import hashlib
import re
from functools import cache
from importlib.resources import files
from typing import NamedTuple

__all__ = ["Script"]

_PASSING = (
    "_release",
    "_abandon",
    "_leave",
    "_settle",
    "_inspect",
    "_look",
    "client_announce",
    "client_withdraw",
    "_clock",
)
"""Suffixes of the names of scripts that claim nothing."""

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
