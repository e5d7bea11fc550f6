"""Prepared values: terms derived from a lease, and bytes equal to those of the command."""

import math

import pytest

from redsync._core.command_cache import CommandCache
from redsync._core.effects import Broadcast
from redsync._core.holds import Owner
from redsync._core.keys import LockKeys
from redsync._core.memory import Processes
from redsync._core.timing import Timing
from redsync._drivers.handshake_connections import pack
from redsync._drivers.requests import Request
from redsync._protocols.fenced_lock import FENCED_LOCK
from redsync._protocols.lock import LOCK

TIMING = Timing(30.0, restart_guard=30.0)
KEYS = LockKeys.of(b"redsync:", b"x")
OWNER = Owner("client", 7)


@pytest.fixture
def processes():
    return Processes()


@pytest.fixture
def cache(processes):
    return CommandCache(TIMING, processes)


def words(command):
    script, keys, args, _ = command
    return [b"EVALSHA", script.sha, b"%d" % len(keys), *keys, *(a if isinstance(a, int) else bytes(a) for a in args)]


def sent(ready, claim):
    """Return the bytes that the driver would send, and those that it would pack."""
    command = ready.command(claim)
    return Request(Broadcast(command, OWNER, bool, 1.0), None).data, pack(*words(command))


@pytest.mark.parametrize("lease", [None, 30.0, 2.5, 90.0])
def test_terms_follow_from_the_time_settings(cache, lease):
    terms = cache.terms[lease]
    seconds = 30.0 if lease is None else lease
    assert terms.lease == seconds
    assert terms.lease_ms == seconds * 1000
    assert 100.0 + terms.trusted == pytest.approx(TIMING.valid_until(100.0, seconds))
    assert terms.guard == TIMING.guard(seconds)
    assert terms.round_timeout == TIMING.round_timeout(seconds)
    assert terms.renewed_after == (10.0 if lease is None else math.inf)
    assert bytes(terms.memory) == b"%d,-," % (terms.guard * 1000)
    assert cache.terms[lease] is terms


def test_terms_without_a_guard_require_no_memory(processes):
    assert CommandCache(Timing(30.0), processes).terms[None].memory == 0


@pytest.mark.parametrize("claim", [b"c", OWNER.claim(9), OWNER.claim(12345678), b"x" * 100])
def test_packed_bytes_equal_those_of_the_command(cache, claim):
    terms = cache.terms[2.5]
    ask = cache.pack(LOCK.acquire, (KEYS.lock,), (3, terms.lease_ms, terms.memory))
    release = cache.pack(LOCK.release, KEYS.all, (0, KEYS.channel))
    for ready in (ask, release, ask):
        data, packed = sent(ready, claim)
        assert data == packed


@pytest.mark.parametrize("number", [0, 7, 1764093600000001])
def test_packed_bytes_with_a_number_are_those_of_the_command(cache, processes, number):
    terms = cache.terms[None]
    ready = cache.pack_numbered(FENCED_LOCK.acquire, KEYS.all, (2, terms.memory))
    for process in (b"first", b"second"):
        processes.note(0, process)
        command = ready.command(OWNER.claim(9), number)
        assert command.args == (OWNER.claim(9), 2, terms.memory, number)
        data = Request(Broadcast(command, OWNER, bool, 1.0), None).data
        assert data == pack(*words(command))
        assert b",%b," % process in data


def test_packed_bytes_name_the_processes_of_the_instant_of_sending(cache, processes):
    """A client may make a command before it is connected, and send it after that."""
    ready = cache.pack(LOCK.acquire, (KEYS.lock,), (1, cache.terms[None].memory))
    command = ready.command(b"claim")
    for process in (b"first", b"second"):
        processes.note(0, process)
        data = Request(Broadcast(command, OWNER, bool, 1.0), None).data
        assert data == pack(*words(command))
        assert b",%b," % process in data


def test_equal_acquires_share_templates_and_others_have_their_own(cache):
    known = [
        (noun, lock, holds, lease, limit)
        for noun in ("lock", "mutex")
        for lock in (b"x", b"y")
        for holds in (1, 2)
        for lease in (None, 15.0)
        for limit in (None, (0, 9), (1, 9))
    ]
    templates = [cache.templates[each] for each in known]
    assert len(set(map(id, templates))) == len(known)
    assert all(cache.templates[each] is made for each, made in zip(known, templates, strict=True))
    assert all(made.terms is cache.terms[each[3]] for each, made in zip(known, templates, strict=True))
    assert {(made.ask, made.release) for made in templates} == {(None, None)}


def test_number_of_entries_is_bounded_and_the_oldest_are_dropped_first(cache):
    first, second = (cache.templates["lock", b"%d" % i, 1, None, None] for i in range(2))
    first.ask = first.release = cache.pack(LOCK.acquire, (b"0",), ())
    for i in range(2, 1025):
        cache.templates["lock", b"%d" % i, 1, None, None]
    assert cache.templates["lock", b"1", 1, None, None] is second
    assert cache.templates["lock", b"0", 1, None, None] is not first
    assert (first.ask, first.release) == (None, None), "holds keep it, but not its commands"
    terms = cache.terms[1.0]
    for i in range(64):
        cache.terms[2.0 + i]
    assert cache.terms[1.0] is not terms
