"""Standard streams that are closed, full or without a reader: a command's messages and exit status then."""

import os
import sys

import pytest

from tests.support.sweeps import swept

CLOSINGS = ["<&- >&- 2>&-", *swept("<&-", ">&-", "2>&-")]
NO_NODE = "redis://127.0.0.1:1"

OPEN_STREAMS = """
import os
def is_open(number):
    try:
        return bool(os.fstat(number))
    except OSError:
        return False
found = [number for number in range(3) if is_open(number)]
with open(os.environ["FOUND"], "w") as file:
    file.write(f"{found} {[os.readlink(f'/proc/{os.getppid()}/fd/{number}') for number in range(3)]}")
raise SystemExit(3)
"""


def closing(redirections):
    """Return the options that start a command with closed streams, by a shell's redirections."""
    return {"before": ["sh", "-c", f'exec "$@" {redirections}', "sh"]}


@pytest.fixture
def mute(why_mute):
    """A standard error that can't be written."""
    if why_mute == "closed":
        yield closing("2>&-")
    else:
        with open("/dev/full", "w") as full:
            yield {"stderr": full}


def case_name(value):
    return " ".join(value) if isinstance(value, list) else None


# Closed at the start


@pytest.mark.parametrize("closed", CLOSINGS)
def test_lock_has_the_status_of_a_command_that_finds_the_same_streams_closed(closed, redsync, tmp_path):
    found = tmp_path / "found"
    done = redsync("lock", "x", "-n", "--", sys.executable, "-c", OPEN_STREAMS, FOUND=str(found), **closing(closed))
    assert (done.status, done.out, done.err) == (3, "", "")
    numbers = {0: "<&-", 1: ">&-", 2: "2>&-"}
    shut = {number for number, each in numbers.items() if each in closed.split()}
    streams, ours = found.read_text().split("] ")
    assert streams == str([number for number in range(3) if number not in shut]).rstrip("]")
    assert all("/dev/null" in each for number, each in enumerate(ours.split(",")) if number in shut), ours


@pytest.mark.parametrize(
    ("arguments", "status", "closed"),
    [
        (["ls"], 0, "<&- >&- 2>&-"),
        (["break", "x", "--owner", "a"], 1, "<&- >&- 2>&-"),
        (["lock", "--help"], 0, "<&- >&- 2>&-"),
        *swept(
            (["ls", "--json"], 0, ">&-"),
            (["ls", "--url", NO_NODE], 69, "2>&-"),
            (["top"], 64, "<&- >&- 2>&-"),
            (["ls", "--nonsense"], 64, "2>&-"),
            (["--version"], 0, ">&-"),
        ),
    ],
    ids=case_name,
)
def test_closed_streams_change_no_status_and_redirect_no_message(arguments, status, closed, redsync, raw):
    done = redsync(*arguments, **closing(closed))
    assert done.status == status, done.err
    assert "Traceback" not in done.err
    if ">&-" in closed.split():
        assert done.out == ""
    if "2>&-" in closed.split():
        assert done.err == ""
        assert status == 0 or done.out == ""


# Standard error


@pytest.mark.parametrize(
    ("arguments", "status", "why_mute"),
    [
        (["lock", "-v", "-w", "0.1", "busy", "--", "true"], 75, "full"),
        (["lock", "x", "-v", "--max-hold", "0.2", "--", "sleep", "20"], 124, "closed"),
        (["lock", "x"], 64, "full"),
        (["ls", "--url", NO_NODE], 69, "full"),
        *swept(
            (["lock", "x", "-v", "--max-hold", "0.2", "--", "sleep", "20"], 124, "full"),
            (["lock", "-n", "-E", "0", "busy", "--", "true"], 0, "closed"),
            (["lock", "x", "-v", "--", "sh", "-c", "exit 3"], 3, "full"),
            (["lock", "x", "--", "no-such-command"], 127, "full"),
            (["lock", "x", "--url", "nonsense", "--", "true"], 78, "full"),
            (["break", "x", "--owner", "a", "--yes"], 1, "closed"),
        ),
    ],
    ids=case_name,
)
def test_command_that_can_not_write_messages_ends_with_the_same_status(arguments, status, mute, redsync, make_client):
    with make_client().get_fenced_lock("busy"):
        done = redsync(*arguments, **mute)
    assert (done.status, done.out) == (status, "")


def test_interrupted_command_without_standard_error_ends_with_130(start, nodes):
    with open("/dev/full", "w") as full:
        command = start("lock", "x", "-c", "echo begun; sleep 20", stderr=full)
        command.read_until("begun")
        command.interrupt()
        assert command.end() == 130


# Standard output


@pytest.mark.parametrize(
    ("arguments", "unbuffered"),
    [
        (["ls", "--json"], ""),
        (["--help"], "1"),
        *swept((["show", "x"], "1"), (["doctor"], ""), (["lock", "--help"], "")),
    ],
    ids=case_name,
)
def test_result_that_can_not_be_written_ends_with_status_74(arguments, unbuffered, redsync, make_client):
    with make_client().get_lock("x"), open("/dev/full", "w") as full:
        done = redsync(*arguments, stdout=full, PYTHONUNBUFFERED=unbuffered)
    assert done.status == 74
    assert done.err.endswith(": standard output can't be written: No space left on device\n")
    assert "Traceback" not in done.err


@pytest.mark.parametrize("arguments", [["ls", "--json"], ["--help"], *swept(["doctor"], ["dev"])], ids=" ".join)
def test_reader_that_ends_early_is_not_reported(arguments, start, make_client):
    with make_client().get_lock("x"):
        reader, end = os.pipe()
        os.close(reader)
        command = start(*arguments, stdout=end)
        os.close(end)
        status, _, err = command.finish()
        assert (status, err) == (141, "")


def test_lock_ignores_a_standard_output_that_can_not_be_written(run_lock):
    with open("/dev/full", "w") as full:
        assert run_lock("x", "-v", "--", "sh", "-c", "exit 3", stdout=full)[0] == 3
