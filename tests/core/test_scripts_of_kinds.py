"""Kinds of claim: scripts that follow one convention."""

import re

import pytest

from redsync._core.scripts import ClaimKind, Script
from redsync._protocols.fenced_lock import FENCED_LOCK
from redsync._protocols.lock import FAIR_LOCK, LOCK
from redsync._protocols.mutex import MUTEX
from redsync._protocols.read_write_lock import READ, WRITE
from redsync._protocols.semaphore import SEMAPHORE

VERBS = ("acquire", "release", "abandon", "renew")
SCRIPTS = {
    LOCK: {"*": "lock"},
    FAIR_LOCK: {"*": "lock", "acquire": "fair_lock"},
    FENCED_LOCK: {"*": "lock", "acquire": "fenced_lock"},
    MUTEX: {"*": "lock", "acquire": "mutex", "renew": "mutex"},
    READ: {"*": "read_write_lock"},
    WRITE: {"*": "read_write_lock"},
    SEMAPHORE: {"*": "semaphore"},
}
"""Whose scripts each kind uses."""


@pytest.mark.parametrize("kind", SCRIPTS, ids=lambda kind: kind.noun)
def test_kind_uses_the_scripts_of_its_noun_and_those_that_it_shares(kind):
    nouns = SCRIPTS[kind]
    assert [getattr(kind, verb).name for verb in VERBS] == [f"{nouns.get(verb, nouns['*'])}_{verb}" for verb in VERBS]
    assert all(getattr(kind, verb) in Script.shipped() for verb in VERBS)
    with pytest.raises(AttributeError):
        kind.noun = "other"


def test_each_script_that_makes_claims_belongs_to_a_kind():
    """So that this module tests new kinds too."""
    assert {kind.acquire for kind in SCRIPTS} == {each for each in Script.shipped() if each.name.endswith("_acquire")}


def test_kinds_that_share_keys_and_scripts_differ_in_the_type_of_their_value_or_in_their_mode():
    assert len({(kind.release, kind.value_type, kind.mode) for kind in (LOCK, MUTEX, READ, WRITE, SEMAPHORE)}) == 5


def test_kind_without_scripts_can_not_be_made():
    with pytest.raises(OSError, match=re.escape("no_such_noun_acquire.lua")):
        ClaimKind.of("no_such_noun", b"hash")
