"""Rounds of votes."""

from redsync._core.observing import round_of
from redsync._core.quorum import Tally, Verdict


def tally_of(*replies):
    """Count replies of that many nodes; a text means FAILED."""
    tally = Tally([f"node{i}" for i in range(len(replies))], lambda answer: answer)
    for node, reply in enumerate(replies):
        if isinstance(reply, str):
            tally.fail(node, reply)
        else:
            tally.record(node, reply)
    return tally


def make_round(**votes):
    """Return the votes of a round: for each node the seconds until its reply, or why it failed."""
    tally = Tally(list(votes), bool, decide=lambda _: Verdict.PENDING)
    for index, vote in enumerate(votes.values()):
        if isinstance(vote, str):
            tally.fail(index, vote)
        else:
            tally.record(index, 1, vote)
    return round_of(tally)
