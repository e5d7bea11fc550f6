"""The reference describes every public name, and nothing twice; threads and asyncio stand side by side."""

import importlib.util
import inspect
import re
from pathlib import Path
from types import SimpleNamespace

import pytest

import redsync
from redsync import exceptions

ROOT = Path(__file__).parents[1]
PAGES = [path.read_text() for path in (ROOT / "docs" / "reference").glob("*.md")]
TWINS = [name for name in redsync.__all__ if f"Async{name}" in redsync.__all__]


def test_reference_describes_every_public_name_once():
    described = re.findall(r"(?m)^::: redsync\.([A-Z]\w+)$", "\n".join(PAGES))
    assert sorted([*described, *exceptions.__all__]) == sorted(redsync.__all__)


@pytest.fixture(scope="module")
def beside():
    spec = importlib.util.spec_from_file_location("beside", ROOT / "tools" / "beside.py")
    beside = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(beside)
    return beside


@pytest.fixture(scope="module")
def built(beside):
    return "\n".join(beside.with_tables(page) for page in PAGES)


def test_class_with_a_section_has_one_heading_and_keeps_its_anchor(beside):
    lock = '<h2 id="lock">Lock</h2>\n<div class="doc">\n<h3 id="redsync.Lock" class="doc doc-heading">Lock</h3>'
    vote = '<h2 id="others">Others</h2>\n<div class="doc">\n<h3 id="redsync.Vote" class="doc doc-heading">Vote</h3>'
    assert beside.without_second_headings(lock) == '<h2 id="lock">Lock</h2>\n<div class="doc" id="redsync.Lock">'
    assert beside.without_second_headings(vote) == vote


def test_table_of_contents_lists_each_class_once_without_methods(beside):
    def item(title, *children):
        return SimpleNamespace(title=title, children=list(children))

    vote = item("Vote", item("node"))
    top = item("API", item("Lock", item("Lock", item("acquire"))), item("Others", vote))
    page = SimpleNamespace(file=SimpleNamespace(src_uri="reference/locks.md"), toc=SimpleNamespace(items=[top]))
    beside.on_page_context({}, page=page)
    assert top == item("API", item("Lock"), item("Others", item("Vote")))


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
