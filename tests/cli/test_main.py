"""The `redsync` command itself: usage, version, exit statuses, and what it costs to start."""

import argparse
import os
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

from redsync import cli
from redsync.cli import COMMANDS, main

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


class Command:
    """Stands for a command's module."""

    def __init__(self, outcome):
        self.outcome = outcome

    def configure(self, parser):
        parser.add_argument("--number", type=int, default=1)

    def run(self, options):
        self.options = options
        if isinstance(self.outcome, BaseException):
            raise self.outcome
        return self.outcome


@pytest.fixture
def command(monkeypatch):
    def plant(outcome):
        planted = Command(outcome)
        monkeypatch.setitem(COMMANDS, "planted", "do nothing")
        monkeypatch.setattr(cli, "_module", lambda name: planted if name == "planted" else pytest.fail(name))
        return planted

    return plant


def test_version_is_that_of_the_package(capsys):
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


@pytest.mark.parametrize("name", COMMANDS)
def test_help_of_command_shows_its_arguments(name, capsys):
    with pytest.raises(SystemExit) as end:
        main([name, "--help"])
    assert end.value.code == 0
    assert f"usage: redsync {name}" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ([], "command"),
        (["planned"], "invalid choice"),
        (["--nonsense"], "required"),
        (["demo", "--threads", "0"], "must be a whole number from 1 on, not '0'"),
        (["demo", "--names", "-3"], "must be a whole number from 1 on, not '-3'"),
        (["demo", "--nodes", "five"], "must be a whole number from 1 on, not 'five'"),
        (["demo", "--seconds", "0.5"], "must be a number of seconds from 1 to 86,400, not '0.5'"),
        (["demo", "--seconds", "nan"], "must be a number of seconds"),
        (["demo", "--seconds", "soon"], "must be a number of seconds"),
    ],
)
def test_wrong_usage_ends_with_status_2(arguments, said, capsys):
    with pytest.raises(SystemExit) as end:
        main(arguments)
    assert end.value.code == 2
    assert said in capsys.readouterr().err


def test_status_is_that_of_the_command(command):
    planted = command(7)
    assert main(["planted", "--number", "3"]) == 7
    assert planted.options == argparse.Namespace(command="planted", number=3)


def test_interrupted_command_ends_with_status_130(command, capsys):
    command(KeyboardInterrupt())
    assert main(["planted"]) == 130
    assert capsys.readouterr().err == "redsync planted: interrupted\n"


def test_arguments_are_those_of_the_process_by_default(command, monkeypatch):
    command(0)
    monkeypatch.setattr(sys, "argv", ["redsync", "planted"])
    assert main() == 0


def test_reader_that_ends_early_is_no_error():
    program = """
import sys
from redsync import cli

class Command:
    def configure(parser): pass
    def run(options):
        print("a line " * 100_000)
        return 0

cli.COMMANDS["planted"] = ""
cli._module = lambda name: Command
sys.exit(cli.main(["planted"]))
"""
    process = subprocess.Popen(
        [sys.executable, "-c", program],
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    with process:
        process.stdout.close()
        assert process.stderr.read() == ""
    assert process.returncode == 141


def test_start_imports_nothing_slow_or_optional():
    done = run_python(
        "import sys\n"
        "from redsync.cli import main\n"
        "try: main(['demo', '--help'])\n"
        "except SystemExit: pass\n"
        "slow = {'redis', 'hiredis', 'rich', 'asyncio', 'redsync.client', 'redsync.testing.local_nodes'}\n"
        "print(sorted(slow & set(sys.modules)))"
    )
    assert done.stderr == ""
    assert done.stdout.splitlines()[-1] == "[]"


def test_commands_are_modules_with_both_functions():
    for name in COMMANDS:
        module = cli._module(name)
        assert callable(module.configure)
        assert callable(module.run)
