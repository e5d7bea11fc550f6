"""The names that nodes keep, some at a time: the cost of a page does not grow with their number.

Each node has its names in its own order, so their lists can't be merged. Instead each name belongs to one key on one
node, and is listed when that key is found. That node is the first one, in the order of the URLs, that has any key of
the name; that key is the first of its keys there (see `keys_of_name`). When a node has a name, the nodes before it are
asked whether they have it too; usually they do, and one EXISTS of a hundred keys says so. Only the last page is
remembered, because SCAN repeats itself while a table is being resized.

SCAN lists all keys that are there from its beginning to its end, and so do pages. A name that comes to a node or leaves
it meanwhile may be missing, or listed twice. If a node fails, the next one may list again what it has listed.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator
from functools import partial
from typing import TYPE_CHECKING, Any, Final, NamedTuple, TypeVar

from redsync.cli.asking import Answer, Nodes, count_existing, look_at, questions, scan

if TYPE_CHECKING:
    import redis

    from redsync._protocols.name_survey import NameLook

__all__ = ["PAGE", "Looks", "Pages", "Window"]

PAGE: Final = 1000
"""The number of names looked at together, and of keys that one SCAN is asked to go through."""

STEPS: Final = 100
"""Calls of SCAN for each look of a window."""

NEWCOMERS: Final = 200
"""Names looked at beyond those of a full window, because they may weigh more."""

_MOST: Final = 20
"""Holders and waiters of each name in a window: enough to see who, and cheap enough to be asked every second."""

_TOGETHER: Final = 100
"""Keys of one EXISTS."""

Looks = list["dict[bytes, NameLook]"]
"""What each node that answers keeps under some names."""

T = TypeVar("T")


class _Place(NamedTuple):
    """How far a node's keys were scanned: with which pattern, and to which cursor."""

    pattern: int = 0
    cursor: int = 0


_Step = tuple["dict[bytes, bytes]", _Place | None]
"""The names that were found, each with its key, and where to go on; None at the end."""


class Pages:
    """What nodes keep under the names that match a pattern, page by page.

    Attributes:
        answers: For each node, its error if it has failed and is no longer asked.
    """

    def __init__(self, nodes: Nodes, pattern: bytes, size: int = PAGE) -> None:
        """Look at that many names at a time."""
        self.answers: list[Answer[Any]] = [Answer(node.address) for node in nodes.nodes]
        self._nodes = nodes
        self._step = _stepping(nodes.prefix, pattern)
        self._size = size

    def __iter__(self) -> Iterator[Looks]:
        # All nodes at once; one after the other, we would wait for each node that hangs.
        self._ask(range(len(self.answers)), lambda client: client.ping())
        page: dict[bytes, None] = {}
        last: Collection[bytes] = ()
        for name in self._names():
            if name not in last:
                page[name] = None
            if len(page) == self._size:
                yield self._look(page)
                page, last = {}, page
        if page:
            yield self._look(page)

    def _names(self) -> Iterator[bytes]:
        """Yield each name when the key that it belongs to is found."""
        for number in range(len(self.answers)):
            place: _Place | None = _Place()
            while place:
                steps = self._ask([number], partial(self._step, place))
                new, place = steps[0] if steps else ({}, None)
                for earlier in range(number):
                    for known in self._ask([earlier], partial(self._known, new)):
                        new = {name: key for name, key in new.items() if name not in known}
                yield from new

    def _known(self, found: dict[bytes, bytes], client: redis.Redis) -> set[bytes]:
        """Return the names of which a node has any key, trying first the key by which another node had the name."""
        from redsync._protocols.name_survey import keys_of_name

        names = list(found)
        chunks = [names[begin : begin + _TOGETHER] for begin in range(0, len(names), _TOGETHER)]
        counts = count_existing(client, [[found[name] for name in chunk] for chunk in chunks])
        doubtful = [name for chunk, count in zip(chunks, counts, strict=True) if count < len(chunk) for name in chunk]
        counts = count_existing(client, [keys_of_name(self._nodes.prefix, name) for name in doubtful])
        return set(names) - {name for name, count in zip(doubtful, counts, strict=True) if not count}

    def _look(self, names: Iterable[bytes]) -> Looks:
        asked = questions(self._nodes.prefix, names)
        return self._ask(range(len(self.answers)), lambda client: look_at(client, asked))

    def _ask(self, numbers: Iterable[int], question: Callable[[redis.Redis], T]) -> list[T]:
        """Return the answers of those nodes that have not failed."""
        asked = [number for number in numbers if self.answers[number].error is None]
        answers = self._nodes.ask(question, [self._nodes.nodes[number] for number in asked])
        for number, answer in zip(asked, answers, strict=True):
            if answer.error is not None:
                self.answers[number] = answer
        return _values(answers)


class Window:
    """What nodes keep under the names that match a pattern, look by look: all of them, or as many as it has room for.

    Attributes:
        is_full: Whether there are more names than it has room for.
    """

    def __init__(
        self, nodes: Nodes, pattern: bytes, size: int, weight: Callable[[NameLook], int] = lambda _: 0
    ) -> None:
        """Make room for that many names; those that weigh most stay, and of these the first that were found."""
        self.is_full = False
        self._nodes = nodes
        self._step = _stepping(nodes.prefix, pattern)
        self._size = size
        self._weight = weight
        self._names: dict[bytes, None] = {}
        self._places = {node.redis: _Place() for node in nodes.nodes}

    def look(self) -> tuple[list[Answer[Any]], Looks]:
        """Return how each node answers, and what those that do keep."""
        found = self._nodes.ask(self._find)
        for node, answer in zip(self._nodes.nodes, found, strict=True):
            if answer.value is not None:
                self._places[node.redis] = answer.value[1]
        new = sorted(set().union(*(names for names, _ in _values(found))))
        room = max(self._size - len(self._names), 0) + NEWCOMERS
        asked = questions(self._nodes.prefix, [*self._names, *new[:room]], _MOST)
        answering = [node for node, answer in zip(self._nodes.nodes, found, strict=True) if answer.error is None]
        answers = self._nodes.ask(lambda client: look_at(client, asked), answering)
        weights = dict.fromkeys(asked, -1)
        for looks in _values(answers):
            for name, seen in looks.items():
                weights[name] = max(weights[name], self._weight(seen))
        kept = sorted((name for name in asked if weights[name] >= 0), key=lambda name: -weights[name])
        self.is_full = len(kept) > self._size or len(new) > room
        shown = dict.fromkeys(kept[: self._size])
        if len(_values(answers)) >= self._nodes.quorum:
            self._names = shown
        later = iter(answers)
        return (
            [next(later) if answer.error is None else answer for answer in found],
            [{name: seen for name, seen in looks.items() if name in shown} for looks in _values(answers)],
        )

    def _find(self, client: redis.Redis) -> tuple[set[bytes], _Place]:
        """Go on through a node's keys for a while; return the names found that are not in the window."""
        names: set[bytes] = set()
        place: _Place | None = self._places[client]
        for _ in range(STEPS):
            found, place = self._step(place or _Place(), client)
            names |= found.keys() - self._names.keys()
            if place is None or len(names) > self._size + NEWCOMERS:
                break
        return names, place or _Place()


def _values(answers: Iterable[Answer[T]]) -> list[T]:
    return [answer.value for answer in answers if answer.value is not None]


def _stepping(prefix: bytes, pattern: bytes) -> Callable[[_Place, redis.Redis], _Step]:
    """Return a function that makes one SCAN, and finds the names that belong to one of its keys."""
    from redsync._protocols.name_survey import key_patterns, keys_of_name, name_of_key

    patterns = key_patterns(prefix, pattern)

    def step(place: _Place, client: redis.Redis) -> _Step:
        cursor, keys = scan(client, place.cursor, patterns[place.pattern], PAGE)
        following = _Place(place.pattern, cursor) if cursor else _Place(place.pattern + 1)
        found = {}
        before: dict[bytes, tuple[bytes, ...]] = {}
        for key in keys:
            name = name_of_key(prefix, key)
            if name is None:
                continue
            if place.pattern == 0:
                if key == prefix + name:
                    found[name] = key
                continue
            own = keys_of_name(prefix, name)
            # Both other patterns may find a key; it belongs to the one that it is built by.
            if key in own[1:] and (b"{" in own[0]) is (place.pattern == 2) and key in own[: len(before.get(name, own))]:
                found[name], before[name] = key, own[: own.index(key)]
        counts = count_existing(client, list(before.values()))
        for name, count in zip(before, counts, strict=True):
            if count:
                del found[name]
        return found, following if following.pattern < len(patterns) else None

    return step
