"""Did any owner learn that a latch is open before the count-downs that open it had begun?

The clock that all processes share is the only evidence. A call that sets or deletes a latch may have made a new setting
from the moment it began, whatever its outcome. Once a call has returned that it set the latch, every later call finds
this setting, or one whose call was not over when that call began. So an owner that learns that the latch is open is
right if *some* of these settings can be open by now: if count-downs that add up to its value had begun.

The checker assumes that nodes remember: an owner that knows nothing may find a latch open that all nodes have
forgotten.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Hashable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Final, Protocol, TypeAlias

from redsync.testing.harness.journal import Line
from redsync.testing.harness.verdicts import Violation

__all__ = ["Counting", "Turns", "judge_latches", "most_counted", "tells_open"]

_NEVER: Final = 1 << 63


class Counting(Protocol):
    """A call that counts down, with its identity; the client's next call repeats one that failed."""

    @property
    def client(self) -> Hashable:
        """The client that makes it."""

    @property
    def n(self) -> int:
        """The amount it counts down."""


Turns: TypeAlias = Sequence[tuple[str, Counting]]
"""The count-downs in order: each "begins", and then "succeeds" or "fails", unless it never ends."""


def most_counted(turns: Turns, since: int) -> int:
    """Return how much may have been counted down of a setting made after `since` turns; each call counts once."""
    active: dict[Counting, None] = {}
    doubts: dict[Hashable, int] = {}
    counted = 0
    for i, (what, call) in enumerate(turns):
        if i == since:
            counted = sum(each.n for each in active)
        if what == "begins":
            active[call] = None
        else:
            del active[call]
        if i >= since:
            doubt = doubts.setdefault(call.client, 0)
            if what == "begins":
                counted += call.n - min(doubt, call.n)
                doubts[call.client] = max(doubt - call.n, 0)
            elif what == "fails":
                doubts[call.client] += call.n
    return counted if len(turns) > since else sum(each.n for each in active)


@dataclass(eq=False)
class _Call:
    """One call of an owner.

    Attributes:
        client: The number of the client.
        asked: Its first line.
        end: The line with its outcome.
        known: The instant at which the call began that made the latest setting its caller knew; None if there was none.
    """

    client: int
    asked: Line
    end: Line
    known: int | None = None

    @property
    def n(self) -> int:
        """The amount it sets or counts down."""
        return int(self.asked.get("n", 0))

    def __str__(self) -> str:
        asked = self.asked
        what = f"{asked['how']} {asked['name']}"
        return f"worker {asked['worker']}'s attempt {asked['number']} to {what}, begun at {asked['at']:,}"


def tells_open(line: Line) -> bool:
    """Return whether the line reports that a latch is open."""
    return line["event"] == "opened" or (line["event"] == "found" and line.get("left") == 0)


def judge_latches(journals: Iterable[tuple[Sequence[Line], int | None]]) -> list[Violation]:
    """Return the calls that reported too early that a latch is open.

    Args:
        journals: One for each process, with one client each, and an instant at which it had certainly ended; None if it
            finished on request.
    """
    by_name: dict[str, list[_Call]] = {}
    for client, (lines, ended_at) in enumerate(journals):
        for call in _calls(client, lines, _NEVER if ended_at is None else ended_at):
            by_name.setdefault(call.asked["name"], []).append(call)
    return [violation for calls in by_name.values() for violation in _early(calls)]


def _calls(client: int, lines: Sequence[Line], ended_at: int) -> list[_Call]:
    """Return the calls on latches in a journal."""
    calls: dict[tuple[int, int], _Call] = {}
    for line in lines:
        if str(line.get("name", "")).startswith("count_down_latch:") and "number" in line:
            key = line["worker"], line["number"]
            if key in calls:
                calls[key].end = line
            else:
                calls[key] = _Call(client, line, {"event": "no more", "at": ended_at})
    return list(calls.values())


def _early(calls: Sequence[_Call]) -> Iterator[Violation]:
    past = _Past()
    happened = [(call.asked["at"], past.begin, call) for call in calls]
    happened += [(call.end["at"], past.end, call) for call in calls]
    for _, happens, call in sorted(happened, key=lambda each: each[0]):
        early = happens(call)
        if early:
            yield Violation("latch opened early", f"{call}, returned so at {call.end['at']:,}: {early}")


class _Past:
    """All actions on one latch so far."""

    def __init__(self) -> None:
        self._running: dict[_Call, None] = {}
        self._settings: list[_Call] = []
        self._turns: list[tuple[int, str, _Call]] = []
        self._known: int | None = None

    def begin(self, call: _Call) -> str:
        """Record a call; return an empty string."""
        self._running[call] = None
        call.known = self._known
        if call.asked["how"] == "count down":
            self._turns.append((call.asked["at"], "begins", call))
        elif call.asked["how"] in {"set", "delete"}:
            self._settings.append(call)
        return ""

    def end(self, call: _Call) -> str:
        """Record the outcome of a call; return what is wrong with it, if anything."""
        del self._running[call]
        if call.asked["how"] == "count down":
            how = "succeeds" if call.end["event"] == "counted" else "fails"
            self._turns.append((call.end["at"], how, call))
        elif call.end["event"] == "set":
            self._known = max(self._known or 0, call.asked["at"])
            self._forget()
        elif tells_open(call.end) and call.known is not None:
            return self._judge(call.known)
        return ""

    def _judge(self, known: int) -> str:
        found = [each for each in self._settings if each.end["at"] > known]
        instants, turns = [at for at, _, _ in self._turns], [(what, call) for _, what, call in self._turns]
        most = {each: most_counted(turns, bisect_left(instants, each.asked["at"])) for each in found}
        if any(counted >= each.n for each, counted in most.items()):
            return ""
        return ", ".join(f"of {each.n} by {each}, at most {counted} had been counted" for each, counted in most.items())

    def _forget(self) -> None:
        """Forget settings that no call can find any more, or judging would take longer and longer."""
        known = min(each for each in (self._known, *(call.known for call in self._running)) if each is not None)
        self._settings = [each for each in self._settings if each.end["at"] > known]
        since = min(each.asked["at"] for each in self._settings)
        self._turns = [turn for turn in self._turns if turn[2].end["at"] >= since]
