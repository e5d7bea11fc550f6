"""One place registers a kind: its row is true, and few other files name a kind."""

import functools
import inspect
import re
from pathlib import Path

import pytest

import redsync
from redsync._kinds import KINDS, LOCKS
from tests.simulation.workload import SIMULATED

ROOT = Path(__file__).parents[1]
CODE = ["redsync", "tests", "bench", "examples", "tools", "pyproject.toml", "Makefile"]
FILES_MAX = 8
DOCUMENTATION = ROOT / "tools" / "figures.py"  # its words are those of the pictures


@functools.cache
def files():
    """Return all files that are not documentation, with their texts in lower case."""
    paths = [path for name in CODE for path in [ROOT / name, *(ROOT / name).rglob("*")]]
    # Of the kinds, `tests/interop` uses those that suit the neighbours: a new one changes nothing there.
    out = {"__pycache__", "interop"}
    own = {path for path in paths if path.is_file() and out.isdisjoint(path.parts)} - {DOCUMENTATION}
    return {str(path.relative_to(ROOT)): path.read_text(errors="replace").lower() for path in sorted(own)}


def naming(kind):
    """Return the files that name a kind or its way of waiting: `odd_lock`, `OddLock`, "odd lock", `"odd"`, `odding`."""
    noun = kind.noun.replace("_", "[ _]?")
    pattern = re.compile(rf'(?<![a-z]){noun}|["`]{kind.word}["`]|(?<![a-z]){kind.word}n?ing')
    return {name for name, text in files().items() if pattern.search(text)}


def listed():
    """Return the files that CONTRIBUTING.md lists for a new synchronizer."""
    section = (ROOT / "CONTRIBUTING.md").read_text().partition("## Adding a synchronizer\n")[2].partition("\n## ")[0]
    return re.findall(r"(?m)^\| `([\w/.]+)` \|", section)


def test_adding_a_synchronizer_touches_the_listed_files_and_no_others():
    """The lock that polls with pauses is the page's example: it has everything that a new kind needs."""
    (example,) = (kind for kind in KINDS.values() if kind.waits == "pauses")
    assert naming(example) == set(listed())
    assert len(listed()) <= FILES_MAX


def test_clients_make_each_registered_kind_and_no_other():
    for client in (redsync.Client, redsync.AsyncClient):
        made = {name.removeprefix("get_") for name in dir(client) if name.startswith("get_")}
        assert made == {kind.noun for kind in KINDS.values()}


@pytest.mark.parametrize("kind", KINDS.values(), ids=KINDS)
def test_kind_matches_its_row(kind):
    for client, facade in ((redsync.Client, kind.facade), (redsync.AsyncClient, f"Async{kind.facade}")):
        assert inspect.signature(kind.maker(client)).return_annotation == facade
    assert KINDS[kind.like].like == kind.like, "it is like a kind that is like itself"
    assert (kind.shown == "") == (kind.like == "multi")


def test_lock_has_the_methods_of_the_kind_that_it_is_like():
    for kind in LOCKS:
        assert set(dir(getattr(redsync, kind.facade))) >= {
            name for name in dir(getattr(redsync, KINDS[kind.like].facade)) if not name.startswith("_")
        }


def test_every_kind_is_simulated_except_those_that_others_represent():
    assert set(KINDS) - set(SIMULATED) == {"mutex", "multi"}
