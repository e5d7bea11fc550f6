"""Nodes without a fixed address, a Sentinel group or a voter of a cluster: where their server is now.

Looking believes the first witness that answers, unlike a client of the library, which asks a majority. The doctor asks
all of them, and tells where they differ.
"""

from __future__ import annotations

import contextlib
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from typing import Any, Final, NamedTuple

import redis
from redis.sentinel import Sentinel

from redsync._core.cluster_nodes import owner_in, read_cluster
from redsync._core.cluster_urls import ClusterUrl
from redsync._core.sentinel_urls import GroupUrl
from redsync._core.spellings import Tagged, slots_of
from redsync._core.text import printable
from redsync.cli.asking import in_one_line

__all__ = ["Place", "Said", "VoterClient", "named"]

Witnesses = list[tuple[str, redis.Redis]]
"""The address of each Sentinel, or listed server of a cluster, and a client that asks it."""


class Said(NamedTuple):
    """What one witness says of a node.

    Attributes:
        witness: Its address.
        server: Where the node's server is, `host:port`; None if it does not tell.
        epoch: The number of the decision that made it the master.
        error: Why it does not tell, None if it does.
    """

    witness: str
    server: str | None = None
    epoch: int = 0
    error: str | None = None


class Place(ABC):
    """Who can be asked where a node's server is.

    Attributes:
        WITNESS: What each of them is, for people.
        replicas: How many replicas the URL gives to the server.
    """

    WITNESS: str

    def __init__(self, witnesses: Witnesses, replicas: int) -> None:
        self.replicas: Final = replicas
        self._witnesses: Final = witnesses

    @abstractmethod
    def settle(self, client: redis.Redis) -> None:
        """Let a client ask the server that is the master now.

        Raises:
            RedisError: Nobody tells.
        """

    def survey(self) -> list[Said]:
        """Return what each witness says."""
        return [self._said(address, client) for address, client in self._witnesses]

    def close(self) -> None:
        """Close the connections to all witnesses."""
        for _, client in self._witnesses:
            client.close()

    def _said(self, address: str, client: redis.Redis) -> Said:
        try:
            server, epoch = self._ask(address, client)
        except (redis.RedisError, OSError) as error:
            return Said(address, error=in_one_line(error))
        except (TypeError, ValueError, KeyError, AttributeError, IndexError):
            return Said(address, error=f"it is no {self.WITNESS}")
        return Said(address, server, epoch)

    @abstractmethod
    def _ask(self, address: str, client: redis.Redis) -> tuple[str, int]:
        """Return where the server is, and the number of the decision, by the word of one witness."""


class GroupPlace(Place):
    """The Sentinels of a group; redis-py itself follows what they say."""

    WITNESS = "Sentinel"

    def __init__(self, service: str, witnesses: Witnesses, replicas: int) -> None:
        super().__init__(witnesses, replicas)
        self._service = service

    def settle(self, client: redis.Redis) -> None:
        pass

    def _ask(self, address: str, client: redis.Redis) -> tuple[str, int]:  # noqa: ARG002
        flat = _raw(client, "SENTINEL", "MASTER", self._service)
        said = dict(zip(flat[::2], flat[1::2], strict=True))
        # That tells the address too, but during a failover that of the old master with the new number.
        host, port = _raw(client, "SENTINEL", "GET-MASTER-ADDR-BY-NAME", self._service)
        return f"{printable(host.decode())}:{int(port)}", int(said[b"config-epoch"])


class VoterPlace(Place):
    """The listed servers of a cluster, and the slot that the voter stands for."""

    WITNESS = "server of a cluster"

    def __init__(self, slot: int, witnesses: Witnesses, replicas: int) -> None:
        super().__init__(witnesses, replicas)
        self._slot = slot
        self._latest = 0

    def settle(self, client: redis.Redis) -> None:
        # All of them in turn, first the one that told last time.
        count, errors = len(self._witnesses), []
        for number in (*range(self._latest, count), *range(self._latest)):
            said = self._said(*self._witnesses[number])
            if said.server is not None:
                self._latest = number
                assert isinstance(client, VoterClient)
                client.go_to(said.server)
                return
            errors.append(f"{said.witness}: {said.error}")
        raise redis.ConnectionError(f"no listed server tells who has the slot {self._slot}: {'; '.join(errors)}")

    def _ask(self, address: str, client: redis.Redis) -> tuple[str, int]:
        owner = owner_in(read_cluster(_raw(client, "CLUSTER", "NODES")), self._slot)
        if owner is None:
            raise redis.ResponseError(f"nobody owns the slot {self._slot}")
        # A server that was never told its address leaves it out about itself.
        return f"{owner.host or address.rpartition(':')[0]}:{owner.port}", owner.epoch


class VoterClient(redis.Redis):
    """A client of whoever has a slot.

    Attributes:
        spelling: How keys and scripts are spelled there.
    """

    def __init__(self, slot: int, pool: redis.ConnectionPool) -> None:
        super().__init__(connection_pool=pool)
        self.spelling: Final = Tagged(slot)
        self._server = ""

    def go_to(self, server: str) -> None:
        """Ask that server from now on."""
        if server == self._server:
            return
        host, _, port = server.rpartition(":")
        old = self.connection_pool
        kwargs = {**old.connection_kwargs, "host": host, "port": int(port)}
        self.connection_pool = redis.ConnectionPool(old.connection_class, **kwargs)
        self._server = server
        with contextlib.suppress(redis.RedisError, OSError):
            old.disconnect()

    def close(self) -> None:
        """Close the connections; redis-py leaves a pool alone that it was given."""
        self.connection_pool.disconnect()


def named(url: str, settings: Mapping[str, Any]) -> list[tuple[str, redis.Redis, Place]]:
    """Return what each node of a group or cluster is called, the client that asks it, and its place.

    Args:
        url: The URL.
        settings: For all clients.

    Raises:
        GroupUrlError: It names no group or cluster.
        ValueError: redis-py does not know an option; the text may show it.
    """
    return _voters(url, settings) if ClusterUrl.matches(url) else [_group(url, settings)]


def _raw(client: redis.Redis, *words: str) -> Any:
    """Return the reply to a command; its words stand apart, or redis-py would read the reply itself."""
    return client.execute_command(*words)  # type: ignore[no-untyped-call]


def _clients(servers: Sequence[tuple[str, str]], settings: Mapping[str, Any]) -> Witnesses:
    return [(address, redis.Redis.from_url(url, **settings)) for address, url in servers]


def _group(url: str, settings: Mapping[str, Any]) -> tuple[str, redis.Redis, Place]:
    said = GroupUrl.read(url)
    witnesses = _clients(said.sentinels, settings)
    manager: Any = Sentinel([])  # type: ignore[no-untyped-call]
    manager.sentinels = [client for _, client in witnesses]
    pool = redis.Redis.from_url(said.master, **settings).connection_pool
    kwargs = {name: value for name, value in pool.connection_kwargs.items() if name not in {"host", "port"}}
    tls = issubclass(pool.connection_class, redis.SSLConnection)
    client = manager.master_for(said.service, redis.Redis, ssl=tls, **kwargs)
    return said.address, client, GroupPlace(said.service, witnesses, said.replicas)


def _voters(url: str, settings: Mapping[str, Any]) -> list[tuple[str, redis.Redis, Place]]:
    said = ClusterUrl.read(url)
    voters: list[tuple[str, redis.Redis, Place]] = []
    for number, slot in enumerate(slots_of(said.nodes), 1):
        # Clients of its own: voters are asked at once, in threads.
        place = VoterPlace(slot, _clients(said.seeds, settings), said.replicas)
        client = VoterClient(slot, redis.Redis.from_url(said.server, **settings).connection_pool)
        voters.append((f"{said.seeds[0][0]}/{number} of {said.nodes}", client, place))
    return voters
