"""Kinds of claim: scripts that follow one convention."""

import re

import pytest

from redsync._core.claims import ClaimKind
from redsync._core.scripts import Script
from redsync._protocols.fair_lock import FAIR_LOCK
from redsync._protocols.fenced_lock import FENCED_LOCK
from redsync._protocols.lock import LOCK
from redsync._protocols.mutex import MUTEX
from redsync._protocols.read_write_lock import READ, WRITE
from redsync._protocols.semaphore import SEMAPHORE

VERBS = ("acquire", "release", "abandon", "renew")
KINDS = [LOCK, FAIR_LOCK, MUTEX, SEMAPHORE, READ, WRITE]
kinds = pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.noun)


@kinds
def test_kind_is_made_of_the_scripts_of_its_noun(kind):
    nouns = [kind.noun] * 3 + ["lock" if kind is FAIR_LOCK else kind.noun]  # fair or not, it is renewed alike
    assert [getattr(kind, verb).name for verb in VERBS] == [f"{n}_{v}" for n, v in zip(nouns, VERBS, strict=True)]
    assert all(getattr(kind, verb) in Script.shipped() for verb in VERBS)


def test_each_script_that_makes_claims_belongs_to_a_kind():
    """So that a kind which is added is tested here too."""
    nouns = {script.name.removesuffix("_acquire") for script in Script.shipped() if script.name.endswith("_acquire")}
    assert nouns == {kind.noun for kind in (*KINDS, FENCED_LOCK)}


def test_fenced_lock_differs_from_the_lock_in_what_grants():
    """So what is given back, renewed or undone is handed over and kept alike."""
    assert FENCED_LOCK._replace(noun=LOCK.noun, acquire=LOCK.acquire) == LOCK
    assert FENCED_LOCK.acquire.name == "fenced_lock_acquire"


def test_kinds_share_no_script_and_no_type_of_value():
    one, other = LOCK, MUTEX
    assert not {getattr(one, verb) for verb in VERBS} & {getattr(other, verb) for verb in VERBS}
    assert one.value_type != other.value_type
    assert one != other


def test_kind_without_scripts_can_not_be_made():
    with pytest.raises(OSError, match=re.escape("no_such_noun_acquire.lua")):
        ClaimKind.of("no_such_noun", b"hash")


@kinds
def test_kind_does_not_change(kind):
    with pytest.raises(AttributeError):
        kind.noun = "other"
    options = {"renew": kind.renew.name, "by_ticket": kind.by_ticket, "label": kind.label, "mode": kind.mode}
    assert ClaimKind.of(kind.noun, kind.value_type, **options) == kind


# What protocols take for granted of every kind.


def test_claim_is_of_the_kinds_type_and_expires(claims, lasts):
    kind = next(kind for kind in KINDS if kind.noun == claims.noun)
    claims.acquire(lease=20_000)
    assert claims.redis.type("redsync:x") == kind.value_type
    assert lasts(claims.left(), 20_000)


def test_life_of_a_claim_is_answered_alike_by_every_kind(claims):
    me, other = b"client-a:1", b"client-b:2"
    assert claims.acquire(me) == 1
    assert claims.acquire(me) == 2
    remaining, holder = claims.acquire(other)
    assert 0 < remaining <= 30_000
    assert holder == me
    assert claims.queue(other)[1] == me
    assert claims.renew((b"x", me, 1, 40_000), (b"y", me, 1, 40_000)) == [2, 1]
    assert claims.renew((b"x", other, 1, 40_000)) == [0]
    assert claims.release(other) == 0
    assert claims.abandon(other, leave=True) == 0
    assert claims.abandon(me) == 1
    assert claims.acquire(other) == 1
    assert claims.release(other) == 1
    assert claims.release(other) == 0
    claims.redis.rpush("redsync:x", "foreign")
    assert claims.acquire(me) == 0
    assert claims.renew((b"x", me, 1, 40_000)) == [-1]
    assert claims.release(me) == 0
    assert claims.abandon(me) == 0
