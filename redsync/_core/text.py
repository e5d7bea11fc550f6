"""Text that others chose, made fit for people: error texts, log lines, what a terminal shows.

Whoever can write to a node, or is one, chooses names, hosts, programs, versions and the words of errors. Raw, these
could move a terminal's cursor, recolour it, hide text, or begin a line that looks like one of ours. So they are escaped
where they become part of a text of ours. Values for programs, such as the host that `inspect` tells, stay as they are.
"""

from __future__ import annotations

__all__ = ["one_line", "printable"]

LONGEST = 200


def printable(text: str) -> str:
    """Return a text with all that is not printable escaped: controls, line ends, marks of direction, lone surrogates.

    Spaces stay, other white space does not. What is printable stays as it is, so to do it twice changes nothing.
    """
    if text.isprintable():
        return text
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in text)


def one_line(text: str) -> str:
    """Return a text of an error as one short line."""
    return printable(" ".join(text.split())[:LONGEST])
