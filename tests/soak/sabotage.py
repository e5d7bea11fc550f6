"""Ways to break redsync on purpose: a checker that never finds anything proves nothing.

`python -m tests.soak.sabotage everything` is a client process that first does that. Another way needs no code: a
`restart_guard` of 0 among nodes that forget.
"""

import sys

from redsync import Client
from redsync._core import quorum
from redsync._core.latches import LatchState
from redsync._drivers.notifier import Notifier
from redsync.testing.harness import process


def everything():
    """Break all that this module can break."""
    win_with_one()
    report_nothing()
    close_nothing()


def win_with_one():
    """Let a single node's grant win a lock."""
    judge = quorum.verdict_of

    def judge_with_one(choices, **kwargs):
        return quorum.Verdict.WON if quorum.Choice.GRANTED in choices else judge(choices, **kwargs)

    quorum.verdict_of = judge_with_one


def report_nothing():
    """Lose holds silently."""
    Notifier.announce = lambda notifier, event: None


def open_early():
    """Let latches open when one count-down is left."""
    LatchState.count = property(lambda state: max(state.size - 1 - len(state.arrivals), 0))


def close_nothing():
    """Let clients end without ending their connections."""
    Client.close = lambda client: None


if __name__ == "__main__":
    globals()[sys.argv[1]]()
    sys.exit(process.main())
