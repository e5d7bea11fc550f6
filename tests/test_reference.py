"""The reference describes every public name, and nothing twice; threads and asyncio stand side by side."""

import inspect
import re
from pathlib import Path

import pytest

import redsync
from redsync import exceptions
from tools import beside

ROOT = Path(__file__).parents[1]
PAGES = [path.read_text() for path in (ROOT / "docs" / "reference").glob("*.md")]
TWINS = [name for name in redsync.__all__ if f"Async{name}" in redsync.__all__]


def test_reference_describes_every_public_name_once():
    described = re.findall(r"(?m)^::: redsync\.([A-Z]\w+)$", "\n".join(PAGES))
    assert sorted([*described, *exceptions.__all__]) == sorted(redsync.__all__)


@pytest.fixture(scope="module")
def built():
    """The reference as it is built, with its tables."""
    return "\n".join(beside.with_tables(page) for page in PAGES)


def calls(text):
    """The calls that a table shows: class and method, how it is called, and if asyncio awaits it."""
    row = r"\| \[`([^`]+)`\]\[redsync\.(\w+)\.(\w+)\]( \*await\*)? \| .+ \|$"
    return {(kind, name): (call, bool(mark)) for call, kind, name, mark in re.findall(row, text, re.MULTILINE)}


def public(kind):
    return dict(item for item in inspect.getmembers(getattr(redsync, kind), inspect.isroutine) if item[0][0] != "_")


@pytest.mark.parametrize("name", TWINS)
def test_reference_has_each_call_of_both_flavours_side_by_side(built, name):
    section = built.partition(f"\n## {name}\n")[2].partition("\n::: ")[0]
    plain, twins, found = public(name), public(f"Async{name}"), calls(section)
    if other := re.search(r"All calls are those of \[`(\w+)`\]", section):
        assert (found, plain, {*twins}) == ({}, public(other[1]), {*public(f"Async{other[1]}")})
    else:
        awaited = {(name, method): inspect.iscoroutinefunction(twins[method]) for method in plain}
        assert {call: mark for call, (_, mark) in found.items()} == awaited


def test_table_names_shared_options_once(built):
    assert calls(built)["Client", "get_semaphore"] == ("get_semaphore(name, permits, **options)", False)
    assert calls(built)["Lock", "acquire"] == ("acquire(blocking=True, timeout=-1, *, lease=None)", True)
