"""Import contracts: pyproject.toml has them, `make check` checks them; these tests check that they find violations."""

import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]


PLANTED = [
    ("_core/planted.py", "import time", "Time, randomness"),
    ("_core/planted.py", "import redsync._protocols", "Imports point downwards"),
    ("_protocols/planted.py", "from redis.asyncio import Redis", "Time, randomness"),
    ("_drivers/planted.py", "import redsync._protocols", "Drivers import no protocol"),
    ("_drivers/planted.py", "import redsync._facades.lock", "Drivers import no protocol"),
    ("cli/planted.py", "import redsync._drivers", "Only the client joins"),
    ("testing/planted.py", "import redsync._protocols", "The simulator imports no protocol"),
    ("_facades/lock.py", "import redsync.client", "Imports point downwards"),
    ("_facades/lock.py", "import threading", "Time, randomness"),
    ("planted.py", "", "each module has a layer"),
    ("_facades/exclusive.py", "import redsync._facades.lock", "The shared modules of facades"),
    ("_facades/lock.py", "import redsync._facades.mutex", "Kinds do not import each other"),
    ("_facades/planted.py", "import redsync._facades.mutex", "Kinds do not import each other"),
]


@pytest.fixture(scope="module")
def violations(tmp_path_factory):
    """The output for a package with all of them planted, by broken contract."""
    folder = tmp_path_factory.mktemp("planted")
    shutil.copy(ROOT / "pyproject.toml", folder)
    shutil.copytree(ROOT / "redsync", folder / "redsync", ignore=shutil.ignore_patterns("__pycache__"))
    for module, line, _ in PLANTED:
        with (folder / "redsync" / module).open("a") as file:
            file.write(f"\n{line}\n")
    # import-linter searches the current folder first.
    command = [sys.executable, "-c", "from importlinter.cli import lint_imports_command as run; run()", "--no-cache"]
    result = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False)
    assert result.returncode != 0
    report = result.stdout.partition("Broken contracts")[2]
    headings = re.split(r"(?m)^(.+)\n-+$", report)
    return dict(zip(headings[1::2], headings[2::2], strict=True))


@pytest.mark.parametrize(("module", "line", "broken"), PLANTED)
def test_contracts_find_planted_violation(violations, module, line, broken):
    (said,) = (said for contract, said in violations.items() if broken in contract)
    planted = f"redsync.{module.removesuffix('.py').replace('/', '.')}"
    imported = line.replace("redis.asyncio", "redis").split()[1:2]  # of other packages it shows only the name
    assert " -> ".join([planted, *imported]) in said
