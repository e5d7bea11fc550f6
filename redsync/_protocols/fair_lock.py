"""The fair lock: the claim and re-entry of the reentrant lock, with a queue by ticket; see `places`."""

from __future__ import annotations

from redsync._core.scripts import Script
from redsync._protocols.lock import LOCK

__all__ = ["FAIR_LOCK"]

FAIR_LOCK = LOCK._replace(noun="fair_lock", acquire=Script.load("fair_lock_acquire"))
