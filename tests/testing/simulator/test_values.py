"""How numbers are parsed and formatted, compared with text from a real node."""

import pytest

from redsync.testing.simulator.values import CommandError, format_score, parse_integer, parse_score


@pytest.mark.parametrize("word", [b"", b" 1", b"+1", b"01", b"1_0", b"1.0", b"-0", b"x", b"%d" % 2**63])
def test_integer_is_parsed_strictly(word):
    with pytest.raises(CommandError, match="not an integer or out of range"):
        parse_integer(word)


def test_integers_of_64_bits_are_parsed():
    assert [parse_integer(b"%d" % number) for number in (0, -(2**63), 2**63 - 1)] == [0, -(2**63), 2**63 - 1]


@pytest.mark.parametrize("word", [b"", b" 1", b"1_0", b"nan", b"x"])
def test_score_is_parsed_strictly(word):
    with pytest.raises(CommandError, match="not a valid float"):
        parse_score(word)


@pytest.mark.parametrize(
    ("score", "text"),
    [
        (0.0, b"0"),
        (-0.5, b"-0.5"),
        (1_700_000_000_123.0, b"1700000000123"),
        (1e15, b"1000000000000000"),
        (1e20, b"1e+20"),
        (123456789012345678.0, b"123456789012345680"),
        (0.00001, b"0.00001"),
        (-1.5e-12, b"-1.5e-12"),
        (float("-inf"), b"-inf"),
    ],
)
def test_score_is_formatted_as_a_node_does(score, text):
    assert format_score(score) == text
    assert parse_score(text) == score
