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
KINDS = [LOCK, MUTEX, SEMAPHORE, READ, WRITE]
kinds = pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.noun)


@kinds
def test_kind_is_made_of_the_scripts_of_its_noun(kind):
    assert [getattr(kind, verb).name for verb in VERBS] == [f"{kind.noun}_{verb}" for verb in VERBS]
    assert all(getattr(kind, verb) in Script.shipped() for verb in VERBS)


def test_each_script_that_makes_claims_belongs_to_a_kind():
    """So that this module tests new kinds too."""
    nouns = {script.name.removesuffix("_acquire") for script in Script.shipped() if script.name.endswith("_acquire")}
    assert nouns == {kind.noun for kind in (*KINDS, FAIR_LOCK, FENCED_LOCK)}


@pytest.mark.parametrize("kind", [FAIR_LOCK, FENCED_LOCK], ids=lambda kind: kind.noun)
def test_lock_of_another_kind_differs_in_granting_only(kind):
    """So release, renewal and rollback hand over and keep claims alike."""
    assert kind._replace(noun=LOCK.noun, acquire=LOCK.acquire) == LOCK
    assert kind.acquire.name == f"{kind.noun}_acquire"


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
    assert ClaimKind.of(kind.noun, kind.value_type, label=kind.label, mode=kind.mode) == kind
