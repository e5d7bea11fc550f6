"""The nodes that URLs name, and queries to all of them in parallel, each answered separately.

No quorum decides what an inspecting command shows. A node that is down, hangs or refuses access yields an error as its
answer and never ends the command. Only the exit status says that too few nodes answered.

A Sentinel group and a voter of a cluster have no fixed address. For the present one the commands believe the first
witness that answers, unlike a client of the library, which asks a majority. The doctor asks all witnesses, and reports
where they differ.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, field
from functools import partial
from importlib.util import find_spec
from typing import Any, Final, Generic, NamedTuple, TypeVar

import redis
from redis.backoff import NoBackoff
from redis.exceptions import InvalidResponse, RedisError
from redis.retry import Retry

from redsync._core.clusters import KeyTagging, owner_in, read_cluster, slots_of
from redsync._core.scripts import Command, Script
from redsync._core.text import is_refusal, one_line, printable
from redsync._core.urls import NodeUrlError, ServersUrl, check_url, for_redis_py
from redsync._protocols.surveys import NameLook
from redsync.cli.arguments import encoded, urls_of
from redsync.cli.exits import FINE, NO_TLS, ONLY_TLS, UNCONFIGURED, UNREADABLE, SetupError, status_without_quorum
from redsync.cli.output import warn

T = TypeVar("T")

Question = Callable[[redis.Redis, KeyTagging], T]  # queries a node, given its client and how keys are spelled there


def in_one_line(error: Exception) -> str:
    """Return an error as one line, without the address that redis-py puts before the system's words."""
    return one_line(getattr(error.__context__, "strerror", None) or str(error)) or type(error).__name__


@dataclass(frozen=True, slots=True)
class Answer(Generic[T]):
    """The answer of one node, or of one witness.

    Attributes:
        node: Its address.
        value: The answer; None if it failed.
        error: Why it failed; None if it answered.
    """

    node: str
    value: T | None = None
    error: str | None = None

    @classmethod
    def to(cls, question: Callable[[], T], node: str) -> Answer[T]:
        """Call a function that asks a node or a witness; return its result, or its error, as an answer."""
        try:
            return cls(node, question())
        except Exception as error:
            # A failure to read one node's replies, in redis-py or here, affects only that node.
            text = in_one_line(error)
            if isinstance(error, InvalidResponse) or not isinstance(error, OSError | RedisError):
                kind = "" if isinstance(error, ValueError | InvalidResponse) else f" ({type(error).__name__})"
                text = f"{UNREADABLE}: {text}{kind}"
            # "unauthenticated" is how a node that needs a password answers a script.
            return cls(node, None, "Authentication required." if "unauthenticated" in text else text)


class Master(NamedTuple):
    """The server that serves as a node now, according to one witness.

    Attributes:
        server: Its address, `host:port`.
        epoch: The number of the decision that made it the master.
    """

    server: str
    epoch: int


@dataclass(frozen=True, eq=False)
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
    tagging: KeyTagging = field(default_factory=KeyTagging)
    replicas: int | None = None
    witness: str = ""
    what: str = ""
    witnesses: Sequence[tuple[str, str]] = ()
    ask: Callable[[redis.Redis], Master] | None = None

    def connect(self) -> redis.Redis:
        """Return a client of the server that serves as the node now.

        Raises:
            RedisError: No witness knows.
        """
        client = redis.Redis.from_url(self.url, **self.settings)
        if not self.witnesses:
            return client
        errors = []
        for said in self.survey():
            if said.value is not None:
                host, _, port = said.value.server.rpartition(":")
                client.connection_pool.connection_kwargs |= {"host": host, "port": int(port)}
                return client
            errors.append(f"{said.node}: {said.error}")
        raise redis.ConnectionError(f"no listed {self.witness} knows {self.what}: {'; '.join(errors)}")

    def clearer(self, client: redis.Redis, error: RedisError) -> RedisError:
        """Return a client's error, or a clearer one if the server speaks TLS and the URL does not, or the reverse."""
        pool, is_answer = client.connection_pool, isinstance(error, redis.ResponseError | redis.AuthenticationError)
        kwargs, has_tls = pool.connection_kwargs, issubclass(pool.connection_class, redis.SSLConnection)
        # A server that speaks TLS closes a plain connection. One that hangs would cost another timeout.
        if is_answer or "path" in kwargs or (isinstance(error, redis.TimeoutError) and not has_tls):
            return error
        where = {name: kwargs[name] for name in ("host", "port") if name in kwargs}
        tls = {"ssl": not has_tls, "ssl_cert_reqs": "none", "ssl_check_hostname": False}
        with closing(redis.Redis(**dict[str, Any](self.settings) | where | tls)) as other:
            said = Answer.to(other.ping, "")
        if said.error is not None and not is_refusal(said.error):
            return error
        return redis.ConnectionError(NO_TLS if has_tls else ONLY_TLS)

    def survey(self) -> Iterator[Answer[Master]]:
        """Ask one witness after the other; a plain node has none."""
        for address, url in self.witnesses:
            assert self.ask is not None, "a node with witnesses has a question for them"
            with closing(redis.Redis.from_url(url, **self.settings)) as client:
                yield Answer.to(partial(self.ask, client), address)


# In both, redis-py would parse the reply if the first two words were one string.


def _ask_sentinel(service: str, client: Any) -> Master:
    flat = client.execute_command("SENTINEL", "MASTER", service)
    said = dict(zip(flat[::2], flat[1::2], strict=True))
    # The reply has an address too, but during a failover the old master's, with the new number.
    host, port = client.execute_command("SENTINEL", "GET-MASTER-ADDR-BY-NAME", service)
    return Master(f"{printable(host.decode())}:{int(port)}", int(said[b"config-epoch"]))


def _ask_server(slot: int, client: Any) -> Master:
    owner = owner_in(read_cluster(client.execute_command("CLUSTER", "NODES")), slot)
    if owner is None:
        raise redis.ResponseError(f"slot {slot} has no owner")
    # A server that does not know its own address leaves it out.
    return Master(f"{owner.host or client.connection_pool.connection_kwargs['host']}:{owner.port}", owner.epoch)


def _nodes_of(url: str, timeout: float) -> list[Node]:
    """Return the nodes that a URL names.

    Raises:
        NodeUrlError: The URL is not valid.
        TypeError, ValueError, RedisError: redis-py does not know an option; the message may contain its value.
    """
    url = for_redis_py(url)
    settings = {
        "socket_timeout": timeout,
        "socket_connect_timeout": timeout,
        "retry": Retry(NoBackoff(), 0),
        "protocol": 2,
        "decode_responses": False,
        # Else redis-py sends CLIENT SETINFO, which old servers and some ACLs refuse.
        **({"driver_info": None} if find_spec("redis.driver_info") else {"lib_name": None, "lib_version": None}),
    }
    servers = ServersUrl.read(url)
    if servers is not None:
        known, make = servers.servers[0][0], partial(Node, url=servers.node, settings=settings)
        make = partial(make, replicas=servers.replicas, witnesses=servers.servers)
        if servers.service:
            what, ask = f"the master {servers.service!r}", partial(_ask_sentinel, servers.service)
            nodes = [make(f"{servers.service}@{known}", witness="Sentinel", what=what, ask=ask)]
        else:
            nodes, make = [], partial(make, witness="cluster server")
            for number, slot in enumerate(slots_of(servers.nodes), 1):
                address, what = f"{known}/{number} of {servers.nodes}", f"the owner of slot {slot}"
                nodes += [make(address, tagging=KeyTagging(slot), what=what, ask=partial(_ask_server, slot))]
    else:
        check_url(url)
        kwargs = redis.Redis.from_url(url, **settings).connection_pool.connection_kwargs
        address = kwargs.get("path") or f"{kwargs.get('host', 'localhost')}:{kwargs.get('port', 6379)}"
        nodes = [Node(address, url, settings)]
    for each in (nodes[0].url, *(url for _, url in nodes[0].witnesses)):
        redis.Redis.from_url(each, **settings).connection_pool.make_connection()  # finds wrong options now
    return nodes


# Queries.


class Nodes:
    """The nodes that a command queries: those that the options name, or else the environment.

    Raises:
        SetupError: There are no URLs, or one is not valid.
    """

    def __init__(self, options: Any) -> None:
        self.prefix: Final = encoded(options.prefix)
        self.nodes: list[Node] = []
        for number, url in enumerate(urls_of(options), 1):
            try:
                self.nodes += _nodes_of(url, options.timeout)
            except (TypeError, ValueError, RedisError) as error:
                unknown = "has an option or a value that redis-py does not know"
                text = str(error) if isinstance(error, NodeUrlError) else unknown
                raise SetupError(f"node {number} {text}", UNCONFIGURED) from None
        self.quorum: Final = len(self.nodes) // 2 + 1

    def ask(self, question: Question[T], among: Sequence[Node] | None = None) -> list[Answer[T]]:
        """Query all nodes, or those in `among`, in parallel; return their answers in the nodes' order."""

        def ask(node: Node) -> T:
            with closing(node.connect()) as client:
                try:
                    return question(client, node.tagging)
                except RedisError as error:
                    raise node.clearer(client, error) from None

        return self.visit(ask, among)

    def visit(self, visit: Callable[[Node], T], among: Sequence[Node] | None = None) -> list[Answer[T]]:
        """Call a function with each node, or with those in `among`, in parallel; return what it returns as answers."""
        asked = self.nodes if among is None else among
        answers: dict[Node, Answer[T]] = {}

        def visit_one(node: Node) -> None:
            answers[node] = Answer.to(partial(visit, node), node.address)

        # Not a pool: after Ctrl-C a thread that waits for a node ends with the command.
        threads = [threading.Thread(target=visit_one, args=(node,), daemon=True) for node in asked]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        return [answers[node] for node in asked]

    def status(self, answers: Sequence[Answer[Any]]) -> int:
        """Return the exit status; it means success if a quorum answered."""
        if sum(answer.error is None for answer in answers) >= self.quorum:
            return FINE
        return status_without_quorum([answer.error for answer in answers])

    def conclude(self, answers: Sequence[Answer[Any]]) -> int:
        """Report on standard error the nodes that did not answer, and a lack of quorum; return the exit status."""
        errors = [f"node {answer.node}: {answer.error}" for answer in answers if answer.error is not None]
        warn(*errors)
        status = self.status(answers)
        if status != FINE:
            warn(f"too few nodes answer: {len(answers) - len(errors)} of {len(answers)}; a quorum is {self.quorum}")
        return status


def execute(client: redis.Redis, tagging: KeyTagging, commands: Iterable[Command]) -> list[Any]:
    """Execute scripts on one node and return their replies.

    Raises:
        RedisError: The node refused one.
    """
    # The node learns each script with its first EVAL, because fewer users may call SCRIPT LOAD.
    known: set[Script] = set()
    pipeline = client.pipeline(transaction=False)
    for command in map(tagging.command, commands):
        count, words = len(command.keys), (*command.keys, *command.words)
        if command.script in known:
            pipeline.evalsha(command.script.sha.decode(), count, *words)
        else:
            pipeline.eval(command.script.source.decode(), count, *words)
            known.add(command.script)
    replies = pipeline.execute(raise_on_error=False)  # else redis-py would put the whole command into the message
    for reply in replies:
        if isinstance(reply, Exception):
            raise reply
    return replies


def look_at(client: redis.Redis, tagging: KeyTagging, asked: Mapping[bytes, Command]) -> dict[bytes, NameLook]:
    """Return what the node stores under each of those names; names without anything are left out."""
    # A node reads a few kB of this at a time, and serves other clients in between.
    looks = map(NameLook.read, execute(client, tagging, asked.values()))
    return {name: look for name, look in zip(asked, looks, strict=True) if not look.is_empty}
