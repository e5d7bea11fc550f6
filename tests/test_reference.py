"""The reference describes every public name, and nothing twice."""

import re
from pathlib import Path

import redsync
from redsync import exceptions

PAGE = (Path(__file__).parents[1] / "docs" / "reference.md").read_text()


def test_reference_describes_every_public_name_once():
    described = [name for name in re.findall(r"(?m)^::: redsync\.(\w+)$", PAGE) if name[0].isupper()]
    assert sorted([*described, *exceptions.__all__]) == sorted(redsync.__all__)
