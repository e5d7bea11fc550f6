"""The `redsync` command itself: usage, help, completion, exit statuses, and the cost of its start."""

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

import redsync
from redsync.cli import main
from redsync.cli.arguments import COMMANDS
from redsync.cli.exits import status_without_quorum
from tests.cli.command_process import run_here

ROOT = Path(__file__).parents[2]


@pytest.fixture
def run(capsys):
    """Run a command in this process."""
    return lambda *arguments: run_here(arguments, capsys)


def test_version_is_the_version_of_the_package(run):
    assert run("--version") == (0, f"redsync {redsync.__version__}\n", "")


def test_usage_has_no_colours_in_a_file(run, monkeypatch):
    """Python 3.14 colours it, if standard output is a terminal."""
    monkeypatch.setenv("FORCE_COLOR", "1")
    assert "\x1b" not in run("lock")[2]


@pytest.mark.parametrize("arguments", [[], *([name] for name in COMMANDS)], ids=" ".join)
def test_help_shows_the_usage_and_ends_with_the_place_of_the_documentation(arguments, run):
    status, out, _ = run(*arguments, "--help")
    assert status == 0
    assert out.startswith(f"usage: {' '.join(['redsync', *arguments])} ")
    assert out.splitlines()[-1].startswith("documentation: docs/")
    assert arguments or all(f"\n    {name} " in out for name in COMMANDS)


def test_help_loads_nothing_slow_or_optional():
    program = (
        "import sys\n"
        "from redsync.cli import main\n"
        "try: main(['lock', '--help'])\n"
        "except SystemExit: pass\n"
        "slow = {'redis', 'hiredis', 'rich', 'asyncio', 'redsync.client', 'redsync.testing.local_nodes'}\n"
        "print(sorted(slow & set(sys.modules)))"
    )
    done = subprocess.run([sys.executable, "-W", "error", "-c", program], cwd=ROOT, capture_output=True, check=True)
    assert (done.stdout.splitlines()[-1], done.stderr) == (b"[]", b"")


@pytest.mark.skipif(not shutil.which("bash"), reason="no bash")
def test_completion_in_bash_knows_commands_and_options(run):
    status, script, _ = run("--completion", "bash")
    assert status == 0
    asking = 'COMP_WORDS=(redsync lock x --min); COMP_CWORD=3; _shtab_redsync redsync --min x; echo "${COMPREPLY[@]}"'
    done = subprocess.run(["bash", "-c", f"{script}\n{asking}"], capture_output=True, text=True, check=True)
    assert done.stdout == "--min-hold\n"


def test_completion_without_shtab_says_what_to_install(run, monkeypatch):
    monkeypatch.setitem(sys.modules, "shtab", None)
    said = 'redsync: needs shtab: pip install "redsync-toolkit[cli]"\n'
    assert run("--completion", "zsh") == (69, "", said)


@pytest.mark.parametrize(
    ("arguments", "command", "wait"),
    [
        (["x", "echo", "-n", "--wait", "3"], ["echo", "-n", "--wait", "3"], None),
        (["-n", "x", "echo"], ["echo"], 0.0),
        (["x", "-w", "2", "echo", "-w", "3"], ["echo", "-w", "3"], 2.0),
        (["x", "-w", "2", "--", "-echo", "-w", "3"], ["-echo", "-w", "3"], 2.0),
        (["x", "git", "log", "--", "file"], ["git", "log", "--", "file"], None),
        (["x", "echo", "--help"], ["echo", "--help"], None),
        (["x", "mytool", "--m", "3"], ["mytool", "--m", "3"], None),  # no abbreviation of --min-hold
    ],
)
def test_first_word_after_the_name_that_is_no_option_begins_the_command(arguments, command, wait, monkeypatch):
    got = []
    monkeypatch.setattr("redsync.cli.lock_command.run", got.append)
    main(["lock", *arguments])
    assert [(options.name, options.wrapped, options.wait) for options in got] == [("x", command, wait)]


NODELESS = [["ls"], ["show", "x"], ["break", "x", "--owner", "a", "--yes"], ["doctor"]]


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ([], "COMMAND"),
        (["planned"], "invalid choice"),
        (["--nonsense"], "required"),
        *(([*each, "--json", "--nonsense"], "unrecognized arguments: --nonsense") for each in [*NODELESS, ["dev"]]),
        (["dev", "--nodes", "0"], "must be a whole number of 1 or more, not '0'"),
        (["dev", "--nodes", "five"], "must be a whole number of 1 or more, not 'five'"),
        (["demo", "--seconds", "0.5"], "must be a number of seconds of 1 or more, not '0.5'"),
        (["demo", "--seconds", "nan"], "must be a number of seconds"),
        *(
            (["exporter", f"--listen={word}"], "must be HOST:PORT, such as")
            for word in ("9465", "host:", ":9465", "host:99999", "::1:9465", "host:http")
        ),
        (["break", "x", "--yes"], "--owner"),
        (["top"], "needs a terminal: use `redsync ls --json`"),
        (["lock", "x"], "no command to run: give it after the name, as in: redsync lock NAME COMMAND"),
        (["lock", "x", "--"], "no command to run"),
        (["lock", "x", "-c", "true", "echo"], "give the command either with -c or after the name, not both"),
        (["lock", "x", "-c", "true", "--", "true"], "not both"),
        (
            ["lock", "x", "--nonblocking", "echo"],
            "--nonblocking; if it belongs to the command, put -- before the command",
        ),
        (["lock", "x", "-n", "-z", "--", "echo"], "unrecognized arguments: -z"),
        (["lock", "x", "-s", "-x", "true"], "argument -x/--exclusive: not allowed with argument -s/--shared"),
        (["lock", "x", "-s", "--fair", "true"], "not allowed with argument -s/--shared"),
        (["lock", "x", "--permits", "2", "-x", "true"], "not allowed with argument --permits"),
        (["lock", "x", "-n", "-w", "2", "true"], "argument -w/--wait: not allowed with argument -n/--nonblock"),
        (["lock", "x", "-q", "-v", "true"], "argument -v/--verbose: not allowed with argument -q/--quiet"),
        (["lock", "x", "--min-hold", "3", "--max-hold", "2", "true"], "--min-hold is longer than --max-hold"),
        (["lock", "x", "-w", "soon", "true"], "must be a number of seconds, not 'soon'"),
        (["lock", "x", "-w", "-1", "true"], "must be a number of seconds, not '-1'"),
        (["ls", "--timeout", "1e300"], "must be a positive number of seconds, at most a day, not '1e300'"),
        (["lock", "x", "--lease", "0", "true"], "must be a positive number of seconds, not '0'"),
        (["lock", "x", "-E", "256", "true"], "must be a whole number from 0 to 255, not '256'"),
        (["lock", "x", "--permits", "0", "true"], "must be a whole number from 1 to 10,000, not '0'"),
        (["lock", "x", "--on-lost", "pray", "true"], "invalid choice: 'pray'"),
        (["lock", "x", "--lease", "6", "-k", "5", "true"], "give at least --lease 13, or at most --kill-after 2.4"),
        *(([*each, ""], "a name has 1 to 512 bytes") for each in (["show"], ["break", "--yes", "--owner", "x"])),
        (["show", "x" * 513], "a name has 1 to 512 bytes"),
        (
            ["show", "--prefix", "", "{rs7979}redsync:x"],
            "can't begin with {rs7979}: that marks the keys of a cluster's",
        ),
        (["lock", "", "true"], "a name has 1 to 512 bytes"),
    ],
    ids=lambda value: " ".join(value)[:40] if isinstance(value, list) else None,
)
def test_wrong_usage_ends_with_status_64_and_a_sentence(arguments, said, nodes, run, monkeypatch):
    monkeypatch.setenv("REDSYNC_URLS", ",".join(nodes.urls))
    status, out, err = run(*arguments)
    assert (status, out) == (64, "")
    assert said in err


@pytest.mark.parametrize(
    ("troubles", "status"),
    [
        (["Connection refused", "Connection refused", None], 69),
        (["WRONGPASS no", "NOAUTH Authentication required.", None], 77),
        (["WRONGPASS no", "Connection refused", None], 69),
        (["NOPERM no permission", "Timeout reading"], 77),
        (["invalid username-password pair or user is disabled."], 77),
    ],
)
def test_status_tells_refusals_from_failures(troubles, status):
    assert status_without_quorum(troubles) == status


@pytest.mark.parametrize("arguments", [*NODELESS, ["lock", "x", "--", "true"]])
def test_every_command_without_nodes_ends_with_78_and_the_same_sentence(arguments, run, monkeypatch):
    monkeypatch.setenv("REDSYNC_URLS", " , ")
    sentence = "no nodes configured: give --url for each node, or list them in REDSYNC_URLS, separated by commas"
    assert run(*arguments) == (78, "", f"redsync {arguments[0]}: {sentence}\n")
