"""The checker of fencing tokens finds protocols broken on purpose, and nothing in runs by seed of the real one."""

import re

import pytest

from redsync._protocols import fenced_lock
from redsync._protocols.tokens import FencedClaim
from redsync.testing.simulator.checks import Tokens
from tests.support.hunting import break_script, hunt


def test_maximum_that_is_not_written_back_is_found(monkeypatch):
    is_settled = FencedClaim.is_settled
    monkeypatch.setattr(FencedClaim, "is_settled", lambda claim, tally: is_settled(claim, tally) or True)
    assert "earlier" in hunt(Tokens, range(1000, 1400), kind="fenced")


def test_lock_whose_re_entry_has_another_token_is_found(monkeypatch):
    acquire = fenced_lock.acquire

    def acquire_anew(session, request, fence, now):
        nested = request.keys.hold in request.owner.holds
        state = yield from acquire(session, request, fence, now)
        if nested and state is not None:
            state.fencing_token += 1
        return state

    monkeypatch.setattr(fenced_lock, "acquire", acquire_anew)
    assert re.search(r"had token (\d+), and now has \d+", hunt(Tokens, range(40), kind="fenced"))


@pytest.mark.sweep
def test_tokens_that_begin_at_zero_after_a_loss_are_found():
    broken = break_script("fenced_lock_acquire", ("time[1] * 1000000 + time[2]", "1"))
    assert "earlier" in hunt(Tokens, range(1012, 1400), kind="fenced", scripts=broken)
