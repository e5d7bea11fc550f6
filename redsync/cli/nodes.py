"""The nodes that URLs name, and the way to each: plain nodes, Sentinel groups, and the voters of a cluster.

A group and a voter have no fixed address. For the present one the inspecting commands believe the first witness that
answers, unlike a client of the library, which asks a majority. The doctor asks all witnesses, and reports where they
differ.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass
from functools import partial
from importlib.util import find_spec
from typing import Any, Final, NamedTuple

import redis
from redis.backoff import NoBackoff
from redis.retry import Retry

from redsync._core.clusters import KeyTagging, owner_in, read_cluster, slots_of
from redsync._core.text import printable
from redsync._core.urls import ClusterUrl, GroupUrl

_CONNECTING: Final = re.compile(r"Error -?\d+ connecting to \S+?\. (.+?)\.?")
"""redis-py's message when it can't connect."""


def in_one_line(error: Exception) -> str:
    """Return an error as one line, without the address, which the caller shows."""
    text = " ".join(str(error).split())[:200] or type(error).__name__
    connecting = _CONNECTING.fullmatch(text)
    return connecting[1] if connecting else text


class NodeClient(redis.Redis):
    """A client of one node, for one query.

    Attributes:
        tagging: How keys are spelled there.
    """

    tagging = KeyTagging()


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


@dataclass(frozen=True, kw_only=True, eq=False)
class Node:
    """One node.

    Attributes:
        address: `host:port`, or the path of a Unix socket; without the password, so it is safe to show.
        url: A redis-py URL of its server; if there are witnesses, with a placeholder address.
        settings: Further settings of its clients.
        tagging: How keys are spelled there.
        replicas: The number of replicas that the URL gives for its server; None for a plain node.
        witness: The kind of witness that knows where its server is, for people; empty for a plain node.
        what: The name of its server, for people, such as "the owner of slot 8192".
        witnesses: The address of each Sentinel or listed server of a cluster, and a redis-py URL of it.
        ask: How to ask them.
    """

    address: str
    url: str
    settings: Mapping[str, Any]
    tagging: KeyTagging = NodeClient.tagging
    replicas: int | None = None
    witness: str = ""
    what: str = ""
    witnesses: Sequence[tuple[str, str]] = ()
    ask: Ask | None = None

    def connect(self) -> NodeClient:
        """Return a client of the server that is the node now.

        Raises:
            RedisError: No witness knows.
        """
        client = NodeClient.from_url(self.url, **self.settings)
        assert isinstance(client, NodeClient), "redis-py's types do not say so"
        client.tagging = self.tagging
        if not self.witnesses:
            return client
        errors = []
        for witness in self.witnesses:
            said = self._said(*witness)
            if said.server is not None:
                host, _, port = said.server.rpartition(":")
                client.connection_pool.connection_kwargs |= {"host": host, "port": int(port)}
                return client
            errors.append(f"{said.witness}: {said.error}")
        raise redis.ConnectionError(f"no listed {self.witness} knows {self.what}: {'; '.join(errors)}")

    def survey(self) -> list[WitnessReport]:
        """Return the answer of each witness."""
        return [self._said(*witness) for witness in self.witnesses]

    def _said(self, address: str, url: str) -> WitnessReport:
        assert self.ask is not None, "a node with witnesses has a question for them"
        try:
            with closing(redis.Redis.from_url(url, **self.settings)) as client:
                server, epoch = self.ask(address, client)
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


def _raw(client: redis.Redis, *words: str) -> Any:
    """Return the raw reply to a command; redis-py would parse it if the first two words were one string."""
    return client.execute_command(*words)  # type: ignore[no-untyped-call]


def nodes_of(url: str, timeout: float) -> list[Node]:
    """Return the nodes that a URL names.

    Raises:
        NodeUrlError: The URL is not that of a group or cluster.
        ValueError: redis-py does not know an option; the message may contain its value.
    """
    settings = {
        "socket_timeout": timeout,
        "socket_connect_timeout": timeout,
        "retry": Retry(NoBackoff(), 0),
        "protocol": 2,
        "decode_responses": False,
        # Else redis-py sends CLIENT SETINFO, which old servers and some ACLs refuse.
        **({"driver_info": None} if find_spec("redis.driver_info") else {"lib_name": None, "lib_version": None}),
    }
    if GroupUrl.matches(url):
        group = GroupUrl.read(url)
        nodes = [
            Node(
                address=group.address,
                url=group.master,
                settings=settings,
                replicas=group.replicas,
                witness="Sentinel",
                what=f"the master {group.service!r}",
                witnesses=group.sentinels,
                ask=partial(_ask_sentinel, group.service),
            )
        ]
    elif ClusterUrl.matches(url):
        cluster = ClusterUrl.read(url)
        nodes = [
            Node(
                address=f"{cluster.seeds[0][0]}/{number} of {cluster.nodes}",
                url=cluster.server,
                settings=settings,
                tagging=KeyTagging(slot),
                replicas=cluster.replicas,
                witness="cluster server",
                what=f"the owner of slot {slot}",
                witnesses=cluster.seeds,
                ask=partial(_ask_server, slot),
            )
            for number, slot in enumerate(slots_of(cluster.nodes), 1)
        ]
    else:
        kwargs = redis.Redis.from_url(url, **settings).connection_pool.connection_kwargs
        address = kwargs.get("path") or f"{kwargs.get('host', 'localhost')}:{kwargs.get('port', 6379)}"
        nodes = [Node(address=address, url=url, settings=settings)]
    for each in (nodes[0].url, *(url for _, url in nodes[0].witnesses)):
        redis.Redis.from_url(each, **settings)  # finds wrong options now
    return nodes
