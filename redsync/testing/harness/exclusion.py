"""Did two owners hold at once, were there too many permits, did tokens shrink, was an update lost?

Each function has its own evidence, so that a broken lock must deceive all of them at once:

- `overlaps`, `most_at_once` and `disorder` trust the machine's clock: what owners believed at one instant.
- `ledger_overlaps` trusts the order of appends to a file, and no clock: two sections must follow one another.
- `lost_updates` trusts only the values that owners read and wrote: an increment that another owner overwrote.

Only broken promises are violations. A lost hold ends at its `valid_until`. An owner checks before it writes, but
between check and write the operating system may suspend it, so a write under a hold that was not kept may come *late*.
A killed process believed until it was killed, and may or may not have done its next write. Sections of such holds are
ignored in the order of appends.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from itertools import accumulate
from typing import TypeAlias

from redsync.testing.harness.holds import Hold, Key
from redsync.testing.harness.ledger import Entry
from redsync.testing.harness.verdicts import Violation

__all__ = ["Pair", "disorder", "judge_exclusion", "ledger_overlaps", "lost_updates", "most_at_once", "overlaps"]

Pair: TypeAlias = tuple[Key, Key]
"""Two acquisitions; the smaller key first, so that a pair is found once."""


def judge_exclusion(
    holds: Sequence[Hold],
    ledgers: Mapping[str, Sequence[Entry]],
    counters: Mapping[str, int],
    limit: int = 1,
) -> list[Violation]:
    """Return where exclusion was broken; `limit`: the number of permits of each semaphore."""
    violations = []
    for name, entries in ledgers.items():
        mine = [hold for hold in holds if hold.name == name]
        if name.startswith("semaphore:"):
            most, at = most_at_once(mine)
            violations += [Violation("too many permits", f"{most} of {name} at {at:,}")] if most > limit else []
            continue
        by_key = {hold.key: hold for hold in mine}
        found = [("overlap", overlaps(mine)), ("overlap in the ledger", ledger_overlaps(entries, mine))]
        found.append(("token does not grow", set(disorder(mine))))
        for promise, pairs in found:
            violations += [Violation(promise, " | ".join(str(by_key[key]) for key in pair)) for pair in sorted(pairs)]
        if lost := lost_updates(mine, counters[name]):
            violations.append(Violation("lost updates", f"{lost} of {name}, whose counter ended at {counters[name]}"))
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
    """Return pairs of an acquisition and a later one whose fencing token is not higher than all before it."""
    found, highest = [], None
    for hold in sorted(holds, key=lambda hold: hold.since):
        if hold.token is None:
            continue
        if highest is not None and highest.token is not None and hold.token <= highest.token:
            found.append((highest.key, hold.key))
        else:
            highest = hold
    return found


def ledger_overlaps(entries: Iterable[Entry], holds: Iterable[Hold]) -> set[Pair]:
    """Return the acquisitions of one lock whose sections do not follow one another in the ledger.

    Either one began between the other's `BEGIN` and `END`, or both have the same number, so neither saw the other.

    Two kinds of holds don't count: a hold that was not kept, which may have written too late, and one whose process was
    killed before it could record the grant.
    """
    kept = {hold.key for hold in holds if hold.kept}
    pairs: set[Pair] = set()
    open_ones: list[Key] = []
    numbered: dict[int, Key] = {}
    for entry in entries:
        key = entry.key
        if key not in kept:
            continue
        if entry.kind == "BEGIN":
            pairs.update(_pair(other, key) for other in open_ones)
            open_ones.append(key)
            if numbered.setdefault(entry.number, key) != key:
                pairs.add(_pair(numbered[entry.number], key))
        elif key in open_ones:
            open_ones.remove(key)
    return pairs


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
