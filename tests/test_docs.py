"""The documentation's examples run and print what the pages say, and no page is missing from the navigation.

The Python blocks of a page are one script, in their order, at the lines where they stand. A `text` block right after a
Python block is what that one prints, `...` standing for anything. A page with test functions is run by pytest. An HTML
comment `<!-- skip: reason -->` before a block leaves it out. Hosts named `redis-1`, `redis-2` ... are local nodes.
"""

import doctest
import os
import re
import subprocess
import sys
from itertools import pairwise
from operator import attrgetter
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
DOCS = ROOT / "docs"
PAGES = [ROOT / "README.md", *sorted(DOCS.rglob("*.md"))]
BLOCK = re.compile(
    r"(?:^<!-- skip: (?P<skip>.+?) -->\n+)?^```(?P<language>\w*)\n(?P<code>.*?)^```$", re.MULTILINE | re.DOTALL
)
MARK = "\N{RECORD SEPARATOR}"


class Page:
    """A page's script, and what its blocks have to print, by the number of the line where they begin."""

    def __init__(self, text: str) -> None:
        lines = [""] * text.count("\n")
        self.outputs: dict[int, str] = {}
        blocks = list(BLOCK.finditer(text))
        for block, following in pairwise([*blocks, None]):
            if block["language"] != "python" or block["skip"]:
                continue
            first = text.count("\n", 0, block.start("code"))
            lines[first - 1] = f"print({MARK!r}, {first}, flush=True)"
            code = block["code"].splitlines()
            lines[first : first + len(code)] = code
            if following and following["language"] == "text" and not text[block.end() : following.start()].strip():
                self.outputs[first] = following["code"]
        self.script = "\n".join([*lines, f"print({MARK!r}, 0, flush=True)", ""])
        self.has_code = any(lines)
        self.has_tests = "\ndef test_" in self.script

    def faults(self, printed: str) -> list[str]:
        """Return where the page says something else than was printed."""
        found = {}
        for part in printed.split(MARK)[1:]:
            number, _, output = part.partition("\n")
            found[int(number)] = output
        same = doctest.OutputChecker().check_output
        return [
            f"line {first + 1}: printed\n{found.get(first)}"
            for first, wanted in self.outputs.items()
            if not same(wanted, found.get(first, ""), doctest.ELLIPSIS)
        ]


@pytest.mark.slow
@pytest.mark.parametrize("path", [path for path in PAGES if Page(path.read_text()).has_code], ids=attrgetter("name"))
def test_examples_of_page_run_and_print_what_it_says(path, tmp_path, redsync_nodes):
    urls = redsync_nodes.urls
    page = Page(re.sub(r"redis://redis-(\d+):6379", lambda match: urls[int(match[1]) - 1], path.read_text()))
    # Not the page's own name: a page may be called as a module is.
    script = tmp_path / f"page_{path.stem.replace('-', '_').lower()}.py"
    script.write_text(page.script)
    runner = ["-m", "pytest", "-s", "-q", "-p", "no:cacheprovider"] if page.has_tests else []
    result = subprocess.run(
        [sys.executable, *runner, script.name],
        cwd=tmp_path,
        env={**os.environ, "REDSYNC_URLS": ",".join(urls), "REDSYNC_RESTART_GUARD": "0"},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert result.returncode == 0, result.stdout + result.stderr
    assert page.faults(result.stdout) == []


def test_checker_finds_planted_mistakes():
    text = "\n```python\nprint(1)\n```\n\n```text\n2\n```\n<!-- skip: no -->\n```python\nfail\n```\n"
    page = Page(text)
    assert page.script.splitlines()[2] == "print(1)"
    assert "fail" not in page.script
    assert page.faults(f"{MARK} 2\n1\n{MARK} 0\n") == ["line 3: printed\n1\n"]
    assert page.faults(f"{MARK} 2\n2\n{MARK} 0\n") == []
    assert page.faults("") != []


@pytest.mark.parametrize("path", PAGES, ids=attrgetter("name"))
def test_every_fence_belongs_to_a_block(path):
    """An indented or mistyped fence would be left out silently."""
    text = path.read_text()
    assert text.count("```") == 2 * len(BLOCK.findall(text))


def test_navigation_lists_every_page():
    listed = re.findall(r"^ +- .+: (\S+\.md)$", (ROOT / "mkdocs.yml").read_text(), re.MULTILINE)
    assert sorted(listed) == sorted(path.relative_to(DOCS).as_posix() for path in DOCS.rglob("*.md"))


def test_links_of_readme_lead_to_files():
    links = re.findall(r"\]\(([^)#:]+)\)", (ROOT / "README.md").read_text())
    assert links
    assert [link for link in links if not (ROOT / link).is_file()] == []
