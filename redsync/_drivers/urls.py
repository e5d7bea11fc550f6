"""URLs of nodes that were given as redis-py clients, for other processes.

A client pickles as the URLs of its nodes. A URL must connect exactly as the redis-py client does: one that omits a
setting, or has a wrong password, would lead a worker to another server, or to none. So redis-py parses each URL again,
and the URL counts only if the same settings come out. A setting that no URL can express is refused by name.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final
from urllib.parse import quote, urlencode

__all__ = ["url_of"]

_MEANINGLESS: Final = frozenset(
    {
        # `Node.make_connection` replaces these,
        *("protocol", "retry", "retry_on_error", "retry_on_timeout", "socket_timeout", "socket_connect_timeout"),
        *("health_check_interval", "decode_responses", "maint_notifications_config", "parser_class"),
        *("maint_notifications_pool_handler", "oss_cluster_maint_notifications_handler"),
        # and these do not change the server or the user.
        *("orig_host_address", "orig_socket_timeout", "orig_socket_connect_timeout"),
        *("driver_info", "lib_name", "lib_version"),
    }
)
_PLACED: Final = ("host", "port", "path", "db", "username", "password")
"""Settings with their own place in a URL; all others go into its query."""

_PLAIN: Final = frozenset("abcdefghijklmnopqrstuvwxyz0123456789.-_")


def url_of(pool: Any, client_class: type[Any]) -> tuple[str | None, str]:
    """Return a URL that connects like a redis-py pool, and ""; without such a URL, None and what it can't express."""
    kind = pool.connection_class.__name__
    usual = _usual(kind, client_class)
    if usual is None:
        return None, f"connections of the class {kind}"
    settings = _settings(usual, pool)
    url = _spelled(kind, settings, _settings(usual, usual))
    try:
        read = client_class.from_url(url).connection_pool
    except ValueError:  # redis-py can't parse a value back, such as an invalid port
        return None, "its address"
    if read.connection_class is not pool.connection_class:
        return None, f"connections of the class {kind}"
    told = _settings(usual, read)
    unsaid = sorted(name for name in settings.keys() | told.keys() if not _same(settings.get(name), told.get(name)))
    return (None, ", ".join(unsaid)) if unsaid else (url, "")


def _usual(kind: str, client_class: type[Any]) -> Any:
    """Return a default pool of the same kind; None for an unknown kind."""
    given: dict[str, dict[str, Any]] = {
        "Connection": {},
        "SSLConnection": {"ssl": True},
        "UnixDomainSocketConnection": {"unix_socket_path": "/"},
    }
    return client_class(**given[kind]).connection_pool if kind in given else None


def _settings(usual: Any, pool: Any) -> dict[str, Any]:
    """Return the settings that determine a pool's server and user, with default values for those not set."""
    everything = {**usual.connection_kwargs, **pool.connection_kwargs}
    return {
        # An empty user or password means the same as None.
        name: value or None if name in ("username", "password") else value
        for name, value in everything.items()
        if name not in _MEANINGLESS
    }


def _spelled(kind: str, settings: Mapping[str, Any], usual: Mapping[str, Any]) -> str:
    login = ""
    if settings.get("username") or settings.get("password"):
        user, password = (_quoted(settings.get(name) or "") for name in ("username", "password"))
        login = f"{user}:{password}@"
    more = {
        name: str(value)
        for name, value in settings.items()
        if name not in _PLACED and isinstance(value, str | int | float) and value != usual.get(name)
    }
    if kind == "UnixDomainSocketConnection":
        place = f"unix://{login}{quote(settings.get('path', ''))}"
        more["db"] = str(settings.get("db") or 0)
    else:
        scheme = "rediss" if kind == "SSLConnection" else "redis"
        place = f"{scheme}://{login}{_host(settings.get('host'))}:{settings.get('port')}/{settings.get('db') or 0}"
    return f"{place}?{urlencode(more)}" if more else place


def _quoted(value: Any) -> str:
    return quote(str(value), safe="")


def _host(host: Any) -> str:
    text = str(host)
    if ":" in text:
        return f"[{text}]"
    # redis-py reads a URL's host in lower case, unless its capitals are quoted.
    return "".join(chr(byte) if chr(byte) in _PLAIN else f"%{byte:02X}" for byte in text.encode())


def _same(one: Any, other: Any) -> bool:
    # Each pool has its own handlers, each equal only to itself.
    compares: Any = type(one).__eq__
    return type(one) is type(other) if compares is object.__eq__ else bool(one == other)
