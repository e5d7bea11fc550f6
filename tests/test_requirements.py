"""The tests need only what `make test` installs, and `constraints.txt` fixes the version of all of it."""

import functools
import re
import sys
import tomllib
from importlib import metadata
from pathlib import Path

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from tests.support.distributions import required

ROOT = Path(__file__).parents[1]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())

IMPORTS = re.compile(
    r"""(?mx)
    (?:^[ ]*|["'])from[ ](\w+)[\w.]*[ ]import\b  # anywhere in a file: tests also start programs that are strings
    | (?:^[ ]*|["'])import[ ]([\w., ]+)(?:["';\#]|$)
    | (?:sys\.executable,[ ]|\[)"-m",[ ]"(\w+)
    | \bpython3?[ ]-m[ ](\w+)
    """
)
ONE = re.compile(r"\s*(\w+)[\w.]*(?: as \w+)?\s*")

packages_distributions = functools.cache(metadata.packages_distributions)

OURS = {path.name for path in ROOT.iterdir()} | {
    path.stem for folder in ("tools", "examples") for path in (ROOT / folder).rglob("*.py")
}
"""Names of our own modules."""

OTHERS = {
    "bench/peer_locks.py": {"aioredlock", "redis_lock"},  # installed by `make peers`
    "docs/compare/migrating.md": {"redis_lock"},  # the code before the migration, which no test runs
    "tools/twins.py": {"ruff"},  # only `make check` and `make twins` format what it generates
}
"""Files that need more."""


def imported(text):
    """Return the names of the packages that a text imports, or starts with `python -m`."""
    found = set()
    for match in IMPORTS.finditer(text):
        names = (name for group in match.groups() if group for name in group.split(","))
        found |= {one.group(1) for one in map(ONE.fullmatch, names) if one}
    return found


def missing(text, distributions):
    """Return the packages that a text needs, and none of these distributions contains."""
    homes = packages_distributions()
    needed = imported(text) - sys.stdlib_module_names - OURS
    return {name for name in needed if distributions.isdisjoint(map(canonicalize_name, homes.get(name, ())))}


def test_tests_need_nothing_but_what_make_test_installs():
    installed = required("redsync-toolkit", ("test",))
    found = {}
    for folder in ("tests", "examples", "bench", "tools", "docs"):
        for path in (ROOT / folder).rglob("*"):
            if path.suffix in (".py", ".md") and (lacks := missing(path.read_text(), installed)):
                found[path.relative_to(ROOT).as_posix()] = lacks
    assert found == OTHERS


def test_missing_packages_are_found_in_code_and_in_programs_that_are_strings():
    planted = '''
import httpx, redis as server
    from celery.exceptions import Retry
PROGRAM = "import rich.console; print()"
OTHER = """
import django.conf as conf, flask
"""
subprocess.run([sys.executable, "-m", "gunicorn"])
bash = "python -m uvicorn"
'''
    everything = {"httpx", "redis", "celery", "rich", "django", "flask", "gunicorn", "uvicorn"}
    assert imported(planted) - sys.stdlib_module_names == everything
    assert missing(planted, required("redsync-toolkit")) == everything - {"redis"}


def test_constraints_fix_all_that_pyproject_names():
    """If this fails, say `make lock`."""
    lines = [line.partition("#")[0] for line in (ROOT / "constraints.txt").read_text().splitlines()]
    pins = [Requirement(line) for line in lines if line.strip()]
    chosen = {pin.name: pin.specifier for pin in pins if pin.marker is None or pin.marker.evaluate()}
    project = PROJECT["project"]
    texts = [*PROJECT["build-system"]["requires"], *project["dependencies"], "editables", "setuptools"]
    texts += [text for extra in project["optional-dependencies"].values() for text in extra]
    for need in map(Requirement, texts):
        if need.name != project["name"] and (need.marker is None or need.marker.evaluate()):
            (pin,) = chosen[canonicalize_name(need.name)]
            assert need.specifier.contains(pin.version), need


def test_suite_runs_where_pytest_asyncio_is_installed(pytestconfig):
    """Its warnings would end the run before the first test; `addopts` switches it off."""
    assert metadata.version("pytest-asyncio")
    assert not pytestconfig.pluginmanager.hasplugin("asyncio")


def test_all_that_make_test_installs_has_a_lower_bound():
    """`make test-oldest` tests with these."""
    extras = PROJECT["project"]["optional-dependencies"]
    needs = [Requirement(text) for extra in extras.keys() - {"docs", "dev"} for text in extras[extra]]
    without = [each.name for each in needs if {">=", "=="}.isdisjoint(one.operator for one in each.specifier)]
    assert set(without) == {"redsync-toolkit"}
