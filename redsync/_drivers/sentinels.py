"""Nodes behind a Sentinel group: how to connect to their masters and their Sentinels.

Callers give a URL (`sentinel_urls`), or a client from redis-py's `Sentinel.master_for`.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final, NamedTuple

import hiredis
import redis.asyncio.connection
import redis.connection

from redsync._core.sentinel_urls import GroupUrl, require_different
from redsync._core.text import printable
from redsync._drivers.channels import pack
from redsync._drivers.locators import Location, Locator, Witness, Word

__all__ = ["SentinelLocator", "Settings", "managed", "named"]

_UNKNOWN: Final = "No such master"
"""A Sentinel's reply if it does not know the name of the master."""


class SentinelLocator(Locator):
    """The answers of a group's Sentinels about its master.

    Attributes:
        service: The name by which they know it.
    """

    WITNESSES = "Sentinels"

    def __init__(self, service: str, witnesses: Sequence[Witness], replicas: int) -> None:
        super().__init__(witnesses, replicas)
        self.service: Final = service
        # The first reply has an address too, but during a failover the old master's with the new number.
        self.questions = pack("SENTINEL", "MASTER", service), pack("SENTINEL", "GET-MASTER-ADDR-BY-NAME", service)

    @property
    def home(self) -> str:
        return f"{self.service}@{','.join(sorted(witness.address for witness in self.witnesses))}"

    def _read(self, replies: Sequence[Any], witness: Witness) -> Word | str:  # noqa: ARG002
        decision, address = replies
        if isinstance(decision, hiredis.ReplyError):
            return printable(str(decision))
        fields = dict(zip(decision[::2], decision[1::2], strict=True))
        host, port = address
        location = Location(printable(host.decode()), int(port), int(fields[b"config-epoch"]))
        return Word(location, int(fields[b"num-slaves"]))

    def _conflict_in(self, words: Sequence[Word | str]) -> str | None:
        strangers = [word for word in words if isinstance(word, str) and _UNKNOWN in word]
        if len(strangers) <= len(words) // 2:
            return None
        return (
            f"{len(strangers)} of {len(words)} Sentinels know no master named {self.service!r}: name it as in their "
            f"`sentinel monitor`, in the URL after the Sentinels: redis+sentinel://host:26379/{self.service}/0"
        )


class Settings(NamedTuple):
    """The parts of a redis-py pool that make a connection."""

    connection_class: Any
    connection_kwargs: dict[str, Any]


def named(url: str, client_class: type[Any]) -> tuple[Any, SentinelLocator]:
    """Return a pool for the master that a URL names, and its locator.

    Raises:
        NodeUrlError: The URL does not name a Sentinel group.
        ValueError: redis-py does not know an option; the message may show it.
    """
    said = GroupUrl.read(url)
    witnesses = [
        Witness(address, client_class.from_url(sentinel).connection_pool) for address, sentinel in said.sentinels
    ]
    return client_class.from_url(said.master).connection_pool, SentinelLocator(said.service, witnesses, said.replicas)


def managed(pool: Any) -> tuple[Any, SentinelLocator]:
    """Do the same as `named` for the pool of a client from `Sentinel.master_for`.

    Raises:
        NodeUrlError: It has no Sentinels, or one twice.
    """
    kwargs = {name: value for name, value in pool.connection_kwargs.items() if name != "connection_pool"}
    witnesses = []
    for sentinel in pool.sentinel_manager.sentinels:
        settings = sentinel.connection_pool.connection_kwargs
        address = f"{settings.get('host', 'localhost')}:{settings.get('port', 6379)}"
        witnesses.append(Witness(address, sentinel.connection_pool))
    require_different([witness.address for witness in witnesses])
    return Settings(_unmanaged(pool.connection_class), kwargs), SentinelLocator(pool.service_name, witnesses, 0)


def _unmanaged(connection_class: type[Any]) -> type[Any]:
    """Return the class whose connections go to the given host, without asking Sentinels themselves."""
    module: Any = redis.connection
    if issubclass(connection_class, redis.asyncio.connection.AbstractConnection):
        module = redis.asyncio.connection
    kind: type[Any] = module.SSLConnection if issubclass(connection_class, module.SSLConnection) else module.Connection
    return kind
