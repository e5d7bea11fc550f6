"""Shared by the modules for frameworks: the client of a process, names, and guards of requests.

1. One client for each process, made from a setting at its first use, so after a server has forked its workers.
2. Names of synchronizers built from a framework's data: a request, a call's arguments, a cache's key.
3. Locks and rate limits of web frameworks, with the replies to requests that must not run now.

draft-ietf-httpapi-ratelimit-headers-10 defines `RateLimit-Policy`, the quota, and `RateLimit`, the rest of the quota
and the time until there is more. RFC 9110 defines `Retry-After`. All times are whole seconds, rounded up.
"""

from __future__ import annotations

import hashlib
import inspect
import math
import weakref
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from string import Formatter
from typing import Any, Final, Generic, NamedTuple, TypeAlias, TypeVar

from redsync import AcquireTimeout, Client, ConfigurationError, LeaseLostError, QuorumError

__all__ = [
    "CLIENTS",
    "LONGEST",
    "Decorators",
    "ErrorReply",
    "LockError",
    "NameTemplate",
    "Policy",
    "ProcessClient",
    "explained",
    "shortened",
]

LockT = TypeVar("LockT")
LimitT = TypeVar("LimitT")

LockError: TypeAlias = AcquireTimeout | QuorumError | LeaseLostError
"""The errors of a lock that say that the work must not run, or must stop."""


CLIENTS: Final[weakref.WeakSet[ProcessClient]] = weakref.WeakSet()
"""Those of this process, for a framework that ends it without running Python's finalizers."""


class ProcessClient:
    """The client of a process, made from a setting at its first use; it is closed when the process ends.

    Args:
        setting: The setting's name, for messages.
        read: A function that returns its value: a mapping of `urls` and the options of `Client`, in capitals if the
            setting's name is. The other defaults are those of `Client.from_env`.
    """

    def __init__(self, setting: str, read: Callable[[], Any]) -> None:
        self._setting: Final = setting
        self._read: Final = read
        # No lock, which another thread might hold during a fork: the first client that gets in here counts.
        self._made: Final[dict[str, Client]] = {}
        CLIENTS.add(self)

    def get(self) -> Client:
        """Return the client; after a fork, the child uses its parent's object as a new client.

        Raises:
            ConfigurationError: The setting is not a mapping, or has no URLs, an unknown key or a bad value.
        """
        client = self._made.get("client")
        if client is None:
            made = self.make()
            client = self._made.setdefault("client", made)
            if client is not made:
                made.close()
        return client

    def close(self) -> None:
        """Close the client, which releases its holds; the next use makes a new one."""
        client = self._made.pop("client", None)
        if client is not None:
            client.close()

    def check(self) -> None:
        """Raise the error that `get` would raise, without waiting for any node."""
        self.make().close()

    def make(self) -> Client:
        """Return a new client."""
        setting, given = self._setting, self._read()
        case = str.upper if setting.isupper() else str.lower
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


@contextmanager
def explained(name: str | bytes, explain: Callable[[LockError], Exception | None]) -> Iterator[None]:
    """Replace an error of the lock with that name by the error that `explain` returns; None: by no error.

    Another lock's error concerns the code inside.
    """
    try:
        yield
    except (AcquireTimeout, QuorumError, LeaseLostError) as error:
        if error.name != name:
            raise
        if (instead := explain(error)) is not None:
            raise instead from error


LONGEST: Final = 256
"""The longest text, in bytes, that becomes part of a name."""

_LONGEST_NAME: Final = 512


def shortened(text: str, most: int = LONGEST) -> str:
    """Return the text, or its hash if it has more bytes."""
    encoded = text.encode("utf-8", "surrogatepass")
    return text if len(encoded) <= most else hashlib.sha256(encoded).hexdigest()


class NameTemplate:
    """A synchronizer's name with fields such as `{number}`, filled in from a request or a call.

    Raises:
        TypeError: `text` is not a string.
        ValueError: `text` is empty, or a field has no valid name.
    """

    def __init__(self, text: str) -> None:
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


class ErrorReply(NamedTuple):
    """The reply to a request that must not run now: the status, the text, and additional header fields."""

    status: int
    text: str
    fields: Mapping[str, str] = {}


UNAVAILABLE: Final = ErrorReply(503, "the lock service is unavailable")
"""The reply if too few nodes answer, or a lock was lost."""


class Policy:
    """A rate limit in header fields; `name` identifies it, so it is the template, not a filled-in name.

    Attributes:
        fields: `RateLimit-Policy`, for every reply.
        unavailable: The reply if too few nodes answer.
    """

    def __init__(self, name: str, rate: int, per: float) -> None:
        printable = "".join(letter if " " <= letter <= "~" else "?" for letter in name)
        escaped = printable.replace("\\", "\\\\").replace('"', '\\"')
        self._name: Final = f'"{escaped}"'
        self.fields: Final = {"RateLimit-Policy": f"{self._name};q={rate};w={math.ceil(per)}"}
        self.unavailable: Final = UNAVAILABLE._replace(fields=self.fields)

    def refusal(self, retry_after: float) -> ErrorReply:
        """Return the reply to a refused request."""
        seconds = max(math.ceil(retry_after), 1)
        fields = {**self.fields, "RateLimit": f"{self._name};r=0;t={seconds}", "Retry-After": str(seconds)}
        return ErrorReply(429, "too many requests", fields)


class Decorators(ABC, Generic[LockT, LimitT]):
    """The locks and rate limits of a web framework, as decorators of views or dependencies of path operations.

    In their names `{number}` stands for the argument `number` of the path, and `{client}` for the client's address.
    """

    def lock(self, name: str, *, timeout: float = 0.5, busy: int = 423, **options: Any) -> LockT:
        """Return a guard that holds a lock while a request is handled.

        The reply is `busy` if others hold the lock longer than `timeout`, and 503 if too few nodes answer or the lock
        is lost.

        Args:
            name: The lock's name, such as `order:{number}`.
            timeout: Seconds to wait.
            busy: The status if others hold the lock: 423 (Locked), or 409 (Conflict).
            **options: Options of `get_lock`.

        Raises:
            TypeError: `name` is not a string.
            ValueError: `name` is not a template, `timeout` is negative, or `busy` is not an error status.
        """
        if not timeout >= 0:
            raise ValueError(f"timeout must be a number of seconds, 0 or more, not {timeout!r}")
        if busy not in range(400, 600):
            raise ValueError(f"busy must be an error status such as 423 or 409, not {busy!r}")
        refusal = ErrorReply(busy, "the resource is locked", {"Retry-After": "1"})

        def reply(error: LockError) -> Exception:
            return self._error(refusal if isinstance(error, AcquireTimeout) else UNAVAILABLE)

        return self._lock(NameTemplate(name), {"timeout": timeout, **options}, reply)

    def limit(self, name: str, rate: int, *, per: float) -> LimitT:
        """Return a guard that limits the rate of requests; beyond it, the reply is 429.

        Every reply has `RateLimit-Policy`; a 429 also has `Retry-After` and `RateLimit`. If too few nodes answer, the
        reply is 503.

        Args:
            name: The limiter's name, such as `pay:{client}`.
            rate: The number of requests allowed in `per` seconds.
            per: The window in seconds.

        Raises:
            TypeError: `name` is not a string.
            ValueError: `name` is not a template.
        """
        return self._limit(NameTemplate(name), rate, per, Policy(name, rate, per))

    @abstractmethod
    def _error(self, refusal: ErrorReply) -> Exception:
        """Return the error by which the framework makes that reply."""

    @abstractmethod
    def _lock(self, name: NameTemplate, options: dict[str, Any], reply: Callable[[LockError], Exception]) -> LockT:
        """Return the guard that `lock` describes; `reply` explains the lock's errors, see `explained`."""

    @abstractmethod
    def _limit(self, name: NameTemplate, rate: int, per: float, policy: Policy) -> LimitT:
        """Return the guard that `limit` describes."""
