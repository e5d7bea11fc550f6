"""The present server of nodes without a fixed address: a Sentinel group, or a voter of a cluster.

The inspecting commands believe the first witness that answers, unlike a client of the library, which asks a majority.
The doctor asks all witnesses, and reports where they differ.
"""

from __future__ import annotations

import contextlib
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from typing import Any, Final, NamedTuple

import redis

from redsync._core.cluster_nodes import owner_in, read_cluster
from redsync._core.cluster_urls import ClusterUrl
from redsync._core.sentinel_urls import GroupUrl
from redsync._core.spellings import Spelling, slots_of
from redsync._core.text import printable
from redsync.cli.asking import PLAIN, in_one_line

__all__ = ["Place", "Said", "named"]

Witnesses = list[tuple[str, redis.Redis]]
"""The address of each Sentinel or listed server of a cluster, and a client that queries it."""


class Said(NamedTuple):
    """One witness's answer about a node.

    Attributes:
        witness: The witness's address.
        server: The address of the node's server, `host:port`; None if the witness does not know.
        epoch: The number of the decision that made this server the master.
        error: Why the witness does not know; None if it does.
        answered: False if it did not answer.
    """

    witness: str
    server: str | None = None
    epoch: int = 0
    error: str | None = None
    answered: bool = True


class Place(ABC):
    """The witnesses that know where a node's server is.

    Attributes:
        WITNESS: The kind of witness, for people.
        what: The name of the server, for people, such as "the owner of slot 8192".
        replicas: The number of replicas that the URL gives for the server.
    """

    WITNESS: str

    def __init__(self, what: str, witnesses: Witnesses, replicas: int) -> None:
        self.what: Final = what
        self.replicas: Final = replicas
        self._witnesses: Final = witnesses
        self._latest = 0

    def settle(self, client: redis.Redis) -> None:
        """Direct a client to the server that is the master now.

        Raises:
            RedisError: No witness knows.
        """
        # Ask all in turn, starting with the one that answered last time.
        count, errors = len(self._witnesses), []
        for number in (*range(self._latest, count), *range(self._latest)):
            said = self._said(*self._witnesses[number])
            if said.server is not None:
                self._latest = number
                assert isinstance(client, MovingClient)
                client.go_to(said.server)
                return
            errors.append(f"{said.witness}: {said.error}")
        raise redis.ConnectionError(f"no listed {self.WITNESS} knows {self.what}: {'; '.join(errors)}")

    def survey(self) -> list[Said]:
        """Return the answer of each witness."""
        return [self._said(address, client) for address, client in self._witnesses]

    def close(self) -> None:
        """Close the connections to all witnesses."""
        for _, client in self._witnesses:
            client.close()

    def _said(self, address: str, client: redis.Redis) -> Said:
        try:
            server, epoch = self._ask(address, client)
        except (redis.RedisError, OSError) as error:
            return Said(address, error=in_one_line(error), answered=isinstance(error, redis.ResponseError))
        except (TypeError, ValueError, KeyError, AttributeError, IndexError):
            return Said(address, error=f"not a {self.WITNESS}")
        return Said(address, server, epoch)

    @abstractmethod
    def _ask(self, address: str, client: redis.Redis) -> tuple[str, int]:
        """Return the server's address and the number of the decision, by the word of one witness."""


class GroupPlace(Place):
    """The Sentinels of a group."""

    WITNESS = "Sentinel"

    def __init__(self, service: str, witnesses: Witnesses, replicas: int) -> None:
        super().__init__(f"the master {service!r}", witnesses, replicas)
        self._service = service

    def _ask(self, address: str, client: redis.Redis) -> tuple[str, int]:  # noqa: ARG002
        flat = _raw(client, "SENTINEL", "MASTER", self._service)
        said = dict(zip(flat[::2], flat[1::2], strict=True))
        # The reply has an address too, but during a failover the old master's, with the new number.
        host, port = _raw(client, "SENTINEL", "GET-MASTER-ADDR-BY-NAME", self._service)
        return f"{printable(host.decode())}:{int(port)}", int(said[b"config-epoch"])


class VoterPlace(Place):
    """The listed servers of a cluster, and the voter's slot."""

    WITNESS = "cluster server"

    def __init__(self, slot: int, witnesses: Witnesses, replicas: int) -> None:
        super().__init__(f"the owner of slot {slot}", witnesses, replicas)
        self._slot = slot

    def _ask(self, address: str, client: redis.Redis) -> tuple[str, int]:
        owner = owner_in(read_cluster(_raw(client, "CLUSTER", "NODES")), self._slot)
        if owner is None:
            raise redis.ResponseError(f"slot {self._slot} has no owner")
        # A server that does not know its own address leaves it out.
        return f"{owner.host or address.rpartition(':')[0]}:{owner.port}", owner.epoch


class MovingClient(redis.Redis):
    """A client of the server that is the master at the time.

    Attributes:
        spelling: The spelling of keys there.
    """

    def __init__(self, pool: redis.ConnectionPool, spelling: Spelling) -> None:
        super().__init__(connection_pool=pool)
        self.spelling: Final = spelling
        self._server = ""

    def go_to(self, server: str) -> None:
        """Query that server from now on."""
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
        """Close the connections; redis-py does not close a pool that it was given."""
        self.connection_pool.disconnect()


def named(url: str, settings: Mapping[str, Any]) -> list[tuple[str, redis.Redis, Place]]:
    """Return the label of each node of a group or cluster, the client that queries it, and its place.

    Raises:
        NodeUrlError: The URL does not describe a group or cluster.
        ValueError: redis-py does not know an option; the message may contain its value.
    """
    return _voters(url, settings) if ClusterUrl.matches(url) else [_group(url, settings)]


def _raw(client: redis.Redis, *words: str) -> Any:
    """Return the raw reply to a command; redis-py would parse it if the first two words were one string."""
    return client.execute_command(*words)  # type: ignore[no-untyped-call]


def _clients(servers: Sequence[tuple[str, str]], settings: Mapping[str, Any]) -> Witnesses:
    return [(address, redis.Redis.from_url(url, **settings)) for address, url in servers]


def _group(url: str, settings: Mapping[str, Any]) -> tuple[str, redis.Redis, Place]:
    said = GroupUrl.read(url)
    witnesses = _clients(said.sentinels, settings)
    client = MovingClient(redis.Redis.from_url(said.master, **settings).connection_pool, PLAIN)
    return said.address, client, GroupPlace(said.service, witnesses, said.replicas)


def _voters(url: str, settings: Mapping[str, Any]) -> list[tuple[str, redis.Redis, Place]]:
    said = ClusterUrl.read(url)
    voters: list[tuple[str, redis.Redis, Place]] = []
    for number, slot in enumerate(slots_of(said.nodes), 1):
        # Each voter has its own clients, because threads query the voters in parallel.
        place = VoterPlace(slot, _clients(said.seeds, settings), said.replicas)
        client = MovingClient(redis.Redis.from_url(said.server, **settings).connection_pool, Spelling(slot))
        voters.append((f"{said.seeds[0][0]}/{number} of {said.nodes}", client, place))
    return voters
