"""The present server of nodes without a fixed address: a Sentinel group, or a voter of a cluster.

The inspecting commands believe the first witness that answers, unlike a client of the library, which asks a majority.
The doctor asks all witnesses, and reports where they differ.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any, Final, NamedTuple

import redis

from redsync._core.clusters import KeyTagging, owner_in, read_cluster, slots_of
from redsync._core.text import printable
from redsync._core.urls import ClusterUrl, GroupUrl
from redsync.cli.queries import PLAIN, in_one_line

Witnesses = list[tuple[str, redis.Redis]]
"""The address of each Sentinel or listed server of a cluster, and a client that queries it."""


class WitnessReport(NamedTuple):
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


Ask = Callable[[str, redis.Redis], tuple[str, int]]
"""Returns the server's address and the number of the decision, by the word of the witness at that address."""


class Endpoint:
    """The witnesses that know where a node's server is.

    Attributes:
        witness: The kind of witness, for people.
        what: The name of the server, for people, such as "the owner of slot 8192".
        replicas: The number of replicas that the URL gives for the server.
    """

    def __init__(self, witness: str, what: str, replicas: int, witnesses: Witnesses, ask: Ask) -> None:
        self.witness, self.what, self.replicas = witness, what, replicas
        self._witnesses = witnesses
        self._ask = ask
        self._latest = 0

    def redirect(self, client: redis.Redis) -> None:
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
        raise redis.ConnectionError(f"no listed {self.witness} knows {self.what}: {'; '.join(errors)}")

    def survey(self) -> list[WitnessReport]:
        """Return the answer of each witness."""
        return [self._said(address, client) for address, client in self._witnesses]

    def close(self) -> None:
        """Close the connections to all witnesses."""
        for _, client in self._witnesses:
            client.close()

    def _said(self, address: str, client: redis.Redis) -> WitnessReport:
        try:
            server, epoch = self._ask(address, client)
        except (redis.RedisError, OSError) as error:
            return WitnessReport(address, error=in_one_line(error), answered=isinstance(error, redis.ResponseError))
        except (TypeError, ValueError, KeyError, AttributeError, IndexError):
            return WitnessReport(address, error=f"not a {self.witness}")
        return WitnessReport(address, server, epoch)


def _ask_sentinel(service: str, _: str, client: redis.Redis) -> tuple[str, int]:
    flat = _raw(client, "SENTINEL", "MASTER", service)
    said = dict(zip(flat[::2], flat[1::2], strict=True))
    # The reply has an address too, but during a failover the old master's, with the new number.
    host, port = _raw(client, "SENTINEL", "GET-MASTER-ADDR-BY-NAME", service)
    return f"{printable(host.decode())}:{int(port)}", int(said[b"config-epoch"])


def _ask_server(slot: int, address: str, client: redis.Redis) -> tuple[str, int]:
    owner = owner_in(read_cluster(_raw(client, "CLUSTER", "NODES")), slot)
    if owner is None:
        raise redis.ResponseError(f"slot {slot} has no owner")
    # A server that does not know its own address leaves it out.
    return f"{owner.host or address.rpartition(':')[0]}:{owner.port}", owner.epoch


class MovingClient(redis.Redis):
    """A client of the server that is the master at the time.

    Attributes:
        tagging: The tags of keys there.
    """

    def __init__(self, pool: redis.ConnectionPool, tagging: KeyTagging) -> None:
        super().__init__(connection_pool=pool)
        self.tagging: Final = tagging
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


def named(url: str, settings: Mapping[str, Any]) -> list[tuple[str, redis.Redis, Endpoint]]:
    """Return the label of each node of a group or cluster, the client that queries it, and its endpoint.

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


def _group(url: str, settings: Mapping[str, Any]) -> tuple[str, redis.Redis, Endpoint]:
    said = GroupUrl.read(url)
    ask, witnesses = partial(_ask_sentinel, said.service), _clients(said.sentinels, settings)
    client = MovingClient(redis.Redis.from_url(said.master, **settings).connection_pool, PLAIN)
    endpoint = Endpoint("Sentinel", f"the master {said.service!r}", said.replicas, witnesses, ask)
    return said.address, client, endpoint


def _voters(url: str, settings: Mapping[str, Any]) -> list[tuple[str, redis.Redis, Endpoint]]:
    said = ClusterUrl.read(url)
    voters: list[tuple[str, redis.Redis, Endpoint]] = []
    for number, slot in enumerate(slots_of(said.nodes), 1):
        # Each voter has its own clients, because threads query the voters in parallel.
        ask, witnesses = partial(_ask_server, slot), _clients(said.seeds, settings)
        endpoint = Endpoint("cluster server", f"the owner of slot {slot}", said.replicas, witnesses, ask)
        client = MovingClient(redis.Redis.from_url(said.server, **settings).connection_pool, KeyTagging(slot))
        voters.append((f"{said.seeds[0][0]}/{number} of {said.nodes}", client, endpoint))
    return voters
