"""The judges of what owners recorded: exclusion, losses, and the end of a run.

A judge is a pure function of what owners recorded. redsync's promises have conditions, and the judges apply exactly
these. Machines are busy, so they judge no delays: simulations do.

**Exclusion**: did two owners hold at once, were there too many permits, did tokens shrink, was an update lost?

Each function has its own evidence, so that a broken lock must deceive all of them at once:

- `overlaps`, `most_at_once` and `disorder` trust the machine's clock: what owners believed at one instant.
- `lost_updates` trusts only the values that owners read and wrote: an increment that another owner overwrote.

Only broken promises are violations. A lost hold ends at its `valid_until`. An owner checks before it writes, but
between check and write the operating system may suspend it, so a write under a hold that was not kept may come *late*.
A killed process believed until it was killed, and may or may not have done its next write.

**Losses**: was each reported, once and correctly?

**The end**, after all faults: can every owner acquire everything again, and do nodes and clients keep nothing?
"""

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from itertools import accumulate
from typing import Final, NamedTuple, TypeAlias, TypeVar

from tests.chaos.held_intervals import Hold, Key
from tests.chaos.history import Line


class Violation(NamedTuple):
    """A broken promise.

    Attributes:
        promise: The promise, in a word or two.
        story: The owners, the times, and the histories with the details.
    """

    promise: str
    story: str

    def __str__(self) -> str:
        return f"{self.promise}: {self.story}"


Pair: TypeAlias = tuple[Key, Key]
"""Two acquisitions; the smaller key first, so that a pair is found once."""


def judge_exclusion(holds: Sequence[Hold], counters: Mapping[str, int], limit: int = 1) -> list[Violation]:
    """Return where exclusion was broken; `limit`: the number of permits of each semaphore."""
    violations = []
    for name, counter in counters.items():
        mine = [hold for hold in holds if hold.name == name]
        if name.startswith("semaphore:"):
            most, at = most_at_once(mine)
            violations += [Violation("too many permits", f"{most} of {name} at {at:,}")] if most > limit else []
            continue
        by_key = {hold.key: hold for hold in mine}
        found = [("overlap", overlaps(mine)), ("token does not grow", set(disorder(mine)))]
        for promise, pairs in found:
            violations += [Violation(promise, " | ".join(str(by_key[key]) for key in pair)) for pair in sorted(pairs)]
        if lost := lost_updates(mine, counter):
            violations.append(Violation("lost updates", f"{lost} of {name}, whose counter ended at {counter}"))
    return violations


def overlaps(holds: Iterable[Hold]) -> set[Pair]:
    """Return pairs of holds of one synchronizer that two owners believed at the same instant, unless both only read.

    Belief is a half-open interval: one may begin at the very instant at which another ends.
    """
    pairs: set[Pair] = set()
    open_ones: list[tuple[int, Hold]] = []
    for hold in sorted(holds, key=lambda hold: hold.since):
        until = hold.believed_until
        if until <= hold.since:
            continue  # over before its owner looked: it never believed
        open_ones = [(end, other) for end, other in open_ones if end > hold.since]
        pairs.update(_pair(other.key, hold.key) for _, other in open_ones if _excludes(other, hold))
        open_ones.append((until, hold))
    return pairs


def _excludes(one: Hold, other: Hold) -> bool:
    if one.mode != other.mode:
        return one.owner != other.owner  # a writer may read
    return one.mode != "read"


def most_at_once(holds: Iterable[Hold]) -> tuple[int, int]:
    """Return the largest number of holds that were believed at one instant, and that instant."""
    spans = [(hold.since, hold.believed_until) for hold in holds]
    # Ends first: an owner that acquires what another releases at this very instant does not overlap with it.
    changes = sorted(change for since, until in spans if until > since for change in ((since, 1), (until, -1)))
    counts = accumulate(by for _, by in changes)
    return max(((count, at) for count, (at, _) in zip(counts, changes, strict=True)), default=(0, 0))


def disorder(holds: Iterable[Hold]) -> list[Pair]:
    """Return pairs of an acquisition and a later one whose fencing token is not higher than all before it.

    Only holds that their owner believed count: a process that was stopped inside `acquire` records an old token late.
    """
    found, highest = [], None
    for hold in sorted(holds, key=lambda hold: hold.since):
        if hold.token is None or hold.believed_until <= hold.since:
            continue
        if highest is not None and highest.token is not None and hold.token <= highest.token:
            found.append((highest.key, hold.key))
        else:
            highest = hold
    return found


def _pair(one: Key, other: Key) -> Pair:
    return (one, other) if one <= other else (other, one)


def lost_updates(holds: Iterable[Hold], counter: int) -> int:
    """Return how many increments of one lock's counter were lost, or appeared from nowhere.

    Each owner must have read what the one before it wrote, and the counter must show what the last one wrote; then the
    counter is the number of increments. A difference counts unless a *late* write explains it, that is a write under a
    hold that was not kept: the value read must be exactly the value of the late write.
    """
    ordered = sorted((hold for hold in holds if hold.written), key=lambda hold: hold.granted)
    late = {hold.written for hold in ordered if not hold.kept}
    kept = [hold for hold in ordered if hold.kept]
    wrote = [0, *(hold.written for hold in kept)]
    found = [*(hold.read for hold in kept), counter]
    return sum(abs(value - there) for value, there in zip(wrote, found, strict=True) if there not in late)


def judge_losses(holds: Sequence[Hold]) -> list[Violation]:
    """Return the losses that one process did not report, or reported wrongly."""
    return [Violation(promise, f"{hold}: {story}") for hold in holds for promise, story in _untold(hold)]


def judge_hearing(lines: Sequence[Line], killed_at: int | None) -> list[Violation]:
    """Return a violation if listeners and `on_lost` of one process saw different numbers of losses."""
    told, heard = (sum(line["event"] == event for line in lines) for event in ("told", "heard"))
    # They are called one after the other, so a kill may come in between, for each thread that reports.
    if told == heard or (killed_at is not None and heard < told <= heard + 3):
        return []
    return [Violation("loss not told", f"on_lost was called {told} times, but there were {heard} HoldLost events")]


def _untold(hold: Hold) -> Iterator[tuple[str, str]]:
    if len(hold.told) > 1:
        yield "loss told twice", f"at {[line['at'] for line in hold.told]}"
    if hold.told and hold.gone == "released":
        yield "loss told wrongly", "it was reported lost and then released without an error"
    if any(not line["lost"] or line["remaining"] for line in hold.told):
        yield "loss told wrongly", f"in its own callback it was {hold.told}"
    # A hold that was valid at the end of the work may turn out lost only in its release, whose error reports it.
    must_be_told = hold.gone == "lost inside" or (hold.gone is not None and not hold.kept)
    if must_be_told and not hold.told:
        yield "loss not told", "no callback was called"


T = TypeVar("T")

_CLAIMS: Final = (b"redsync:", b"redsync_queue:", b"redsync_places:")
_RECORDS: Final = b"redsync:client:"


def judge_liveness(lines: Sequence[Line], names: Collection[str], workers: Collection[int]) -> list[Violation]:
    """Return the locks that workers of a process that finished on request did not get after the faults."""
    violations = []
    last = {(line["worker"], line["name"]): line for line in lines if line["event"] == "last"}
    for worker in workers:
        for name in names:
            line = last.get((worker, name))
            if line is None or not line["got"]:
                why = "never tried" if line is None else f"got {line['why']}"
                violations.append(Violation("lock stuck", f"worker {worker} {why} at the end, of {name}"))
    return violations


def judge_leaks(lines: Sequence[Line]) -> list[Violation]:
    """Return the threads and sockets that the closed client of a process left behind."""
    closed = [line for line in lines if line["event"] == "closed"]
    if not closed:
        return [Violation("leak", "a client was never closed")]
    if closed[-1]["threads"] or closed[-1]["sockets"]:
        left = f"threads {closed[-1]['threads']} and {closed[-1]['sockets']} sockets"
        return [Violation("leak", f"a closed client left {left}")]
    return []


def judge_complaints(lines: Sequence[Line]) -> list[Violation]:
    """Return the library's own errors that it logged with a traceback."""
    return [Violation("inner error", line["text"]) for line in lines if line["event"] == "complaint"]


def judge_zombies(left: Mapping[int, Collection[str]]) -> list[Violation]:
    """Return the claims and places left on nodes, by node, although all clients are gone."""
    return [Violation("zombie", f"node {node} keeps {key}") for node, keys in left.items() for key in keys]


def zombies(
    scan: Callable[[], Mapping[T, Collection[bytes]]],
    timeout: float,
    clock: Callable[[], float],
    rest: Callable[[], None],
) -> dict[T, list[bytes]]:
    """Return the claims and places still on the nodes although no client holds or waits, by node.

    A command under way may need a moment, so a key counts only if it outlasts `timeout` seconds, in which scans and
    rests take turns. The record in which a client identifies itself is not a claim.
    """
    deadline = clock() + timeout
    while True:
        at = clock()
        left = {
            node: sorted(key for key in keys if key.startswith(_CLAIMS) and not key.startswith(_RECORDS))
            for node, keys in scan().items()
        }
        found = {node: keys for node, keys in left.items() if keys}
        if not found or at >= deadline:
            return found
        rest()
