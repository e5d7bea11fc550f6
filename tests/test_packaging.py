"""What a user gets from `pip install`: the wheel's content, the metadata, the public names."""

import subprocess
import sys
import tomllib
import zipfile
from importlib import metadata, resources
from pathlib import Path

import pytest

import redsync

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
    assert wanted <= packed
    assert {path.partition("/")[0] for path in packed} == {"redsync", f"redsync_toolkit-{redsync_version()}.dist-info"}


def test_wheel_announces_command_and_plugin(wheel):
    (path,) = (path for path in wheel.namelist() if path.endswith("entry_points.txt"))
    assert wheel.read(path).decode().split() == [
        "[console_scripts]", "redsync", "=", "redsync.cli:main",
        "[pytest11]", "redsync", "=", "redsync.testing.pytest_plugin",
    ]  # fmt: skip


def test_installed_version_is_that_of_source():
    assert metadata.version("redsync-toolkit") == redsync_version()


def test_type_marker_and_scripts_are_found_as_resources():
    installed = resources.files(redsync)
    assert (installed / "py.typed").is_file()
    for path in (PACKAGE / "_lua").glob("*.lua"):
        assert (installed / "_lua" / path.name).read_text() == path.read_text()


def redsync_version() -> str:
    return tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["version"]
