"""Foreign text, made safe to show."""

import unicodedata

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from redsync._core.text import one_line, outline, printable, split_urls

HOSTILE = {
    "escape": ("\x1b]0;OWNED\x07\x1b[2J", "\\x1b]0;OWNED\\x07\\x1b[2J"),
    "a C1 control": ("\x9b31m", "\\x9b31m"),
    "a new line": ("a\r\nredsync lock: b", "a\\r\\nredsync lock: b"),
    "line separators": ("a\u2028b\x85c\x0bd", "a\\u2028b\\x85c\\x0bd"),
    "a change of direction": ("\u202egnp.exe\u2066\u200f", "\\u202egnp.exe\\u2066\\u200f"),
    "nothing to be seen": ("a\u200bb\u00adc\ufeff", "a\\u200bb\\xadc\\ufeff"),
    "a lone surrogate": ("\udc80\ud800", "\\udc80\\ud800"),
    "a tag beyond the basic plane": ("\U000e0041", "\\U000e0041"),
    "delete, tab, nul": ("\x7f\t\0", "\\x7f\\t\\x00"),
    "nothing of it": ("naïve 名 \\x1b", "naïve 名 \\x1b"),
}


@pytest.mark.parametrize("case", HOSTILE)
def test_dangerous_characters_are_escaped(case):
    text, expected = HOSTILE[case]
    assert printable(text) == expected


@given(st.text(st.characters(codec=None, exclude_categories=[])))
@settings(derandomize=True)
def test_only_printable_characters_are_left(text):
    seen = printable(text)
    assert all(unicodedata.category(c)[0] not in "CZ" or c == " " for c in seen)
    assert printable(seen) == seen
    seen.encode()


def test_error_is_one_short_line():
    assert one_line("ERR  a\n\tb\x1b[1m") == "ERR a b\\x1b[1m"
    assert one_line("x" * 1000) == "x" * 200


@pytest.mark.parametrize(
    ("reply", "seen"),
    [
        (7, "7"),
        ([b"busy", [1, None]], "[b'busy', [1, None]]"),
        (b"x" * 10**6, f"b'{'x' * 60}'"),
        ([[[[["too deep"]]]]], "[[[[...]]]]"),
        (list(range(10**6)), "[0, 1, 2, 3, 4, 5, ...]"),
    ],
)
def test_outline_of_reply_shows_its_beginning(reply, seen):
    assert outline(reply) == seen


# URLs.

GROUP = "redis+sentinel://user:a,b@s1:1,s2:2/mymaster/0?replicas=2"


@pytest.mark.parametrize(
    ("text", "urls"),
    [
        ("", []),
        (" , ", []),
        ("redis://a", ["redis://a"]),
        ("redis://a,rediss://b , unix:///c,", ["redis://a", "rediss://b", "unix:///c"]),
        (f"{GROUP},redis://a", [GROUP, "redis://a"]),
        (f" {GROUP}, {GROUP} ", [GROUP, GROUP]),
        ("redis://a,b", ["redis://a,b"]),
    ],
)
def test_urls_are_separated_by_commas_but_may_contain_some(text, urls):
    assert split_urls(text) == urls
