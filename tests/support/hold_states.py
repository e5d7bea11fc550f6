"""Holds as a client keeps them, made by hand."""

import math

from redsync._core.holds import HoldState, Owner
from redsync._core.keys import LockKeys
from redsync._core.scripts import ClaimKind

KIND = ClaimKind.of("lock", b"hash")
LEASE = 30.0


def new_state(name=b"x", owner=None, *, valid_until=130.0, renew_at=110.0, ends_at=math.inf, kind=HoldState):
    owner = owner or Owner("c", 1)
    keys = LockKeys.of(b"redsync:", name)
    return kind(name, KIND, keys, owner, owner.claim(1), 1, LEASE, valid_until, renew_at, ends_at, 0b111, valid_until)
