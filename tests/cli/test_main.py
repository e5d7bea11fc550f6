"""The `redsync` command itself: usage, version, exit statuses, and the cost of its start."""

import argparse
import os
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

from redsync.cli import main
from redsync.cli.arguments import COMMANDS
from redsync.cli.exits import SetupError, status_without_quorum

ROOT = Path(__file__).parents[2]


def run_python(program, **options):
    return subprocess.run(
        [sys.executable, "-W", "error", "-c", program],
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        check=False,
        **options,
    )


@pytest.fixture
def command(monkeypatch):
    """Let `redsync dev` return or raise something instead; return the options that it got."""

    def plant(outcome):
        def dev(options):
            got.append(options)
            if isinstance(outcome, BaseException):
                raise outcome
            return outcome

        got = []
        monkeypatch.setattr("redsync.cli.dev.dev", dev)
        return got

    return plant


def test_version_is_the_version_of_the_package(capsys):
    with pytest.raises(SystemExit) as end:
        main(["--version"])
    assert end.value.code == 0
    version = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["version"]
    assert capsys.readouterr().out == f"redsync {version}\n"


def test_help_lists_commands(capsys):
    with pytest.raises(SystemExit) as end:
        main(["--help"])
    assert end.value.code == 0
    out = capsys.readouterr().out
    assert all(name in out for name in COMMANDS)
    assert "\ncommands:\n" in out


@pytest.mark.parametrize("name", COMMANDS)
def test_help_of_command_shows_its_arguments(name, capsys):
    with pytest.raises(SystemExit) as end:
        main([name, "--help"])
    assert end.value.code == 0
    assert f"usage: redsync {name}" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ([], "COMMAND"),
        (["planned"], "invalid choice"),
        (["--nonsense"], "required"),
        (["dev", "--nodes", "0"], "must be a whole number of 1 or more, not '0'"),
        (["dev", "--nodes", "five"], "must be a whole number of 1 or more, not 'five'"),
        (["demo", "--seconds", "0.5"], "must be a number of seconds of 1 or more, not '0.5'"),
        (["demo", "--seconds", "nan"], "must be a number of seconds"),
        (["demo", "--seconds", "soon"], "must be a number of seconds"),
    ],
)
def test_wrong_usage_ends_with_status_64(arguments, said, capsys):
    with pytest.raises(SystemExit) as end:
        main(arguments)
    assert end.value.code == 64
    assert said in capsys.readouterr().err


def test_status_is_the_status_of_the_command(command):
    got = command(7)
    assert main(["dev", "-n", "3"]) == 7
    assert got == [argparse.Namespace(command="dev", json=False, nodes=3)]


@pytest.mark.parametrize(("error", "status"), [(SetupError("no nodes"), 64), (SetupError("no nodes", 78), 78)])
def test_setup_error_ends_with_its_status_and_a_sentence(command, capsys, error, status):
    command(error)
    assert main(["dev"]) == status
    assert capsys.readouterr().err == "redsync dev: no nodes\n"


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


NODELESS = [["ls"], ["show", "x"], ["break", "x", "--owner", "a", "--yes"], ["doctor"]]


@pytest.mark.parametrize("arguments", [*NODELESS, ["lock", "x", "--", "true"]])
def test_every_command_without_nodes_ends_with_78_and_the_same_sentence(arguments, capsys, monkeypatch):
    monkeypatch.setenv("REDSYNC_URLS", " , ")
    assert main(arguments) == 78
    sentence = "no nodes configured: give --url for each node, or list them in REDSYNC_URLS, separated by commas"
    assert capsys.readouterr().err == f"redsync {arguments[0]}: {sentence}\n"


@pytest.mark.parametrize("arguments", [*NODELESS, ["dev"]])
def test_every_inspecting_command_takes_json_and_refuses_unknown_options(arguments, capsys):
    with pytest.raises(SystemExit) as end:
        main([*arguments, "--json", "--nonsense"])
    assert end.value.code == 64
    assert "unrecognized arguments: --nonsense" in capsys.readouterr().err


def test_interrupted_command_ends_with_status_130(command, capsys):
    command(KeyboardInterrupt())
    assert main(["dev"]) == 130
    assert capsys.readouterr().err == "redsync dev: interrupted\n"


@pytest.mark.parametrize("arguments", [["--help"], *([name, "--help"] for name in COMMANDS)])
def test_start_imports_nothing_slow_or_optional(arguments):
    done = run_python(
        "import sys\n"
        "from redsync.cli import main\n"
        f"try: main({arguments})\n"
        "except SystemExit: pass\n"
        "slow = {'redis', 'hiredis', 'rich', 'asyncio', 'redsync.client', 'redsync.testing.local_nodes'}\n"
        "print(sorted(slow & set(sys.modules)))"
    )
    assert done.stderr == ""
    assert done.stdout.splitlines()[-1] == "[]"


def test_module_runs_like_the_command():
    done = subprocess.run(
        [sys.executable, "-m", "redsync.cli", "lock"],
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 64
    assert "NAME" in done.stderr
