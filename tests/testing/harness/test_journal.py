"""Journals survive the processes that write them, and can be read while they grow."""

import subprocess
import sys

from redsync.testing.harness.journal import Follower, Journal, nanoseconds, read


def test_journal_keeps_what_was_written_before_its_process_was_killed(tmp_path):
    path = tmp_path / "x.journal"
    script = (
        "import os, signal, sys; from pathlib import Path; from redsync.testing.harness.journal import Journal\n"
        "journal = Journal(Path(sys.argv[1]))\n"
        "for number in range(100): journal.note('looked', number=number)\n"
        "os.kill(os.getpid(), signal.SIGKILL)"
    )
    subprocess.run([sys.executable, "-c", script, str(path)], check=False)
    assert [line["number"] for line in read(path)] == list(range(100))


def test_journal_appends_to_what_others_wrote(tmp_path):
    path = tmp_path / "x.journal"
    first, second = Journal(path), Journal(path)
    first.note("a", at=1)
    second.note("b", at=2)
    first.note("c", at=3)
    assert [line["event"] for line in read(path)] == ["a", "b", "c"]


def test_reading_ignores_half_a_line(tmp_path):
    path = tmp_path / "x.journal"
    path.write_bytes(b'{"event": "a"}\n{"event": "b"')
    assert read(path) == [{"event": "a"}]
    assert read(tmp_path / "none") == []


def test_journals_are_followed_while_they_grow(tmp_path):
    lines = [f'{{"event": "{name}"}}\n'.encode() for name in "abcde"]
    follower = Follower(tmp_path)
    assert follower.read() == []
    paths = [tmp_path / f"process-{number}.0.journal" for number in range(2)]
    with paths[0].open("ab", 0) as one, paths[1].open("ab", 0) as other:
        one.write(lines[0] + lines[1][:5])
        assert [line["event"] for line in follower.read()] == ["a"]
        assert follower.read() == []
        one.write(lines[1][5:])
        other.write(lines[2] + lines[3])
        assert [line["event"] for line in follower.read()] == ["b", "c", "d"]
        other.write(lines[4])
        assert [line["event"] for line in follower.read()] == ["e"]
    assert [line["event"] for line in follower.lines] == ["a", "b", "c", "d", "e"]


def test_instants_are_rounded_down():
    assert nanoseconds(1.9999999999) == 1_999_999_999
