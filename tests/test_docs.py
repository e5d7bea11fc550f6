"""The documentation's examples run and print what the pages say.

The Python blocks of a page are one script, in order, at their own lines. A `text` block right after a Python block is
that block's output; `...` matches anything. pytest runs a page with test functions. Hosts named `redis-1`, `redis-2`
... are local nodes.

The `bash` blocks of a page are also one script, which runs after the Python one and finds the nodes empty, and all
five of them in REDSYNC_URLS. Each command must succeed: one that is meant to fail ends in `|| echo "status $?"`. Their
`text` shows one run: addresses, processes, owners, times, durations and spaces may differ; standard error is part of
it. `make` only checks that the target exists; `pip` does nothing.

`SWEEPS` lists pages with slow blocks, which run in `make test-all` only.

An HTML comment `<!-- skip: reason -->` before a block skips it. `NOT_RUN` lists the languages that do not run, each
with the reason.
"""

import doctest
import os
import re
import shlex
import subprocess
import sys
import tomllib
from collections import Counter
from itertools import pairwise
from pathlib import Path

import pytest

from redsync.cli import exits
from redsync.cli.arguments import COMMANDS, parse
from tests.support.nursery import LIBRARY, WarmPython
from tools import self_contained

pytestmark = pytest.mark.timeout(400)  # a page on a busy machine

ROOT = Path(__file__).parents[1]
DOCS = ROOT / "docs"
PAGES = [ROOT / "README.md", *sorted(DOCS.rglob("*.md"))]
BLOCK = re.compile(
    r"(?:^<!-- skip: (?P<skip>.+?) -->\n+)?^```(?P<language>\w*)\n(?P<code>.*?)^```$", re.MULTILINE | re.DOTALL
)
NOT_RUN = {
    "text": "a block's output, or a picture",
    "conf": "a server's settings: test_acl.py runs servers with them",
    "go": "a program before its migration; there is no compiler here",
    "java": "as Go",
    "toml": "a project's settings: the tests of the module that reads them have them",
    "sql": "for a database that is not here",
    "yaml": "settings of a monitoring server that is not here",
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
    """A page's blocks in one language and their expected output, by the number of their first line."""

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
        """Return the places where the page differs from the output."""
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
    """Return text without the parts that differ between runs."""
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
    """Run a page's script in one language, and report where the page differs from its output."""

    def run(path, language):
        urls = redsync_nodes.urls
        text = re.sub(r"redis://redis-(\d+):6379", lambda match: urls[int(match[1]) - 1], path.read_text())
        script = Script(text, language)
        # Not the page's own name, which may be a module's name.
        file = tmp_path / f"page_{path.stem.replace('-', '_').lower()}.py"
        file.write_text(script.source)
        settings = {
            "PATH": os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]]),
            "PYTHONUNBUFFERED": "1",  # as on a terminal: output and errors in the order of writing
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
            timeout=300,
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
        ("echo who >&2", "who", True),
        ("echo who", "what", False),
        ("echo 12345678-abcd-abcd-abcd-0123456789ab:7 has 1 of 2 nodes", "{owner} has 1 of 2 nodes", True),
        ("echo 12345678-abcd-abcd-abcd-0123456789ab:7 has 1 of 2 nodes", "{owner} has 2 of 2 nodes", False),
        ("false\necho 1", "1", False),
        ("make nonsense", "", False),
    ],
)
def test_checker_finds_planted_mistakes_of_commands(code, output, right, tmp_path, run):
    page = tmp_path / "page.md"
    output = output.format(owner="87654321-abcd-abcd-abcd-0123456789ab:1")
    page.write_text(f"A page.\n\n```bash\n{code}\n```\n\n```text\n{output}\n```\n")
    try:
        faults = run(page, "bash")
    except AssertionError as failed:
        faults = [failed]
    assert (faults == []) is right


def test_every_fence_belongs_to_a_block_that_runs_or_tells_why_not():
    """An indented or mistyped fence would be skipped silently."""
    for path in PAGES:
        text = path.read_text()
        blocks = list(BLOCK.finditer(text))
        assert text.count("```") == 2 * len(blocks), path
        assert {block["language"] for block in blocks} <= {*MARKING, *NOT_RUN}, path
        # No commands are hidden in blocks that do not run.
        assert not [block for block in blocks if block["language"] in NOT_RUN and block["code"].startswith("$ ")], path


def test_installed_distributions_and_extras_exist():
    """A page's shell script does not run pip, so look up the extras; there is no release, only a checkout."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    texts = [path.read_text() for path in PAGES]
    named = [each for text in texts for each in re.findall(r'pip install "?([\w.-]+)(?:\[(.*?)\])?', text)]
    assert {name for name, _ in named} == {"."}
    extras = {extra for _, extras in named if extras for extra in extras.split(",")}
    assert set() < extras <= set(project["optional-dependencies"])


def test_command_line_page_lists_every_command_and_status():
    page = (DOCS / "cli/index.md").read_text()
    listed = set(re.findall(r"^\| \[`redsync ([a-z]+)", page, re.MULTILINE))
    assert listed == set(COMMANDS)
    statuses = re.findall(r"^[A-Z_]+: Final = (\d+)  # (.*)$", Path(exits.__file__).read_text(), re.MULTILINE)
    assert len(statuses) == 12
    assert all(f"| {number} | {meaning} |" in page for number, meaning in statuses)


def commands_not_run(page):
    """Yield the commands of this package, with arguments, that a page mentions in inline code or shows in `text`."""
    names = "|".join(COMMANDS)
    blocks = [block["code"] for block in BLOCK.finditer(page) if block["language"] == "text"]
    inline = re.findall(r"`([^`]+)`", BLOCK.sub("", page))
    for line in "\n".join([*blocks, *inline]).splitlines():
        if found := re.search(rf"\bredsync (?:{names}) (?=\S)(?!--[\w-]+$)[^|]*", line):
            yield re.sub(r" \.\.\.(?= \S)", "", found[0])


def test_commands_that_do_not_run_have_valid_arguments():
    planted = "`redsync ls x | head`, `redsync ls`, `redsync lock --lease`, `redsync show ... y`\n"
    assert list(commands_not_run(planted)) == ["redsync ls x ", "redsync show y"]
    for path in PAGES:
        for command in commands_not_run(path.read_text()):
            assert parse(shlex.split(command)[1:]), (path, command)


def test_titles_of_pages_differ():
    titles = [path.read_text().splitlines()[0] for path in PAGES if path.name not in {"README.md", "changelog.md"}]
    assert all(title.startswith("# ") for title in titles)
    assert not [title for title, number in Counter(titles).items() if number > 1]


def test_blocks_fit_a_screen_of_1280_pixels():
    """Longer lines scroll sideways; examples/ruff.toml bounds those of the examples."""
    for path in PAGES:
        blocks = [block for block in BLOCK.finditer(path.read_text()) if block["language"] != "conf"]
        assert not [line for block in blocks for line in block["code"].splitlines() if len(line) > 108], path


def stray_stars(page):
    """Return the lines with stars that are neither in code nor around bold text, so that readers see them."""
    prose = re.sub(r"`[^`]+`", "code", BLOCK.sub("", page))
    return [line for line in re.sub(r"\*\*(?=\S)[^*]+(?<=\S)\*\*", "", prose).splitlines() if "**" in line]


def test_pages_show_no_stray_stars():
    assert {path: stars for path in PAGES if (stars := stray_stars(path.read_text()))} == {}
    assert stray_stars("Bold **is `bold`**, `2**31`.\n\nBelow 2**53.\n") == ["Below 2**53."]


@pytest.mark.parametrize(
    ("html", "found"),
    [
        ("<script src=//cdn.example/x.js></script>", ["//cdn.example/x.js"]),
        ('<link rel="stylesheet" href="https://cdn.example/x.css">', ["https://cdn.example/x.css"]),
        ('<img alt="" src="https://img.example/badge.svg">', ["https://img.example/badge.svg"]),
        ('<a href="https://redis.io">Redis</a><link rel="canonical" href="https://docs.example/">', []),
        ('<script src="javascripts/iframe-worker.js"></script><link rel="stylesheet" href="x.css">', []),
    ],
)
def test_build_finds_what_pages_would_fetch_from_elsewhere(html, found):
    assert self_contained.foreign(html) == found
