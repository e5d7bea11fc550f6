"""The fair lock: the reentrant lock's claim and re-entry, with a queue by ticket; see `places`."""

from __future__ import annotations

from redsync._core.claims import ClaimKind

__all__ = ["FAIR_LOCK"]

FAIR_LOCK = ClaimKind.of("fair_lock", b"hash", renew="lock_renew", by_ticket=True)
