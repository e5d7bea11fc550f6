"""Replies: each reply goes to the request that it answers.

Requests and replies of a connection are matched by counting alone. Once the count slips by one, every later reply goes
to the wrong request: a refusal counts as a grant. So each time a client matches a reply,

* the request that gets it is, byte for byte, the next one that the node has answered over that connection; only the
  names of server processes in it may be later ones, as a command for a voter is spelled whenever it is sent;
* the reply is the node's answer to that request, or says that too few of the node's replicas have it.

It holds at every instant, whatever the faults: a connection breaks, but never loses or repeats part of a stream.

Not seen: commands sent before a connection is in use, and pushes.
"""

from __future__ import annotations

import functools
from typing import Any

import hiredis

from redsync._core.effects import Command
from redsync._core.memory import Guard
from redsync._drivers.acknowledgements import UNACKNOWLEDGED
from redsync._drivers.channels import pack
from redsync._drivers.requests import Request
from redsync.testing.simulator.checks.checker import Checker
from redsync.testing.simulator.happenings import Handed

__all__ = ["Replies"]

_SHOWN = 120
"""Characters of a request or reply that a complaint quotes."""


class Replies(Checker):
    """No request gets the reply to another one."""

    name = "replies"
    watches = (Handed,)

    def see(self, happening: Handed) -> str | None:
        """Compare the request with the one that the reply answers."""
        asked, words = happening.request.data, happening.words
        expected = self.sim.world.spell(happening.node, _words_in(asked))
        if (
            words
            and (words == expected or words == _with_guards_of(words, happening.request, expected))
            and (_same(happening.said, happening.heard) or _is_unacknowledged(happening.heard))
        ):
            return None
        node = self.sim.nodes[happening.node].name
        heard = f"{happening.client} took {_quote(happening.heard)} of {node} for the reply to {_quote(asked)}"
        if not words:
            return f"{heard}, but the node has replied to nothing since the last one"
        return f"{heard}, but the node had replied {_quote(happening.said)} to {_quote(b' '.join(words))}"


@functools.lru_cache(maxsize=64)
def _words_in(data: bytes) -> list[bytes] | None:
    """Return the words of a command; None unless the bytes are exactly one. Cached, as several nodes answer it."""
    reader = hiredis.Reader()
    reader.feed(data)
    words: list[bytes] = reader.gets()
    return words if pack(*words) == data else None


def _with_guards_of(words: list[bytes], request: Request, expected: list[bytes] | None) -> list[bytes] | None:
    """Return the expected words of a request with the names of processes that the node got."""
    command = request.command
    if expected is None or not isinstance(command, Command) or len(words) != len(expected):
        return expected
    first = len(expected) - len(command.args)
    guards = {first + i for i, word in enumerate(command.args) if isinstance(word, Guard)}
    return [words[i] if i in guards else word for i, word in enumerate(expected)]


def _same(said: Any, heard: Any) -> bool:
    """Return whether a client's reader can have parsed `heard` from a node's `said`."""
    if isinstance(said, list):
        pairs = zip(said, heard, strict=True) if isinstance(heard, list) and len(said) == len(heard) else None
        return pairs is not None and all(_same(*pair) for pair in pairs)
    if isinstance(said, hiredis.ReplyError):
        return isinstance(heard, hiredis.ReplyError) and str(heard) == str(said).replace("\n", " ")
    return bool(said == heard)


def _is_unacknowledged(heard: Any) -> bool:
    return isinstance(heard, hiredis.ReplyError) and str(heard).startswith(UNACKNOWLEDGED)


def _quote(what: Any) -> str:
    text = what.decode(errors="replace") if isinstance(what, bytes) else str(what)
    text = " ".join(text.split())
    return text if len(text) <= _SHOWN else f"{text[:_SHOWN]}..."
