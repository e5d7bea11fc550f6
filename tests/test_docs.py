"""The documentation's examples run and print what the pages say, and no page is missing from the navigation.

The Python blocks of a page are one script, in their order, at the lines where they stand. A `text` block right after a
Python block is what that one prints, `...` standing for anything. A page with test functions is run by pytest. Hosts
named `redis-1`, `redis-2` ... are local nodes.

The `bash` blocks of a page are one script as well, which runs after that in Python and finds the nodes empty, and all
five of them in REDSYNC_URLS. Each command must succeed: one that is meant to fail ends in `|| echo "status $?"`. Their
`text` shows one run: addresses, processes, owners, times and durations may differ, and so may spaces; what goes to
standard error is part of it. `make` is not run, but looks whether there is such a target; `pip` does nothing.

Pages whose blocks run for longer are listed in `SWEEPS`, and run in `make test-all` only.

An HTML comment `<!-- skip: reason -->` before a block leaves it out. What is in no language that runs is listed, with
the reason, in `NOT_RUN`.
"""

import doctest
import os
import re
import subprocess
import sys
import tomllib
from itertools import pairwise
from pathlib import Path

import pytest

from redsync.cli import FAMILIES, exits
from tests.support.warm import LIBRARY, WarmPython

ROOT = Path(__file__).parents[1]
DOCS = ROOT / "docs"
PAGES = [ROOT / "README.md", *sorted(DOCS.rglob("*.md"))]
BLOCK = re.compile(
    r"(?:^<!-- skip: (?P<skip>.+?) -->\n+)?^```(?P<language>\w*)\n(?P<code>.*?)^```$", re.MULTILINE | re.DOTALL
)
NOT_RUN = {
    "text": "what a block prints, or a picture",
    "conf": "a server's settings: test_acl.py runs servers with them",
    "go": "what a program was before its migration; there is no compiler here",
    "java": "as Go",
    "toml": "a project's settings: the tests of the module that reads them have them",
    "sql": "for a database that is not here",
}
SWEEPS = {
    "python": {"docs/testing.md", "docs/howto/testing-your-code.md", "docs/howto/long-jobs.md", "docs/safety.md"},
    "bash": {"docs/cli/index.md", "docs/cli/inspect.md", "docs/cli/lock.md", "docs/operate/runbooks.md"},
}
MARK = "\N{RECORD SEPARATOR}"
MARKING = {"python": f"print({MARK!r}, {{}}, flush=True)", "bash": "printf '\\036 %d\\n' {}"}
SHELL = f'set -eu\nmake() {{ command make --dry-run --directory={str(ROOT)!r} "$@" >/dev/null; }}\npip() {{ :; }}\n'
BLURRED = {
    r"(?:redis-\d|127\.0\.0\.1):\d+": "NODE",
    r"\b[0-9a-f]{8}(?:(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}(?::\d+)?|:\d+)": "OWNER",
    r"(?m)^\d\d:\d\d:\d\d|\b\d{4}-\d\d-\d\d \d\d:\d\d:\d\d": "TIME",
    r"\b[a-z][\w.-]*:\d{2,}\b": "PROCESS",
    r"[+-]?\b\d[\d,.]* (?:ms|s|min|h|d|x)\b(?: \d+ (?:s|min|h)\b)*": "FIGURE",
    r"\b(?:redis|valkey) \d[\d.]*": "SERVER",
    r"\b\d{16}\b": "FENCING TOKEN",
    r"\s+": " ",
}


class Script:
    """A page's blocks in one language, and what they have to print, by the number of the line where they begin."""

    def __init__(self, text: str, language: str) -> None:
        self.language = language
        lines = [""] * text.count("\n")
        self.outputs: dict[int, str] = {}
        blocks = list(BLOCK.finditer(text))
        for block, following in pairwise([*blocks, None]):
            if block["language"] != language or block["skip"]:
                continue
            first = text.count("\n", 0, block.start("code"))
            lines[first - 1] = MARKING[language].format(first)
            code = block["code"].splitlines()
            lines[first : first + len(code)] = code
            if following and following["language"] == "text" and not text[block.end() : following.start()].strip():
                self.outputs[first] = following["code"]
        self.source = "\n".join([*lines, MARKING[language].format(0), ""])
        self.has_code = any(lines)
        self.has_tests = "\ndef test_" in self.source

    def faults(self, printed: str) -> list[str]:
        """Return where the page says something else than was printed."""
        found = {}
        for part in printed.split(MARK)[1:]:
            number, _, output = part.partition("\n")
            found[int(number)] = output
        return [
            f"line {first + 1}: printed\n{found.get(first)}"
            for first, wanted in self.outputs.items()
            if not self._is_same(wanted, found.get(first, ""))
        ]

    def _is_same(self, wanted: str, printed: str) -> bool:
        if self.language == "bash":
            wanted, printed = blurred(wanted), blurred(printed)
        return doctest.OutputChecker().check_output(wanted, printed, doctest.ELLIPSIS)


def blurred(text: str) -> str:
    """Return text without what differs from run to run."""
    for pattern, name in BLURRED.items():
        text = re.sub(pattern, name, text)
    return text.strip()


def name_of(path: Path) -> str:
    return path.relative_to(ROOT).as_posix()


def pages_with(language: str) -> list:
    return [
        pytest.param(path, id=name_of(path), marks=pytest.mark.sweep if name_of(path) in SWEEPS[language] else ())
        for path in PAGES
        if Script(path.read_text(), language).has_code
    ]


@pytest.fixture(scope="module")
def python():
    with WarmPython("-u", modules=[*LIBRARY, "tests.support.patient"]) as python:
        yield python


@pytest.fixture
def run(redsync_nodes, tmp_path, python):
    """Run a page's script in one language, and tell where the page says something else than it prints."""

    def run(path, language):
        urls = redsync_nodes.urls
        text = re.sub(r"redis://redis-(\d+):6379", lambda match: urls[int(match[1]) - 1], path.read_text())
        script = Script(text, language)
        # Not the page's own name: a page may be called as a module is.
        file = tmp_path / f"page_{path.stem.replace('-', '_').lower()}.py"
        file.write_text(script.source)
        settings = {
            "PATH": os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]]),
            "PYTHONUNBUFFERED": "1",  # as on a terminal: output and errors in the order in which they were written
            "REDSYNC_URLS": ",".join(urls),
            "REDSYNC_RESTART_GUARD": "0",
        }
        if language == "python" and not script.has_tests:
            result = python.run(file, tmp_path, **settings)
            assert result.returncode == 0, result.stdout + result.stderr
            return script.faults(result.stdout)
        command = [sys.executable, "-m", "pytest", "-s", "-q", "-p", "no:cacheprovider", file.name]
        result = subprocess.run(
            ["bash", "-c", SHELL + script.source] if language == "bash" else command,
            cwd=tmp_path,
            env=os.environ | settings,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT if language == "bash" else subprocess.PIPE,
            text=True,
            timeout=100,
            check=False,
        )
        assert result.returncode == 0, f"{result.stdout}{result.stderr or ''}"
        return script.faults(result.stdout)

    return run


@pytest.mark.parametrize("path", pages_with("python"))
def test_examples_of_page_run_and_print_what_it_says(path, run):
    faults = run(path, "python")
    assert not faults, "\n".join(faults)


@pytest.mark.parametrize("path", pages_with("bash"))
def test_commands_of_page_run_and_print_what_it_says(path, run):
    faults = run(path, "bash")
    assert not faults, "\n".join(faults)


def test_checker_finds_planted_mistakes():
    text = "\n```python\nprint(1)\n```\n\n```text\n2\n```\n<!-- skip: no -->\n```python\nfail\n```\n"
    script = Script(text, "python")
    assert script.source.splitlines()[2] == "print(1)"
    assert "fail" not in script.source
    assert script.faults(f"{MARK} 2\n1\n{MARK} 0\n") == ["line 3: printed\n1\n"]
    assert script.faults(f"{MARK} 2\n2\n{MARK} 0\n") == []
    assert script.faults("") != []


@pytest.mark.parametrize(
    ("code", "output", "right"),
    [
        ("echo 'who  holds'", "who holds", True),
        ("echo who >&2", "who", True),
        ("echo who", "what", False),
        ("echo 12345678-abcd-abcd-abcd-0123456789ab:7 has 1 of 2 nodes", "{owner} has 1 of 2 nodes", True),
        ("echo 12345678-abcd-abcd-abcd-0123456789ab:7 has 1 of 2 nodes", "{owner} has 2 of 2 nodes", False),
        ("echo 'redis-1:6379 up for 3 s'", "127.0.0.1:23456 up for 12.1 s", True),
        ("echo 'redis-1:6379 up for 3 s'", "127.0.0.1:23456 down for 12.1 s", False),
        ("false || echo $?", "1", True),
        ("false\necho 1", "1", False),
        ("make nonsense", "", False),
        ("make test", "", True),
    ],
)
def test_checker_finds_planted_mistakes_of_commands(code, output, right, tmp_path, run):
    page = tmp_path / "page.md"
    output = output.format(owner="87654321-abcd-abcd-abcd-0123456789ab:1")
    page.write_text(f"A page.\n\n```bash\n{code}\n```\n\n```text\n{output}\n```\n")
    try:
        assert (run(page, "bash") == []) is right
    except AssertionError:
        assert not right


@pytest.mark.parametrize("path", PAGES, ids=name_of)
def test_every_fence_belongs_to_a_block_that_runs_or_says_why_not(path):
    """An indented or mistyped fence would be left out silently."""
    text = path.read_text()
    blocks = list(BLOCK.finditer(text))
    assert text.count("```") == 2 * len(blocks)
    assert {block["language"] for block in blocks} <= {*MARKING, *NOT_RUN}
    # Commands are not hidden in what does not run.
    assert not [block for block in blocks if block["language"] in NOT_RUN and block["code"].startswith("$ ")]


def test_what_is_installed_is_what_there_is():
    """The shell script of a page does not run pip, so names of distributions and extras are looked up instead."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    texts = [path.read_text() for path in PAGES]
    named = [each for text in texts for each in re.findall(r"pip install .*?([\w-]*redsync[\w-]*)(?:\[(.*?)\])?", text)]
    assert named
    assert {name for name, _ in named} == {project["name"]}
    extras = {extra for _, extras in named if extras for extra in extras.split(",")}
    assert extras <= set(project["optional-dependencies"])


def test_command_line_page_lists_every_command_and_status():
    page = (DOCS / "cli/index.md").read_text()
    listed = set(re.findall(r"^\| `redsync ([a-z]+)", page, re.MULTILINE))
    assert listed == {command for family in FAMILIES.values() for command in family}
    rows = re.findall(r"^\|.*", exits.__doc__, re.MULTILINE)
    assert len(rows) > 10
    assert "\n".join(rows) in page


def test_navigation_lists_every_page():
    listed = re.findall(r"^ +- .+: (\S+\.md)$", (ROOT / "mkdocs.yml").read_text(), re.MULTILINE)
    assert sorted(listed) == sorted(path.relative_to(DOCS).as_posix() for path in DOCS.rglob("*.md"))
