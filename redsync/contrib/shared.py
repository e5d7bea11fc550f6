"""Shared by the modules for frameworks: the client of a process, names, and guards of requests.

1. One client for each process, made from a setting at its first use, so after a server has forked its workers.
2. Names of synchronizers built from a framework's data: a request, a call's arguments, a cache's key.
3. Locks and rate limits of web frameworks, with the replies to requests that must not run now.
"""

from __future__ import annotations

import hashlib
import inspect
import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from string import Formatter
from typing import Any, Final, Generic, Literal, NamedTuple, TypeAlias, TypeVar

from redsync import AcquireTimeout, Client, ConfigurationError, LeaseLostError, QuorumError

__all__ = ["LONGEST", "UNAVAILABLE", "ErrorReply", "Guards", "LockError", "NameTemplate", "ProcessClient", "Rates"]
__all__ += ["RequestName", "check_client", "check_options", "check_seconds", "explained", "shortened", "too_many"]

GuardT = TypeVar("GuardT")
KeyT = TypeVar("KeyT", bound=Callable[..., str])

LockError: TypeAlias = AcquireTimeout | QuorumError | LeaseLostError
"""The errors of a lock that say that the work must not run, or must stop."""

Rates: TypeAlias = int | Sequence[tuple[int, float]]
"""The first argument of `get_rate_limiter` after the name."""

Reply: TypeAlias = Callable[[LockError], Exception | None]


class ProcessClient:
    """The client of a process, made from a setting at its first use; it is closed when the process ends.

    Args:
        setting: The setting's name, for messages.
        read: A function that returns its value: a mapping of `urls` and the options of `Client`, in capitals or not.
            The other defaults are those of `Client.from_env`.
    """

    def __init__(self, setting: str, read: Callable[[], Any]) -> None:
        self._setting: Final = setting
        self._read: Final = read
        # No lock, which another thread might hold during a fork: the first client that gets in here counts.
        self._made: Final[dict[str, Client]] = {}

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
        given = self._read()
        if not isinstance(given, Mapping):
            # Not its value, which may contain a password.
            what = f"a dictionary such as {{'urls': [...]}}, not a value of type {type(given).__name__}"
            raise ConfigurationError(f"{self._setting} must be {what}")
        options = {str(name).lower(): value for name, value in given.items()}
        urls = options.pop("urls", None)
        try:
            return Client.from_env([urls] if isinstance(urls, str) else urls, **options)
        except (ConfigurationError, TypeError, ValueError) as error:
            raise ConfigurationError(f"{self._setting}: {error}") from error


def check_client(client: object) -> None:
    """Raise TypeError for what is no `Client`: an `AsyncClient` would return coroutines, which count as true."""
    if not isinstance(client, Client):
        raise TypeError(f"client must be a redsync.Client, not a value of type {type(client).__name__}")


def check_seconds(name: str, seconds: Any, *, may_be_0: bool = True) -> None:
    """Raise ValueError for an option that is not a finite number of seconds."""
    try:
        number = math.nan if isinstance(seconds, bool | str | bytes | bytearray) else float(seconds)
    except (TypeError, ValueError, OverflowError):
        number = math.nan
    if not 0 <= number < math.inf or not (number or may_be_0):
        what = "a number of seconds, 0 or more" if may_be_0 else "a positive number of seconds"
        raise ValueError(f"{name} must be {what}, not {seconds!r}")


def check_options(**options: Any) -> None:
    """Raise TypeError for an option that `Client.get_lock` does not have, or ValueError for no positive number."""
    inspect.signature(Client.get_lock).bind(None, "name", **options)
    for name, value in options.items():
        if name != "on_lost" and value is not None:
            check_seconds(name, value, may_be_0=name == "timeout")


def _check_rates(rate: Any, per: Any) -> None:
    pairs = [(rate, per)] if per is not None or isinstance(rate, int) else rate
    try:
        good = bool(pairs) and all(number >= 1 and 0 < seconds < math.inf for number, seconds in pairs)
    except (TypeError, ValueError):
        good = False
    if not good:
        raise ValueError(f"a rate is 10, per=60 or [(10, 1), (1000, 3600)], for example, not {rate!r}, per={per!r}")


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
        ValueError: `text` is empty, or a field has no valid name.
    """

    def __init__(self, text: str) -> None:
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


class RequestName(NameTemplate):
    """The name of a request's lock or limiter.

    Raises:
        ValueError: `text` is not a template, or only one of its field `{key}` and the function `key` is there.
    """

    def __init__(self, text: str, key: Callable[..., str] | None) -> None:
        super().__init__(text)
        if ("key" in self.fields) is not (key is not None):
            raise ValueError(f"the name {text!r} and key= belong together: {{key}} is what the function returns")
        self._key: Final = key

    def of(self, path: Mapping[str, Any] | None, client: str | None, *request: Any) -> str:
        """Return the name for a request with those arguments of its path, from that client."""
        text: object = "" if self._key is None else self._key(*request)
        if not isinstance(text, str):  # not its value, which may be a secret
            raise TypeError(f"the name {self.text!r}: key= must return text, not a value of type {type(text).__name__}")
        return self.fill({**(path or {}), "client": client or "unknown", "key": shortened(text)})


class ErrorReply(NamedTuple):
    """The reply to a request that must not run now: the status, the text, and additional header fields."""

    status: int
    text: str
    fields: Mapping[str, str] = {}


UNAVAILABLE: Final = ErrorReply(503, "the lock service is unavailable")
"""The reply if too few nodes answer, or a lock was lost."""


def too_many(retry_after: float) -> ErrorReply:
    """Return the reply to a request that a rate limiter refused."""
    return ErrorReply(429, "too many requests", {"Retry-After": str(max(math.ceil(retry_after), 1))})


class Guards(ABC, Generic[GuardT, KeyT]):
    """The locks and rate limits of a web framework, as decorators of views or dependencies of path operations.

    In their names `{number}` stands for the argument `number` of the path, `{client}` for the client's address, and
    `{key}` for what a function of yours returns, such as the user or the API key of the request; even if the path has
    arguments of these names: callers choose those.
    """

    def lock(
        self, name: str, *, timeout: float = 0.5, busy: int = 423, key: KeyT | None = None, **options: Any
    ) -> GuardT:
        """Return a guard that holds a lock while a request is handled.

        The reply is `busy` if others hold the lock longer than `timeout`, and 503 if too few nodes answer or the lock
        is lost.

        Args:
            name: The lock's name, such as `order:{number}`.
            timeout: Seconds to wait.
            busy: The status if others hold the lock: 423 (Locked), or 409 (Conflict).
            key: Returns the value of `{key}` in the name.
            **options: Options of `get_lock`.

        Raises:
            ValueError: `name` is not a template or does not use `key`, `busy` is not an error status, or a number of
                seconds is not positive. `get_lock` checks the rest at each request.
            TypeError: `get_lock` has no such option.
        """
        check_seconds("timeout", timeout)
        check_options(timeout=timeout, **options)
        if busy not in range(400, 600):
            raise ValueError(f"busy must be an error status such as 423 or 409, not {busy!r}")
        refusal = ErrorReply(busy, "the resource is locked", {"Retry-After": "1"})

        def reply(error: LockError) -> Exception:
            return self._error(refusal if isinstance(error, AcquireTimeout) else UNAVAILABLE)

        return self._lock(RequestName(name, key), {"timeout": timeout, **options}, reply)

    def limit(
        self,
        name: str,
        rate: Rates,
        *,
        per: float | None = None,
        key: KeyT | None = None,
        on_outage: Literal["open", "closed"] = "closed",
    ) -> GuardT:
        """Return a guard that limits the rate of requests.

        Beyond it the reply is 429, with `Retry-After`; if too few nodes answer, it is 503, or no request is limited.

        Args:
            name: The limiter's name, such as `pay:{client}` or `pay:{key}`. Another rate needs another name, for the
                nodes know the former one for a day.
            rate: The number of requests allowed in `per` seconds, or several rates: `[(10, 1), (1000, 3600)]`.
            per: The window in seconds; None for several rates.
            key: Returns the value of `{key}` in the name.
            on_outage: "open" admits all requests while too few nodes answer, "closed" none.

        Raises:
            ValueError: `name` is not a template or does not use `key`, `on_outage` is neither, or a rate is not
                positive. `get_rate_limiter` checks the rest at each request.
        """
        _check_rates(rate, per)
        if on_outage not in ("open", "closed"):
            raise ValueError(f'on_outage must be "open" or "closed", not {on_outage!r}')
        closed = on_outage == "closed"
        return self._limit(RequestName(name, key), rate, per, lambda _: self._error(UNAVAILABLE) if closed else None)

    @abstractmethod
    def _error(self, refusal: ErrorReply) -> Exception:
        """Return the error by which the framework makes that reply."""

    @abstractmethod
    def _lock(self, name: RequestName, options: dict[str, Any], reply: Reply) -> GuardT:
        """Return the guard that `lock` describes; `reply` explains the lock's errors, see `explained`."""

    @abstractmethod
    def _limit(self, name: RequestName, rate: Rates, per: float | None, reply: Reply) -> GuardT:
        """Return the guard that `limit` describes; `reply` explains the limiter's errors."""
