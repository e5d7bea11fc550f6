"""Shared by the modules for frameworks: clients of processes, names, header fields.

1. One client for each process, created from settings at its first use, so after a server has forked its workers.
2. Names of synchronizers built from a framework's data: a request, a call's arguments, a cache's key.
3. Replies of web frameworks to requests that must not run now, with the header fields of rate limits.

draft-ietf-httpapi-ratelimit-headers-10 defines `RateLimit-Policy`, the quota, and `RateLimit`, the rest of the quota
and the time until there is more. RFC 9110 defines `Retry-After`. All times are whole seconds, rounded up.
"""

from __future__ import annotations

import atexit
import hashlib
import inspect
import math
import weakref
from collections.abc import Callable, Mapping
from string import Formatter
from types import MappingProxyType
from typing import Any, Final, NamedTuple

from redsync import AcquireTimeout, Client, ConfigurationError, LeaseLostError, QuorumError

__all__ = [
    "LONGEST",
    "Guard",
    "NameTemplate",
    "Policy",
    "ProcessClient",
    "Refusal",
    "make_client",
    "shortened",
    "unavailable",
]


def make_client(setting: str, given: Any, case: Callable[[str], str]) -> Client:
    """Return a new client configured by a setting, with the defaults of `Client.from_env`.

    Args:
        setting: The setting's name, for messages.
        given: Its value: a mapping of `URLS` and the options of `Client`.
        case: A function that turns `urls` or an option's name into a key, such as `str.upper`.

    Raises:
        ConfigurationError: The setting is not a mapping, or has an unknown key or a bad value.
    """
    if not isinstance(given, Mapping):
        # Not its value, which may contain a password.
        what = f"a dictionary such as {{{case('urls')!r}: [...]}}, not a value of type {type(given).__name__}"
        raise ConfigurationError(f"{setting} must be {what}")
    options = {case(name): name for name in ("urls", *inspect.signature(Client).parameters) if name != "nodes"}
    if unknown := [key for key in given if key not in options]:
        known = ", ".join(sorted(options))
        raise ConfigurationError(f"{setting}[{unknown[0]!r}] is not a setting; the settings are {known}")
    values = {options[key]: value for key, value in given.items()}
    urls = values.pop("urls", ())
    try:
        return Client.from_env([urls] if isinstance(urls, str) else urls, **values)
    except (ConfigurationError, TypeError, ValueError) as error:
        raise ConfigurationError(f"{setting}: {error}") from error


class ProcessClient:
    """Creates the client of a process at its first use, and closes it when the process ends."""

    def __init__(self, make: Callable[[], Client]) -> None:
        """Store `make`, which returns a new client; the first `get` calls it."""
        self._make: Final = make
        # No lock, which another thread might hold during a fork: the first client that gets in here counts.
        self._made: Final[dict[str, Client]] = {}
        _all[id(self)] = self

    def get(self) -> Client:
        """Return the client; after a fork, the child uses its parent's object as a new client.

        Raises:
            ConfigurationError: The settings have no URLs, or a bad value.
        """
        client = self._made.get("client")
        if client is None:
            made = self._make()
            client = self._made.setdefault("client", made)
            if client is not made:
                made.close()
        return client

    def close(self) -> None:
        """Close the client, which releases its holds; the next use creates a new one."""
        client = self._made.pop("client", None)
        if client is not None:
            client.close()


_all: weakref.WeakValueDictionary[int, ProcessClient] = weakref.WeakValueDictionary()


def close_all() -> None:
    """Close the clients of this process, if it ends without running Python's finalizers."""
    # A list, because a client that is made meanwhile ends the iteration of a weak collection with an error.
    for reference in _all.valuerefs():
        if (client := reference()) is not None:
            client.close()


atexit.register(close_all)


LONGEST: Final = 256
"""The longest text, in bytes, that becomes part of a name."""

_LONGEST_NAME: Final = 512


def shortened(text: str, most: int = LONGEST) -> str:
    """Return the text, or its hash if it has more bytes."""
    encoded = text.encode("utf-8", "surrogatepass")
    return text if len(encoded) <= most else hashlib.sha256(encoded).hexdigest()


class NameTemplate:
    """A synchronizer's name with fields such as `{number}`, filled in from a request or a call."""

    def __init__(self, text: str) -> None:
        """Check the template.

        Raises:
            TypeError: `text` is not a string.
            ValueError: `text` is empty, or a field has no valid name.
        """
        if not isinstance(text, str):
            raise TypeError(f"a name must be a string such as 'order:{{number}}', not {text!r}")
        try:
            fields = [field for _, field, _, _ in Formatter().parse(text) if field is not None]
        except ValueError as error:
            raise ValueError(f"the name {text!r} is not a valid template: {error}") from None
        if not text or not all(field.isidentifier() for field in fields):
            raise ValueError(f"a name must be text, with fields such as '{{number}}' if any, not {text!r}")
        self.text: Final = text
        self.fields: Final = frozenset(fields)

    def fill(self, values: Mapping[str, Any]) -> str:
        """Return the name, or its hash if it is too long: requests and calls choose its values.

        Raises:
            LookupError: A field has no value.
        """
        if missing := sorted(self.fields - values.keys()):
            known = ", ".join(sorted(values)) or "nothing"
            raise LookupError(f"the name {self.text!r} needs {', '.join(missing)}, but there is only {known}")
        return shortened(self.text.format_map(values), _LONGEST_NAME)


class Refusal(NamedTuple):
    """The reply to a request that must not run now: the status, the text, and additional header fields."""

    status: int
    text: str
    fields: Mapping[str, str]


def unavailable(fields: Mapping[str, str] = MappingProxyType({})) -> Refusal:
    """Return the reply if too few nodes answer, or a lock was lost."""
    return Refusal(503, "the lock service is unavailable", fields)


class Guard:
    """A lock that a web framework holds while it handles a request.

    Attributes:
        name: The template of the lock's name.
        options: Options of `get_lock`.
    """

    def __init__(self, name: str, *, timeout: float, busy: int, **options: Any) -> None:
        """Check the options; `busy`: the status if others hold the lock longer than `timeout`.

        Raises:
            TypeError: `name` is not a string.
            ValueError: `name` is not a template, `timeout` is negative, or `busy` is not an error status.
        """
        self.name: Final = NameTemplate(name)
        if not timeout >= 0:
            raise ValueError(f"timeout must be a number of seconds, 0 or more, not {timeout!r}")
        if busy not in range(400, 600):
            raise ValueError(f"busy must be an error status such as 423 or 409, not {busy!r}")
        self.options: Final = {"timeout": timeout, **options}
        self._busy: Final = busy

    def refusal(self, error: AcquireTimeout | QuorumError | LeaseLostError, name: str | bytes) -> Refusal:
        """Return the reply for an error of the lock with that name; raise the error of another lock.

        That one concerns the code that handles the request.
        """
        if error.name != name:
            raise error
        if isinstance(error, AcquireTimeout):
            return Refusal(self._busy, "the resource is locked", {"Retry-After": "1"})
        return unavailable()


class Policy:
    """A rate limit in header fields.

    Attributes:
        fields: `RateLimit-Policy`, for every reply.
    """

    def __init__(self, name: str, rate: int, per: float) -> None:
        """Describe a limiter; `name` identifies the policy, so pass the template, not a filled-in name."""
        printable = "".join(letter if " " <= letter <= "~" else "?" for letter in name)
        escaped = printable.replace("\\", "\\\\").replace('"', '\\"')
        self._name: Final = f'"{escaped}"'
        self.fields: Final = {"RateLimit-Policy": f"{self._name};q={rate};w={math.ceil(per)}"}

    def refusal(self, retry_after: float) -> Refusal:
        """Return the reply to a refused request."""
        seconds = max(math.ceil(retry_after), 1)
        fields = {**self.fields, "RateLimit": f"{self._name};r=0;t={seconds}", "Retry-After": str(seconds)}
        return Refusal(429, "too many requests", fields)
