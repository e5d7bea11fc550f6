"""Prepared values: terms derived from a lease, and bytes equal to those of the command."""

import pytest

from redsync._core.effects import Broadcast
from redsync._core.keys import LockKeys
from redsync._core.memory import Processes
from redsync._core.ownership import Owner
from redsync._core.prepared import Prepared
from redsync._core.slots import SlotKeys
from redsync._core.timing import Timing
from redsync._drivers.channels import pack
from redsync._drivers.requests import Request
from redsync._protocols.fenced_lock import FENCED_LOCK
from redsync._protocols.lock import LOCK
from redsync._protocols.semaphore import SEMAPHORE

TIMING = Timing(30.0, restart_guard=30.0)
KEYS = LockKeys.of(b"redsync:", b"x")
OWNER = Owner.of("client", 7)


@pytest.fixture
def processes():
    return Processes()


@pytest.fixture
def prepared(processes):
    return Prepared(TIMING, processes)


def words(command):
    script, keys, args = command
    return [b"EVALSHA", script.sha, b"%d" % len(keys), *keys, *(a if isinstance(a, int) else bytes(a) for a in args)]


def sent(spelling, claim):
    """Return the bytes that the driver would send, and those that it would pack."""
    command = spelling.command(claim)
    return Request(Broadcast(command, OWNER, bool, 1.0, packing=spelling), None).data, pack(*words(command))


@pytest.mark.parametrize("lease", [None, 30.0, 2.5, 90.0])
def test_terms_follow_from_the_time_settings(prepared, lease):
    terms = prepared.terms(lease)
    seconds = 30.0 if lease is None else lease
    assert terms.lease == seconds
    assert terms.lease_ms == seconds * 1000
    assert 100.0 + terms.trusted == pytest.approx(TIMING.valid_until(100.0, seconds))
    assert terms.guard == TIMING.guard(seconds)
    assert terms.round_timeout == TIMING.round_timeout(seconds)
    assert bytes(terms.memory) == b"%d,-," % (terms.guard * 1000)
    assert prepared.terms(lease) is terms


def test_terms_without_a_guard_require_no_memory(processes):
    assert Prepared(Timing(30.0), processes).terms(None).memory == 0


@pytest.mark.parametrize("claim", [b"c", OWNER.claim(9), OWNER.claim(12345678), b"x" * 100])
def test_spelled_bytes_equal_those_of_the_command(prepared, claim):
    ask = prepared.spell_ask(LOCK.acquire, (KEYS.lock,), 3, prepared.terms(2.5))
    release = prepared.spell_release(LOCK.release, KEYS.all, KEYS.channel)
    for spelling in (ask, release, ask):
        data, packed = sent(spelling, claim)
        assert data == packed


@pytest.mark.parametrize("start", [0, 7, 9_999])
def test_spelled_bytes_of_an_ask_for_slots_are_those_of_the_command(prepared, processes, start):
    keys = SlotKeys.of(b"redsync:", b"x")
    spelling = prepared.spell_slots(SEMAPHORE.acquire, keys.all, 1, prepared.terms(None), (0, 10_000))
    for process in (b"first", b"second"):
        processes.note(0, process)
        command = spelling.command(OWNER.claim(9), start)
        assert command.args[4:] == (0, 0, b"", 0, 10_000, start, b"", 0)
        data = Request(Broadcast(command, OWNER, bool, 1.0, packing=spelling), None).data
        assert data == pack(*words(command))
    assert prepared.spell_slots(SEMAPHORE.acquire, keys.all, 1, prepared.terms(None), (0, 10_000)) is spelling
    for holds, limit in ((2, (0, 10_000)), (1, (1, 10_000)), (1, (0, 9_999))):
        assert prepared.spell_slots(SEMAPHORE.acquire, keys.all, holds, prepared.terms(None), limit) is not spelling


@pytest.mark.parametrize("timing", [TIMING, Timing(30.0)], ids=["guarded", "no guard"])
@pytest.mark.parametrize("latest", [0, 1764093600000001])
def test_spelled_bytes_of_an_ask_for_a_token_are_those_of_the_command(processes, timing, latest):
    prepared, keys = Prepared(timing, processes), (KEYS.lock, KEYS.token)
    spelling = prepared.spell_fenced(FENCED_LOCK.acquire, keys, 2, prepared.terms(2.5))
    for process in (b"first", b"second"):
        processes.note(0, process)
        command = spelling.command(b"claim", latest)
        assert command.args[:3] == (b"claim", 2, 2500)
        assert b",%b," % process in bytes(command.args[3]), "even without a guard"
        assert command.args[4:] == (latest,)
        data = Request(Broadcast(command, OWNER, bool, 1.0, packing=spelling), None).data
        assert data == pack(*words(command))
    assert prepared.spell_fenced(FENCED_LOCK.acquire, keys, 2, prepared.terms(2.5)) is spelling


def test_spelled_bytes_name_the_processes_of_the_instant_of_sending(prepared, processes):
    """A client may make a command before it is connected, and send it after that."""
    spelling = prepared.spell_ask(LOCK.acquire, (KEYS.lock,), 1, prepared.terms(None))
    command = spelling.command(b"claim")
    for process in (b"first", b"second"):
        processes.note(0, process)
        data = Request(Broadcast(command, OWNER, bool, 1.0, packing=spelling), None).data
        assert data == pack(*words(command))
        assert b",%b," % process in data


def test_equal_arguments_get_the_same_spelling_and_others_get_another(prepared):
    half, usual = prepared.terms(15.0), prepared.terms(None)
    other = LockKeys.of(b"redsync:", b"y")
    asks = [
        prepared.spell_ask(LOCK.acquire, keys.held, holds, terms)
        for keys in (KEYS, other)
        for holds in (1, 2)
        for terms in (half, usual)
    ]
    releases = [prepared.spell_release(LOCK.release, keys.all, keys.channel) for keys in (KEYS, other)]
    assert len({*map(id, asks), *map(id, releases)}) == 10
    again = LockKeys.of(b"redsync:", b"x")
    assert prepared.spell_ask(LOCK.acquire, again.held, 1, half) is asks[0]
    assert prepared.spell_release(LOCK.release, again.all, again.channel) is releases[0]


def test_number_of_entries_is_bounded_and_the_oldest_are_dropped_first(prepared):
    first, second = (prepared.spell_release(LOCK.release, (b"%d" % i,), b"") for i in range(2))
    for i in range(2, 1025):
        prepared.spell_release(LOCK.release, (b"%d" % i,), b"")
    assert prepared.spell_release(LOCK.release, (b"1",), b"") is second
    assert prepared.spell_release(LOCK.release, (b"0",), b"") is not first
    terms = prepared.terms(1.0)
    for i in range(64):
        prepared.terms(2.0 + i)
    assert prepared.terms(1.0) is not terms
