"""Arguments that several commands share: names, checked numbers, addresses, and the option for JSON."""

from __future__ import annotations

import argparse
import math
from collections.abc import Callable

from redsync._core.keys import encode_name

__all__ = ["add_json", "address", "encoded", "name", "name_of", "seconds", "whole"]


def encoded(text: str) -> bytes:
    """Return a word of the command line as the bytes that the user typed."""
    return text.encode("utf-8", "surrogateescape")


def name(text: str) -> str:
    """Return a name of the command line unchanged, if it is as long as a name may be."""
    try:
        encode_name(encoded(text))
    except ValueError as error:
        raise argparse.ArgumentTypeError(str(error)) from None
    return text


def name_of(text: str) -> str | bytes:
    """Return a name of the command line for the library: text, or bytes if it is not valid text."""
    try:
        text.encode()
    except UnicodeEncodeError:
        return encoded(text)
    return text


def add_json(parser: argparse.ArgumentParser, what: str = "write JSON to standard output") -> None:
    """Add the option `--json`."""
    parser.add_argument("--json", action="store_true", help=what)


def address(text: str) -> tuple[str, int]:
    """Return host and port of `HOST:PORT`; brackets enclose an IPv6 address."""
    host, colon, port = text.rpartition(":")
    if host.startswith("[") and host.endswith("]"):
        host = host[1:-1]
    elif ":" in host:
        host = ""
    if not (host and colon and port.isascii() and port.isdigit() and int(port) < 65536):
        raise argparse.ArgumentTypeError(f"must be HOST:PORT, such as 127.0.0.1:9465 or [::1]:9465, not {text!r}")
    return host, int(port)


def whole(least: int, most: int | None = None) -> Callable[[str], int]:
    """Return a function that parses a whole number in that range."""
    allowed = f"of {least} or more" if most is None else f"from {least} to {most:,}"

    def read(text: str) -> int:
        number = int(text) if text.isascii() and text.isdigit() else None
        if number is None or number < least or (most is not None and number > most):
            raise argparse.ArgumentTypeError(f"must be a whole number {allowed}, not {text!r}")
        return number

    return read


def seconds(least: float | None = None, most: float = math.inf) -> Callable[[str], float]:
    """Return a function that parses a time in seconds, at least `least` (None: any above 0) and at most `most`."""
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
