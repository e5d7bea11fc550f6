"""The checks and the messages of `make interop`; its fights are no tests of the suite."""

import asyncio
from pathlib import Path

import pytest

from tests.interop import __main__ as command
from tests.interop import programs
from tests.interop.fights import Ledger, Result
from tests.interop.programs import LIBRARIES, Library, Source

PAGE = Path(__file__).parents[2] / "docs" / "compare" / "other-languages.md"


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
    assert "Redisson is skipped: this machine has no javac and no mvn" in printed
    assert "pottery is left out: it was not asked for." in printed
    assert printed.endswith("There was no library to fight with.\n")


def test_libraries_that_their_registry_lacks_are_skipped_and_those_that_do_not_compile_are_complaints(
    monkeypatch, tmp_path, capsys
):
    monkeypatch.setattr(programs, "BUILD", tmp_path)
    says, fails = ("sh", "-c", "echo no such package"), ("sh", "-c", "echo a mistake; exit 1")
    lacking = Library("A", "spin:1:5", (), Source("rslock", (), fetch=fails))
    broken = Library("B", "spin:1:5", (), Source("rslock", (), fetch=says, build=fails))
    results, [complaint] = asyncio.run(command.fight_all([lacking, broken], 1))
    assert results == []
    assert complaint.startswith("B could not be built")
    assert complaint.endswith("a mistake")
    assert "A is skipped: its packages can't be downloaded here" in capsys.readouterr().out


@pytest.mark.parametrize("library", LIBRARIES, ids=lambda each: each.name)
def test_each_fight_is_of_the_kind_that_the_page_recommends(library):
    noun, low, high = library.ours.split(":")
    pauses = high if low == high else f"up to {high}" if low == "0" else f"{low} to {high}"
    advice = f"`get_{noun if noun == 'mutex' else 'spin_lock'}`, pauses of {pauses} ms"
    assert [
        row for row in PAGE.read_text().splitlines() if row.startswith("|") and library.name in row and advice in row
    ]
