"""The neighbours in Python take turns with redsync at one name; those in other languages do in `make interop`."""

import asyncio
from pathlib import Path

import pytest

from tests.interop import __main__ as command
from tests.interop.fights import Ledger, Result, meet
from tests.interop.programs import LIBRARIES

PAGE = Path(__file__).parents[2] / "docs" / "compare" / "other-languages.md"


@pytest.mark.sweep
@pytest.mark.parametrize("n", [1, 3])
@pytest.mark.parametrize("library", [each for each in LIBRARIES if not each.folder], ids=lambda each: each.name)
def test_two_libraries_take_turns_at_one_name(library, n):
    assert asyncio.run(meet(library, n, 5)).complaints() == []


def test_ledger_finds_two_that_are_inside_at_once():
    async def overlap():
        ledger = Ledger()
        await asyncio.gather(ledger.work("ours"), ledger.work("theirs"))
        return ledger

    result = Result(LIBRARIES[0], 1, asyncio.run(overlap()), {"ours": [], "theirs": ["x"]}, 1.9, float("inf"))
    assert [sentence.split(": ", 2)[2] for sentence in result.complaints()] == [
        "1 overlaps",
        "1 lost updates",
        "left behind {'ours': [], 'theirs': ['x']}",
        "the lock of our killed process stayed",
    ]


def test_libraries_without_their_tools_are_skipped_with_a_sentence(monkeypatch, capsys):
    monkeypatch.setenv("PATH", "")
    assert command.main(["rslock", "redisson"]) == 0
    printed = capsys.readouterr().out
    assert "Redisson is skipped: this machine has no java and no mvn." in printed
    assert "pottery is left out: it was not asked for." in printed


@pytest.mark.parametrize("library", LIBRARIES, ids=lambda each: each.name)
def test_each_fight_is_of_the_kind_that_the_page_recommends(library):
    low, _, high = library.ours.removeprefix("mutex:").partition(":")
    pauses = high if low == high else f"up to {high}" if low == "0" else f"{low} to {high}"
    advice = "`get_spin_lock`" if library.ours == "spin" else f"`get_mutex`, pauses of {pauses} ms"
    assert [
        row for row in PAGE.read_text().splitlines() if row.startswith("|") and library.name in row and advice in row
    ]
