"""The reference describes every public name, and nothing twice; threads and asyncio stand side by side."""

import importlib.util
import inspect
import re
from pathlib import Path

import pytest

import redsync
from redsync import exceptions

ROOT = Path(__file__).parents[1]
PAGE = (ROOT / "docs" / "reference.md").read_text()
TWINS = [name for name in redsync.__all__ if f"Async{name}" in redsync.__all__]


def test_reference_describes_every_public_name_once():
    described = [name for name in re.findall(r"(?m)^::: redsync\.(\w+)$", PAGE) if name[0].isupper()]
    assert sorted([*described, *exceptions.__all__]) == sorted(redsync.__all__)


@pytest.fixture(scope="module")
def built():
    """The reference as it is built, with its tables."""
    spec = importlib.util.spec_from_file_location("beside", ROOT / "tools" / "beside.py")
    beside = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(beside)
    return beside.with_tables(PAGE)


def calls(text):
    """The calls that a table shows: class, method, and how it is called."""
    return {(kind, name): call for call, kind, name in re.findall(r"\[`([^`]+)`\]\[redsync\.(\w+)\.(\w+)\]", text)}


@pytest.mark.parametrize("name", TWINS)
def test_reference_has_each_call_of_both_flavours_side_by_side(built, name):
    section = built.partition(f"\n## {name}\n")[2].partition("\n::: ")[0]
    for line in section.splitlines():
        found = calls(line)
        assert not found or {kind for kind, _ in found} == {name, f"Async{name}"}, line
    found = calls(section)
    for kind in (name, f"Async{name}"):
        methods = dict(inspect.getmembers(getattr(redsync, kind), inspect.isroutine))
        public = {method for method in methods if not method.startswith("_")}
        assert {method for each, method in found if each == kind} == public
        for method in public:
            assert found[kind, method].startswith("await ") == inspect.iscoroutinefunction(methods[method])


def test_table_names_shared_options_once(built):
    assert calls(built)["Client", "get_semaphore"] == "get_semaphore(name, permits, **options)"
    assert calls(built)["AsyncLock", "acquire"] == "await acquire(blocking=True, timeout=-1, *, lease=None)"
