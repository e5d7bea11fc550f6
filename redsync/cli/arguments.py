"""Arguments of several commands: names as they were typed, numbers that are checked at once, the option for JSON."""

from __future__ import annotations

import argparse
import math
from collections.abc import Callable

__all__ = ["add_json", "encoded", "name_of", "seconds", "whole"]


def encoded(text: str) -> bytes:
    """Return a word of the command line as the bytes that were typed."""
    return text.encode("utf-8", "surrogateescape")


def name_of(text: str) -> str | bytes:
    """Return a name of the command line as the library takes it: as bytes only if it is not valid text."""
    try:
        text.encode()
    except UnicodeEncodeError:
        return encoded(text)
    return text


def add_json(parser: argparse.ArgumentParser, what: str = "write JSON to standard output") -> None:
    """Add the option that asks for output that programs read."""
    parser.add_argument("--json", action="store_true", help=what)


def whole(least: int, most: int | None = None) -> Callable[[str], int]:
    """Return a function that reads a whole number of that range."""
    allowed = f"from {least} on" if most is None else f"from {least} to {most:,}"

    def read(text: str) -> int:
        number = int(text) if text.isascii() and text.isdigit() else None
        if number is None or number < least or (most is not None and number > most):
            raise argparse.ArgumentTypeError(f"must be a whole number {allowed}, not {text!r}")
        return number

    return read


def seconds(least: float | None = None, most: float = math.inf) -> Callable[[str], float]:
    """Return a function that reads a time in seconds.

    Args:
        least: The shortest allowed time; None for any above 0.
        most: The longest.
    """
    if least is None:
        allowed = "a positive number of seconds"
    elif most < math.inf:
        allowed = f"a number of seconds from {least:g} to {most:,.0f}"
    else:
        allowed = "a number of seconds"

    def read(text: str) -> float:
        try:
            number = float(text)
        except ValueError:
            number = math.nan
        longer = number > 0 if least is None else number >= least
        if not (longer and number <= most and math.isfinite(number)):
            raise argparse.ArgumentTypeError(f"must be {allowed}, not {text!r}")
        return number

    return read
