"""Did two ever hold one lock at once, and was an update lost?

The judges of the demo decide, each with a witness of its own: the clock, the order of appends to a file, the values of
a counter. Here is said what they are to make of processes that were killed or stopped:

- A killed process believed until it was killed, at most until the `valid_until` that it had written down last.
- It may or may not have written what it was about to write, so its write is one that may be *late*. So is every write
  under a hold that was no more valid after it: the process may have stood still between its last look and the write.
- Sections of such holds have no place in the order of appends.
"""

from collections.abc import Mapping, Sequence

from redsync.cli.demo_checks import interval_overlaps, ledger_overlaps, lost_updates
from redsync.cli.demo_ledger import Entry
from tests.soak.journal import Hold
from tests.soak.verdicts import Violation


def judge_exclusion(
    holds: Sequence[Hold], ledgers: Mapping[str, Sequence[Entry]], counters: Mapping[str, int]
) -> list[Violation]:
    """Return where exclusion was broken.

    Args:
        holds: Of all processes.
        ledgers: By lock, what was appended under it.
        counters: By lock, what its counter showed in the end.
    """
    violations = []
    for name, entries in ledgers.items():
        mine = [hold for hold in holds if hold.name == name]
        attempts = [hold.attempt() for hold in mine]
        by_key = {(hold.worker, hold.granted): hold for hold in mine}
        # A section whose process was killed before it could write that it was granted is none that is known to be kept.
        unkept = {entry.key for entry in entries} - {key for key, hold in by_key.items() if hold.kept}
        for promise, pairs in (
            ("overlap", interval_overlaps(attempts)),
            ("overlap in the ledger", ledger_overlaps(entries, unkept)),
        ):
            violations += [Violation(promise, " | ".join(str(by_key[key]) for key in pair)) for pair in sorted(pairs)]
        if lost := lost_updates(attempts, counters[name]):
            violations.append(Violation("lost updates", f"{lost} of {name}, whose counter ended at {counters[name]}"))
    return violations
