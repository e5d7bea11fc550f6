"""`python -m bench --compare REF`: on a small repository whose benchmark prints a value from its checkout."""

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from bench import against

ROOT = Path(__file__).parents[2]

BENCH = """
import json, sys
from pathlib import Path

quick, option, file, name = sys.argv[1:]
assert (quick, option) == ("--quick", "--json")
if name == "broken":
    sys.exit("unknown benchmark: broken")
here = Path("speed").read_text().split()
with Path({log!r}).open("a") as log:
    log.write(f"{{name}} {{' '.join(here)}}\\n")
floor = float(here[1])
figure = {{"bench": name, "what": "p50", "unit": "us", "ours": float(here[0]), "floor": floor}}
alone = {{"bench": name, "what": here[2], "unit": "s", "ours": float(here[0]), "floor": None, "ratio": None}}
figures = [figure | {{"ratio": figure["ours"] / floor}}, alone, alone | {{"what": "import"}}]
Path(file).write_text(json.dumps({{"figures": figures}}))
"""


@pytest.fixture
def repository(tmp_path):
    here = tmp_path / "here"
    (here / "bench").mkdir(parents=True)
    (here / "bench" / "__init__.py").touch()
    (here / "bench" / "__main__.py").write_text(BENCH.format(log=str(tmp_path / "log")))
    (here / "speed").write_text("300 200 gone")
    git = ["git", "-C", str(here), "-c", "user.name=x", "-c", "user.email=x@x.example"]
    for step in (["init", "--quiet"], ["add", "."], ["commit", "--quiet", "--no-gpg-sign", "-m", "old"]):
        subprocess.run([*git, *step], check=True)
    (here / "speed").write_text("360 100 added")
    return here


def test_compare_shows_both_sides_with_their_floors(repository):
    table, failed = against.compare(against.resolve("HEAD", repository), ["pairs"], 2, repository)
    head, *rows = [line.split("  ") for line in table.splitlines()]
    cells = [[cell.strip() for cell in row if cell.strip()] for row in rows]
    assert head[0] == "bench"
    assert cells == [
        ["pairs", "p50", "us", "300", "200", "360", "100", "1.5", "3.6", "2.40"],
        ["pairs", "import", "s", "300", "360", "1.20"],
    ]
    assert failed == []


def test_resolve_refuses_names_that_are_not_commits(repository):
    with pytest.raises(ValueError, match="'nothing' is not a commit"):
        against.resolve("nothing", repository)
    with pytest.raises(ValueError, match="'--all' is not a commit"):
        against.resolve("--all", repository)


@pytest.mark.sweep
def test_interruption_removes_the_checkout(tmp_path, eventually):
    if not (ROOT / ".git").exists():
        pytest.skip("not a checkout")
    command = [sys.executable, "-m", "bench", "--compare", "HEAD", "startup"]
    environment = {**os.environ, "TMPDIR": str(tmp_path)}
    with subprocess.Popen(command, cwd=ROOT, env=environment, stderr=subprocess.PIPE, text=True) as process:
        try:
            eventually(lambda: any(tmp_path.glob("redsync-bench-*/old/pyproject.toml")))
            process.terminate()
            _, error = process.communicate(timeout=20)
        finally:
            process.kill()
    assert process.returncode == 128 + signal.SIGTERM, error
    assert list(tmp_path.glob("redsync-bench-*")) == []
