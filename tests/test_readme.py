"""Files outside the documentation's site have no dead links; `mkdocs --strict` checks only the site."""

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
LINK = re.compile(r"\]\((?!https?:)([^)#]*)(?:#([^)]*))?\)")


def anchors(page):
    """Return the anchors of a page's headings, as GitHub and the site make them."""
    headings = re.findall(r"(?m)^#+ (.+)$", re.sub(r"(?ms)^```.*?^```$", "", page.read_text()))
    return {re.sub(r"\s+", "-", re.sub(r"[^\w\s-]", "", heading).strip().lower()) for heading in headings}


def dead_links(page):
    dead = []
    for path, anchor in LINK.findall(page.read_text()):
        target = page.parent / path if path else page
        if not target.is_file() or (anchor and anchor not in anchors(target)):
            dead.append(f"{path}#{anchor}")
    return dead


@pytest.mark.parametrize("name", ["README.md", "CONTRIBUTING.md"])
def test_links_lead_somewhere(name):
    assert not dead_links(ROOT / name)


def test_dead_links_are_found(tmp_path):
    page = tmp_path / "page.md"
    page.write_text(
        "# A title\n[a](page.md#a-title) [b](page.md#gone) [c](gone.md) [d](#a-title) [e](https://example.org)\n"
    )
    assert dead_links(page) == ["page.md#gone", "gone.md#"]
