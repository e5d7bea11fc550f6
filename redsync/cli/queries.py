"""Queries to all nodes in parallel, each answered separately; the inspecting commands share them.

No quorum decides what a command shows. A node that is down, hangs or refuses access yields an error as its answer and
never ends the command. Only the exit status says that too few nodes answered.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass
from typing import Any, Final, Generic, TypeVar

from redis.exceptions import InvalidResponse, RedisError

from redsync._core.scripts import Command, Script
from redsync._core.urls import NodeUrlError
from redsync._protocols.surveys import NameLook, key_patterns, look_command, name_of_key
from redsync.cli.arguments import prefix_of, urls_of
from redsync.cli.exits import FINE, UNCONFIGURED, UNREADABLE, USAGE, SetupError, status_without_quorum
from redsync.cli.nodes import Node, NodeClient, in_one_line, nodes_of

BATCH: Final = 200
"""Names per pipeline, so that a node serves other clients in between."""

LONGEST_ANSWER: Final = 60.0
"""Seconds that a node may take to answer everything in one query."""

KEYS: Final = 1000
"""The COUNT of a SCAN."""

T = TypeVar("T")

Looks = list[dict[bytes, NameLook]]
"""For each node that answers, what it stores under some names."""


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
    """The nodes that a command queries: those that the options name, or else the environment.

    Raises:
        SetupError: There are no URLs, or one is not valid.
    """

    def __init__(self, options: Any) -> None:
        self.prefix: Final = prefix_of(options).encode("utf-8", "surrogateescape")
        self.nodes: list[Node] = []
        for number, url in enumerate(urls_of(options), 1):
            try:
                self.nodes += nodes_of(url, options.timeout)
            except NodeUrlError as error:
                raise SetupError(f"node {number} {error}", UNCONFIGURED) from None
            except ValueError:
                text = f"node {number} has an option or a value that redis-py does not know"
                raise SetupError(text, UNCONFIGURED) from None
        self.quorum: Final = len(self.nodes) // 2 + 1

    def ask(self, question: Callable[[NodeClient], T], among: Sequence[Node] | None = None) -> list[Answer[T]]:
        """Query all nodes, or those in `among`, in parallel; return their answers in the nodes' order."""

        def ask(node: Node) -> T:
            with closing(node.connect()) as client:
                return question(client)

        return self.visit(ask, among)

    def visit(self, visit: Callable[[Node], T], among: Sequence[Node] | None = None) -> list[Answer[T]]:
        """Call a function with each node, or with those in `among`, in parallel; return what it returns as answers."""
        asked = self.nodes if among is None else among
        unheard = f"did not finish its answer within {LONGEST_ANSWER:g} s"
        answers: list[Answer[T]] = [Answer(node.address, None, unheard) for node in asked]

        def visit_one(index: int, node: Node) -> None:
            answers[index] = _answer(node, visit)

        threads = [threading.Thread(target=visit_one, args=item, daemon=True) for item in enumerate(asked)]
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


def _answer(node: Node, visit: Callable[[Node], T]) -> Answer[T]:
    try:
        return Answer(node.address, visit(node))
    except InvalidResponse as error:
        return Answer(node.address, None, f"{UNREADABLE}: {in_one_line(error)}")
    except (OSError, RedisError) as error:
        return Answer(node.address, None, in_one_line(error))
    except Exception as error:
        # A failure to read one node's replies, in redis-py or here, affects only that node.
        kind = "" if isinstance(error, ValueError) else f" ({type(error).__name__})"
        return Answer(node.address, None, f"{UNREADABLE}: {in_one_line(error)}{kind}")


def execute(client: NodeClient, commands: Sequence[Command]) -> list[Any]:
    """Execute scripts on one node and return their replies.

    Raises:
        RedisError: The node refused one.
    """
    # The node learns each script with its first EVAL, because fewer users may call SCRIPT LOAD.
    known: set[Script] = set()
    pipeline = client.pipeline(transaction=False)
    for command in map(client.tagging.command, commands):
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
    try:
        return {name: look_command(prefix, name, most) for name in names}
    except ValueError as error:
        raise SetupError(str(error), USAGE) from None


def look_at(client: NodeClient, asked: Mapping[bytes, Command]) -> dict[bytes, NameLook]:
    """Return what the node stores under each of those names; names without anything are left out."""
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
    chooses the same; names that have just gone are left out. It identifies `most` holders and waiters of each name at
    most.
    """

    def scan(client: NodeClient) -> set[bytes]:
        tagging = client.tagging
        keys = (
            tagging.plain(key)
            for each in key_patterns(nodes.prefix, pattern)
            for key in client.scan_iter(tagging.key(each), KEYS)
        )
        return {name for key in keys if (name := name_of_key(nodes.prefix, key)) is not None}

    found = dict(zip(nodes.nodes, nodes.ask(scan), strict=True))
    names = sorted(set[bytes]().union(*_values(found.values())))
    asked = questions(nodes.prefix, names[:limit], most)
    answering = [node for node, answer in found.items() if answer.error is None]
    answers = nodes.ask(lambda client: look_at(client, asked), answering)
    every: dict[Node, Answer[Any]] = {**found, **dict(zip(answering, answers, strict=True))}
    return list(every.values()), _values(answers), len(names) > limit


def _values(answers: Iterable[Answer[T]]) -> list[T]:
    return [answer.value for answer in answers if answer.value is not None]
