"""The names of `import redsync`."""

import ast
import importlib
import subprocess
import sys

import pytest

import redsync

EXPORTS = sorted(redsync.__all__)


def test_exports_are_importable_and_defined_in_the_package():
    assert len(set(EXPORTS)) == len(EXPORTS)
    for name in EXPORTS:
        value = getattr(redsync, name)
        assert value.__name__ == name
        assert value.__module__.startswith("redsync.")
        assert getattr(importlib.import_module(value.__module__), name) is value is vars(redsync)[name]
        assert name in importlib.import_module(value.__module__).__all__


def test_exports_are_listed_star_imported_and_loaded_at_their_first_use():
    program = """
import redsync, sys
loaded = [name for name in sys.modules if name.startswith(("redsync.", "redis"))]
names = dir(redsync)
from redsync import *
print([loaded, names, sorted(set(dir()) & set(names))])
"""
    command = [sys.executable, "-W", "error", "-c", program]
    result = subprocess.run(command, capture_output=True, text=True, check=False)
    assert result.returncode == 0, result.stderr
    loaded, names, imported = ast.literal_eval(result.stdout)
    assert loaded == []
    assert {*EXPORTS, "__all__", "__doc__", "__name__"} <= set(names)
    assert names == sorted(set(names))
    assert set(EXPORTS) <= set(imported)
    assert set(EXPORTS) <= set(dir(redsync))


def test_name_that_does_not_exist_is_an_attribute_error():
    with pytest.raises(AttributeError, match="module 'redsync' has no attribute 'Clinet'"):
        _ = redsync.Clinet
    assert not hasattr(redsync, "import_module_of_nothing")
    with pytest.raises(ImportError, match="Clinet"):
        exec("from redsync import Clinet")  # a typing error


def test_export_that_a_library_keeps_from_loading_says_so(monkeypatch, tmp_path):
    """Python drops an AttributeError in `from redsync import ...`, and only says that it can't import the name."""
    (tmp_path / "module_for_a_newer_library.py").write_text("import json\njson.is_newer")
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setitem(redsync._HOMES, "Lock", "module_for_a_newer_library")
    monkeypatch.delitem(vars(redsync), "Lock", raising=False)
    with pytest.raises(ImportError, match=r"redsync\.Lock can't be loaded: module 'json' has no attribute 'is_newer'"):
        exec("from redsync import Lock")
