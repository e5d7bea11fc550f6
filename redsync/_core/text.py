"""Foreign text, made safe for people to read: in error messages, log lines and on terminals.

Programs that can write to a node, and the nodes themselves, choose names, hosts, programs, versions and error texts.
Unescaped, these could move a terminal's cursor, recolour it, hide text, or begin a line that looks like one of ours. So
we escape them where they become part of our text. Values for programs, such as the host that `inspect` returns, stay
unchanged.
"""

from __future__ import annotations

import re
import reprlib

__all__ = ["is_refusal", "one_line", "outline", "printable", "split_urls"]

LONGEST = 200

_REFUSALS = (
    *("noauth", "wrongpass", "noperm", "authentication required", "username-password", "no permission"),
    "without any password configured",  # it got a password, but has none
)


def is_refusal(text: str) -> bool:
    """Return whether a node's error says that it wants another password, or forbids a command."""
    return any(refusal in text.lower() for refusal in _REFUSALS)


def printable(text: str) -> str:
    """Return text with unprintable characters escaped: controls, line ends, direction marks, lone surrogates.

    Spaces stay, other white space is escaped. Printable characters stay, so a second call changes nothing.
    """
    if text.isprintable():
        return text
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in text)


def one_line(text: str) -> str:
    """Return an error's text as one short line."""
    return printable(" ".join(text.split()))[:LONGEST]


def split_urls(text: str) -> list[str]:
    """Return the URLs of a comma-separated list; a URL itself may have commas between its hosts."""
    return [url for part in re.split(r",(?=\s*[a-z+]+://)", text) if (url := part.strip().rstrip(",").strip())]


_outline = reprlib.Repr()
_outline.maxlevel, _outline.maxstring, _outline.maxother = 3, 60, 64


def outline(reply: object) -> str:
    """Return the beginning of a reply, for people; all of a deep one could take too much time or stack."""
    return _outline.repr(reply[:60] if isinstance(reply, bytes) else reply)[:80]
