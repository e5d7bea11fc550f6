"""The scripts as values, and on a real server."""

import re
from pathlib import Path

import pytest

import redsync
from redsync._core.scripts import Script

LUA = Path(redsync.__file__).parent / "_lua"
NAMES = sorted(path.stem for path in LUA.glob("[!_]*.lua"))
SNIPPETS = sorted(path.stem for path in LUA.glob("_*.lua"))


def test_shipped_scripts_are_all_files_except_snippets():
    assert [script.name for script in Script.shipped()] == NAMES
    assert len(NAMES) >= 6
    assert not any(name.startswith("_") for name in NAMES)


def test_comments_of_script_are_whole_lines():
    """Only these are removed, and includes resolved.

    Lines of a long string or comment, `[[...]]`, would be taken for comments, or stay.
    """
    for script in Script.shipped():
        source = script.source.decode()
        assert "--" not in source, script
        assert not re.search(r"\[=*\[|\\$", source, re.MULTILINE), script


def test_each_snippet_is_included_somewhere():
    text = "".join(path.read_text() for path in LUA.glob("*.lua"))
    assert [snippet for snippet in SNIPPETS if f"-- include: {snippet[1:]}\n" not in text] == []


def test_votes_for_releases_and_pure_looks_alone_do_not_wait_for_replicas():
    """A look at a semaphore writes the limit of a resize, which must outlive a failover."""
    passing = {script.name for script in Script.shipped() if not script.must_last}
    claims = {"lock_release", "read_write_lock_release", "semaphore_release", "semaphore_abandon"}
    assert passing - claims == {"semaphore_confirm", "latch_leave", "name_inspect", "names_scan", "client_announce"}


def test_script_is_frozen_and_shows_its_name():
    script = Script.load(NAMES[0])
    with pytest.raises(AttributeError):
        script.source = b""
    assert repr(script) == f"Script(name={NAMES[0]!r})"


def test_server_compiles_each_script_under_our_digest(node):
    node.redis.script_flush()
    for script in Script.shipped():
        assert node.redis.script_load(script.source) == script.sha.decode()
        assert node.redis.script_exists(script.sha.decode()) == [True]
