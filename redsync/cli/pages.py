"""The names on the nodes, page by page: the cost of a page does not grow with the number of names.

Each node lists its names in its own order, so lists can't be merged. Instead each name belongs to one key on one node,
and is listed when SCAN finds that key. The node is the first one, in the order of the URLs, that has any key of the
name; the key is the first of the name's keys there (see `keys_of_name`). When a node has a name, we ask the nodes
before it whether they have it too; usually they do, and one EXISTS of a hundred keys says so. We remember only the last
page, because SCAN repeats keys while a table is being resized.

SCAN lists all keys that exist from its start to its end, and so do pages. A name that appears or disappears meanwhile
may be missing, or listed twice. If a node fails, the next node may list its names again.
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
"""Names per page, and the COUNT of a SCAN."""

STEPS: Final = 100
"""Calls of SCAN in each refresh of a window."""

NEWCOMERS: Final = 200
"""Names examined beyond those of a full window, because they may weigh more."""

_MOST: Final = 20
"""Holders and waiters identified for each name in a window: cheap enough for a query every second."""

_TOGETHER: Final = 100
"""Keys per EXISTS."""

Looks = list["dict[bytes, NameLook]"]
"""For each node that answers, what it stores under some names."""

T = TypeVar("T")


class _Place(NamedTuple):
    """The progress of a scan of one node's keys: the index of a pattern, and a cursor."""

    pattern: int = 0
    cursor: int = 0


_Step = tuple["dict[bytes, bytes]", _Place | None]
"""The names found, each with its key, and where to continue; None at the end."""


class Pages:
    """The names that match a pattern, with what nodes store under them, page by page.

    Attributes:
        answers: An answer for each node; its error is set once the node has failed, and we no longer query it.
    """

    def __init__(self, nodes: Nodes, pattern: bytes, size: int = PAGE) -> None:
        """Prepare pages of `size` names."""
        self.answers: list[Answer[Any]] = [Answer(node.address) for node in nodes.nodes]
        self._nodes = nodes
        self._step = _stepping(nodes.prefix, pattern)
        self._size = size

    def __iter__(self) -> Iterator[Looks]:
        # Query all nodes in parallel: in turn, we would wait for each node that hangs.
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
        """Yield each name when SCAN finds the key that it belongs to."""
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
        """Return the names of which a node has a key; it tries first the key found on another node."""
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
        """Return the answers of the nodes that have not failed."""
        asked = [number for number in numbers if self.answers[number].error is None]
        answers = self._nodes.ask(question, [self._nodes.nodes[number] for number in asked])
        for number, answer in zip(asked, answers, strict=True):
            if answer.error is not None:
                self.answers[number] = answer
        return _values(answers)


class Window:
    """The names that match a pattern, up to a limit, with what nodes store under them; refreshed by each `look`.

    Attributes:
        is_full: True if there are more names than the limit.
    """

    def __init__(
        self, nodes: Nodes, pattern: bytes, size: int, weight: Callable[[NameLook], int] = lambda _: 0
    ) -> None:
        """Limit the window to `size` names: it keeps the heaviest, and among equals those found first."""
        self.is_full = False
        self._nodes = nodes
        self._step = _stepping(nodes.prefix, pattern)
        self._size = size
        self._weight = weight
        self._names: dict[bytes, None] = {}
        self._places = {node.redis: _Place() for node in nodes.nodes}

    def look(self) -> tuple[list[Answer[Any]], Looks]:
        """Return each node's answer, and what the nodes that answer store."""
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
        """Continue the scan of a node's keys for some steps; return the names found that are not in the window."""
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
    """Return a function that makes one SCAN and finds the names that belong to its keys."""
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
            # Both other patterns may find the key; it belongs to the pattern that builds it.
            if key in own[1:] and (b"{" in own[0]) is (place.pattern == 2) and key in own[: len(before.get(name, own))]:
                found[name], before[name] = key, own[: own.index(key)]
        counts = count_existing(client, list(before.values()))
        for name, count in zip(before, counts, strict=True):
            if count:
                del found[name]
        return found, following if following.pattern < len(patterns) else None

    return step
