"""The result of `pip install`: the wheel's content, the metadata, the public names, and a user's first minutes."""

import os
import re
import subprocess
import sys
import time
import zipfile
from importlib import metadata
from pathlib import Path

import pytest
import redis

import redsync
from redsync.testing.servers import find_server, free_ports
from tests.support.distributions import required

ROOT = Path(__file__).parents[1]
PACKAGE = ROOT / "redsync"


@pytest.fixture(scope="module")
def wheel(tmp_path_factory) -> zipfile.ZipFile:
    folder = tmp_path_factory.mktemp("wheel")
    command = [sys.executable, "-m", "hatchling", "build", "--target", "wheel", "--directory", str(folder)]
    subprocess.run(command, cwd=ROOT, check=True, capture_output=True)
    (path,) = folder.glob("*.whl")
    with zipfile.ZipFile(path) as file:
        yield file


def test_wheel_holds_whole_package(wheel):
    sources = {"redsync/" + path.relative_to(PACKAGE).as_posix() for path in PACKAGE.rglob("*") if path.is_file()}
    wanted = {path for path in sources if path.endswith((".py", ".lua", "py.typed"))}
    packed = set(wheel.namelist())
    assert {path for path in packed if path.startswith("redsync/")} == wanted
    assert {path.partition("/")[0] for path in packed} == {
        "redsync",
        f"redsync_toolkit-{redsync.__version__}.dist-info",
    }


def test_wheel_announces_command_and_plugin(wheel):
    (path,) = (path for path in wheel.namelist() if path.endswith("entry_points.txt"))
    assert wheel.read(path).decode().split() == [
        "[console_scripts]", "redsync", "=", "redsync.cli:main",
        "[pytest11]", "redsync", "=", "redsync.testing.pytest_plugin",
    ]  # fmt: skip


def test_long_description_has_no_relative_links(wheel):
    (path,) = (path for path in wheel.namelist() if path.endswith("METADATA"))
    description = wheel.read(path).decode().partition("\n\n")[2]
    assert description.startswith("# redsync\n")
    assert not re.findall(r"\]\((?!https?:)", description)
    named = re.findall(r"\(`(\S+\.md|LICENSE)`\)", description)
    assert "docs/tutorial.md" in named
    assert all((ROOT / name).is_file() for name in named)


def test_installed_version_is_that_of_the_source():
    assert metadata.version("redsync-toolkit") == redsync.__version__


# The first minutes of a user with nothing but Python: the pages' steps, with the wheel and its requirements.


@pytest.fixture(scope="module")
def fresh(wheel, tmp_path_factory):
    """A command that runs Python with only the wheel and the requirements of `redsync-toolkit[server,cli]`."""
    folder = tmp_path_factory.mktemp("fresh")
    wheel.extractall(folder)
    for name in required("redsync-toolkit", ("server", "cli")) - {"redsync-toolkit"}:
        distribution = metadata.distribution(name)
        for top in {path.parts[0] for path in distribution.files if path.parts[0] not in ("..", "__pycache__")}:
            if not (folder / top).exists():
                (folder / top).symlink_to(distribution.locate_file(top))
    (folder / "bin").mkdir()
    command = folder / "bin" / "redsync"
    command.write_text(f'#!/bin/sh\nexec "{sys.executable}" -S -m redsync.cli "$@"\n')
    command.chmod(0o755)
    (folder / "bin" / "valkey-server").symlink_to(find_server())

    def run(*words, **variables):
        kept = {name: value for name, value in os.environ.items() if not name.startswith(("REDSYNC", "PYTHON"))}
        path = f"{folder / 'bin'}:{os.environ['PATH']}"
        environment = kept | {"PYTHONPATH": str(folder), "PATH": path} | variables
        began = time.monotonic()
        done = subprocess.run(words, env=environment, cwd=folder, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout, time.monotonic() - began

    return run


def blocks(page, language):
    return re.findall(rf"(?ms)^```{language}\n(.*?)^```$", (ROOT / "docs" / page).read_text())


def test_home_page_gives_a_held_lock_in_a_minute(fresh):
    tells_where = "import redsync; print(redsync.__file__)\n"
    out, seconds = fresh(sys.executable, "-S", "-c", tells_where + blocks("index.md", "python")[0])
    where, said = out.splitlines()
    assert not where.startswith(str(ROOT))
    assert said == "still held: True"
    assert seconds < 60


@pytest.mark.sweep
def test_three_own_servers_hold_a_lock_in_five_minutes(fresh):
    script = "".join(block for block in blocks("install.md", "bash") if "7001" in block)
    ports = dict(zip(("7001", "7002", "7003"), map(str, free_ports()), strict=False))
    script = re.sub("|".join(ports), lambda written: ports[written.group()], script)
    try:
        out, seconds = fresh("bash", "-c", script)
    finally:
        for port in map(int, ports.values()):
            with redis.Redis(port=port) as node:
                node.shutdown(nosave=True)
    assert out.splitlines()[-1] == "it runs"
    assert "it says what to do" in out
    assert seconds < 300
