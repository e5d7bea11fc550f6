"""Rounds of votes that are over."""

from redsync._core.observing import round_of
from redsync._core.quorum import Tally, Verdict


def make_round(**votes):
    """Return the votes of a round: for each node the seconds until its reply, or why it failed."""
    tally = Tally(list(votes), bool, decide=lambda _: Verdict.PENDING)
    for index, vote in enumerate(votes.values()):
        if isinstance(vote, str):
            tally.fail(index, vote)
        else:
            tally.record(index, 1, vote)
    return round_of(tally)
