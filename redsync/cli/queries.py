"""Queries to all nodes in parallel, each answered separately; the inspecting commands share them.

No quorum decides what a command shows. A node that is down, hangs or refuses access yields an error as its answer and
never ends the command. Only the exit status says that too few nodes answered.
"""

from __future__ import annotations

import re
import threading
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, Generic, TypeVar

from redsync._core.clusters import KeyTagging
from redsync._core.urls import ClusterUrl, GroupUrl, NodeUrlError
from redsync.cli.arguments import prefix_of, urls_of
from redsync.cli.exits import FINE, UNCONFIGURED, UNREADABLE, USAGE, SetupError, status_without_quorum

if TYPE_CHECKING:
    import redis

    from redsync._core.scripts import Command, Script
    from redsync._protocols.surveys import NameLook
    from redsync.cli.endpoints import Endpoint

BATCH: Final = 200
"""Names per pipeline, so that a node serves other clients in between."""

LONGEST_ANSWER: Final = 60.0
"""Seconds that a node may take to answer everything in one query."""

KEYS: Final = 1000
"""The COUNT of a SCAN."""

SPARE: Final = 200
"""Names examined beyond the limit: keys of other programs, or that have just gone, may show some of them."""

PLAIN: Final = KeyTagging()

_CONNECTING: Final = re.compile(r"Error -?\d+ connecting to \S+?\. (.+?)\.?")
"""redis-py's message when it can't connect."""

T = TypeVar("T")

Looks = list["dict[bytes, NameLook]"]
"""For each node that answers, what it stores under some names."""


@dataclass(frozen=True, slots=True)
class Node:
    """One node.

    Attributes:
        address: `host:port`, or the path of a Unix socket; without the password, so it is safe to show.
        redis: The redis-py client that queries it.
        replicas: The number of replicas that the URL gives for its server; None for a plain node.
        endpoint: The witnesses that know where its server is now; None for a plain node.
    """

    address: str
    redis: redis.Redis
    replicas: int | None = None
    endpoint: Endpoint | None = None


@dataclass(frozen=True, slots=True)
class Answer(Generic[T]):
    """One node's answer.

    Attributes:
        node: The node's address.
        value: The answer; None if the node failed.
        error: Why the node failed; None if it answered.
    """

    node: str
    value: T | None = None
    error: str | None = None


class Nodes:
    """The nodes that a command queries.

    Raises:
        SetupError: A URL is not valid.
    """

    def __init__(self, urls: Sequence[str], prefix: str, timeout: float) -> None:
        self.urls: Final = list(urls)
        self.prefix: Final = prefix.encode("utf-8", "surrogateescape")
        self.timeout: Final = timeout
        self.nodes: Final = [node for number, url in enumerate(urls, 1) for node in _nodes(number, url, timeout)]

    @classmethod
    def chosen(cls, options: Any) -> Nodes:
        """Return the nodes that the options name, or else the environment.

        Raises:
            SetupError: There are no URLs, or one is not valid.
        """
        return cls(urls_of(options), prefix_of(options), options.timeout)

    @property
    def quorum(self) -> int:
        """The number of nodes that make a majority."""
        return len(self.nodes) // 2 + 1

    def ask(self, question: Callable[[redis.Redis], T], among: Sequence[Node] | None = None) -> list[Answer[T]]:
        """Query all nodes, or those in `among`, in parallel; return their answers in the nodes' order."""
        asked = self.nodes if among is None else among
        unheard = f"did not finish its answer within {LONGEST_ANSWER:g} s"
        answers: list[Answer[T]] = [Answer(node.address, None, unheard) for node in asked]

        def ask_one(index: int, node: Node) -> None:
            answers[index] = _ask(node, question)

        threads = [threading.Thread(target=ask_one, args=item, daemon=True) for item in enumerate(asked)]
        for thread in threads:
            thread.start()
        # Each byte received restarts a node's timeout, so the join has its own bound. A thread that still waits ends
        # with the command.
        deadline = time.monotonic() + LONGEST_ANSWER
        for thread in threads:
            thread.join(max(deadline - time.monotonic(), 0.0))
        return list(answers)

    def status(self, answers: Sequence[Answer[Any]]) -> int:
        """Return the exit status; it means success if a quorum answered."""
        if sum(answer.error is None for answer in answers) >= self.quorum:
            return FINE
        return status_without_quorum([answer.error for answer in answers])

    def close(self) -> None:
        """Close all connections."""
        for node in self.nodes:
            node.redis.close()
            if node.endpoint is not None:
                node.endpoint.close()

    def __enter__(self) -> Nodes:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def _nodes(number: int, url: str, timeout: float) -> list[Node]:
    import redis
    from redis.backoff import NoBackoff
    from redis.retry import Retry

    settings = {
        "socket_timeout": timeout,
        "socket_connect_timeout": timeout,
        "retry": Retry(NoBackoff(), 0),
        "protocol": 2,
        "decode_responses": False,
        **_without_introduction(),
    }
    try:
        if ClusterUrl.matches(url) or GroupUrl.matches(url):
            from redsync.cli import endpoints  # late: most commands have none

            return [
                Node(address, client, endpoint.replicas, endpoint)
                for address, client, endpoint in endpoints.named(url, settings)
            ]
        client = redis.Redis.from_url(url, **settings)
    except NodeUrlError as error:
        raise SetupError(f"node {number} {error}", UNCONFIGURED) from None
    except ValueError:
        raise SetupError(f"node {number} has an option or a value that redis-py does not know", UNCONFIGURED) from None
    kwargs = client.connection_pool.connection_kwargs
    return [Node(kwargs.get("path") or f"{kwargs.get('host', 'localhost')}:{kwargs.get('port', 6379)}", client)]


def _without_introduction() -> dict[str, Any]:
    """Return options that stop redis-py from sending CLIENT SETINFO, which old servers and some ACLs refuse."""
    from importlib.util import find_spec

    return {"driver_info": None} if find_spec("redis.driver_info") else {"lib_name": None, "lib_version": None}


def _ask(node: Node, question: Callable[[redis.Redis], T]) -> Answer[T]:
    from redis.exceptions import InvalidResponse, RedisError

    try:
        if node.endpoint is not None:
            node.endpoint.redirect(node.redis)
        return Answer(node.address, question(node.redis))
    except InvalidResponse as error:
        return Answer(node.address, None, f"{UNREADABLE}: {in_one_line(error)}")
    except (OSError, RedisError) as error:
        return Answer(node.address, None, in_one_line(error))
    except Exception as error:
        # A failure to read one node's replies, in redis-py or here, affects only that node.
        kind = "" if isinstance(error, ValueError) else f" ({type(error).__name__})"
        return Answer(node.address, None, f"{UNREADABLE}: {in_one_line(error)}{kind}")


def in_one_line(error: Exception) -> str:
    """Return an error as one line, without the address, which the caller shows."""
    text = " ".join(str(error).split())[:200] or type(error).__name__
    connecting = _CONNECTING.fullmatch(text)
    return connecting[1] if connecting else text


def tagging_of(client: redis.Redis) -> KeyTagging:
    """Return how keys are spelled on a client's node."""
    tagging: KeyTagging = getattr(client, "tagging", PLAIN)
    return tagging


def execute(client: redis.Redis, commands: Sequence[Command]) -> list[Any]:
    """Execute scripts on one node and return their replies.

    Raises:
        RedisError: The node refused one.
    """
    # The node learns each script with its first EVAL, because fewer users may call SCRIPT LOAD.
    known: set[Script] = set()
    pipeline = client.pipeline(transaction=False)
    for command in map(tagging_of(client).command, commands):
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


def questions(prefix: bytes, names: Iterable[bytes], most: int = 100) -> dict[bytes, Command]:
    """Return the commands that ask a node about each name, and to identify `most` holders and waiters at most.

    Raises:
        SetupError: No synchronizer can have such a name.
    """
    from redsync._protocols.surveys import look_command

    try:
        return {name: look_command(prefix, name, most) for name in names}
    except ValueError as error:
        raise SetupError(str(error), USAGE) from None


def look_at(client: redis.Redis, asked: Mapping[bytes, Command]) -> dict[bytes, NameLook]:
    """Return what the node stores under each of those names; names without anything are left out."""
    from redsync._protocols.surveys import NameLook

    looks: dict[bytes, NameLook] = {}
    names = list(asked)
    for begin in range(0, len(names), BATCH):
        batch = names[begin : begin + BATCH]
        replies = execute(client, [asked[name] for name in batch])
        looks |= {name: NameLook.read(reply) for name, reply in zip(batch, replies, strict=True)}
    return {name: look for name, look in looks.items() if not look.is_empty}


def look_around(nodes: Nodes, pattern: bytes, limit: int, most: int = 100) -> tuple[list[Answer[Any]], Looks, bool]:
    """Return each node's answer, what those that answer store under matching names, and whether there are more names.

    Each look scans all keys. Of more names than the limit it asks about the first ones as sorted, so that the next look
    chooses the same. It identifies `most` holders and waiters of each name at most.
    """
    from redsync._protocols.surveys import key_patterns, name_of_key

    def scan(client: redis.Redis) -> set[bytes]:
        tagging = tagging_of(client)
        keys = (
            tagging.plain(key)
            for each in key_patterns(nodes.prefix, pattern)
            for key in client.scan_iter(tagging.key(each), KEYS)
        )
        return {name for key in keys if (name := name_of_key(nodes.prefix, key)) is not None}

    found = dict(zip(nodes.nodes, nodes.ask(scan), strict=True))
    names = sorted(set[bytes]().union(*_values(found.values())))
    asked = questions(nodes.prefix, names[: limit + SPARE], most)
    answering = [node for node, answer in found.items() if answer.error is None]
    answers = nodes.ask(lambda client: look_at(client, asked), answering)
    looks = _values(answers)
    kept = [name for name in asked if any(name in each for each in looks)]
    shown = set(kept[:limit])
    every: dict[Node, Answer[Any]] = {**found, **dict(zip(answering, answers, strict=True))}
    has_more = len(kept) > limit or len(names) > limit + SPARE
    return (
        list(every.values()),
        [{name: seen for name, seen in each.items() if name in shown} for each in looks],
        has_more,
    )


def _values(answers: Iterable[Answer[T]]) -> list[T]:
    return [answer.value for answer in answers if answer.value is not None]
