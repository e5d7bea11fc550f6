"""Limits: which is newer, which is void, and which a client goes back to."""

import pytest

from redsync._core.limits import Limit, is_void, next_version

NOW_MS = 1_700_000_000_000
YEAR_MS = 366 * 86_400_000


def test_version_of_a_resize_exceeds_all_before_even_forgotten_ones():
    first = next_version(0, 10_000, NOW_MS)
    assert next_version(first, 1, NOW_MS) > first
    assert next_version(0, 1, NOW_MS + 10) > first
    assert next_version(7 << 32, 1, NOW_MS) > 7 << 32, "as earlier releases made them"


def test_versions_of_resizes_at_the_same_time_differ_unless_they_want_the_same():
    versions = {next_version(5, permits, NOW_MS) for permits in range(1, 10_001)}
    assert len(versions) == 10_000
    assert next_version(5, 3, NOW_MS) == next_version(5, 3, NOW_MS)


def test_version_is_exact_as_a_float():
    assert next_version(0, 10_000, NOW_MS + 100 * YEAR_MS) < 2**53


def test_version_is_void_if_it_is_more_than_a_year_ahead():
    version = next_version(0, 3, NOW_MS)
    assert not is_void(version, NOW_MS)
    assert not is_void(version, NOW_MS - YEAR_MS)
    assert is_void(version, NOW_MS - YEAR_MS - 10)
    assert not is_void(0, 0)
    assert not is_void(-1, NOW_MS)
    assert is_void(1 << 60, NOW_MS)


def test_limit_is_read_as_written():
    limit = Limit(3, 60)
    limit.learn(7, 4)
    assert limit.text == b"7 4 60"
    read = Limit.read(limit.text)
    assert (read.version, read.permits, read.per_us) == (7, 4, 60)


@pytest.mark.parametrize("text", [b"", b"1", b"a b", b"1 0", b"1 10001", b"-1 3", b"1 2 3 4"])
def test_text_of_absurd_size_or_shape_is_not_a_limit(text):
    with pytest.raises((TypeError, ValueError)):
        Limit.read(text)


def test_forgotten_limit_gives_way_to_the_proven_one_and_is_not_learned_again():
    limit = Limit(10)
    limit.learn(5, 3)
    limit.prove(4)
    limit.prove(5)
    limit.learn(9, 7)
    limit.prove(5)
    limit.forget()
    assert (limit.version, limit.permits, limit.lowered) == (5, 3, True)
    assert not limit.learn(9, 7)
    assert limit.learn(10, 7)


def test_limit_of_the_programs_was_never_lowered():
    limit = Limit(10)
    assert not limit.lowered
    limit.learn(9, 7)
    assert limit.lowered
    limit.forget()
    assert (limit.version, limit.permits, limit.lowered) == (0, 10, False)
