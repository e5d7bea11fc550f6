"""Generate the facades for threads from those for asyncio: `python tools/twins.py`; with `--check`, list stale ones.

With `--consumer`, write the calls of threads that the type checkers see to `build/typing`.

The code of each method is written once, for asyncio. Its twin for threads is the same without `async` and `await`. Its
description is written once, too, for threads: the method for asyncio has a sentence, a reference to its twin, and what
differs. The rest of a facade for threads (its attributes, and methods that asyncio does not have) is written by hand,
and so are the methods listed here, which behave differently.
"""

from __future__ import annotations

import ast
import re
import subprocess
import sys
from pathlib import Path
from typing import NamedTuple

PACKAGE = Path(__file__).parents[1] / "redsync"
CONSUMER = PACKAGE.parent / "tests" / "typing" / "consumer_async.py"
THREADS = PACKAGE.parent / "build" / "typing" / "consumer_threads.py"


class Twin(NamedTuple):
    """A class for asyncio, and the class for threads that gets copies of its methods.

    Attributes:
        source: The module of the class for asyncio.
        name: Its name without `Async`, which is the name of its twin.
        target: The module of the twin.
        by_hand: Methods that are not copied.
    """

    source: str
    name: str
    target: str
    by_hand: frozenset[str] = frozenset()


TWINS = (
    Twin("client_async", "Client", "client", frozenset({"locked", "__aenter__", "__aexit__"})),
    Twin("_facades/exclusive", "ExclusiveLock", "_facades/exclusive"),
    Twin("_facades/hold", "Hold", "_facades/hold", frozenset({"_open_scope", "_check_loss"})),
    Twin("_facades/latch", "CountDownLatch", "_facades/latch"),
    Twin("_facades/multi_hold", "MultiHold", "_facades/multi_hold", frozenset({"_check_loss"})),
    Twin("_facades/multi_lock", "MultiLock", "_facades/multi_lock", frozenset({"_enter", "locked"})),
    Twin("_facades/permit", "Permit", "_facades/permit", frozenset({"__aenter__"})),
    Twin("_facades/rate_limiter", "RateLimiter", "_facades/rate_limiter", frozenset({"__call__"})),
    Twin("_facades/read_write_lock", "ReadWriteLock", "_facades/read_write_lock"),
    Twin("_facades/semaphore", "Semaphore", "_facades/semaphore"),
)

CODE = (
    (r"\basync (?=def\b)", ""),
    (r"\bawait ", ""),
    (r"\b_?Async(?=[A-Z])", lambda match: match[0].replace("Async", "")),
    (r"__a(enter|exit)__", r"__\1__"),
    (r"\.run_at_once\(", ".run("),
)
"""Replacements in code."""

_DOCSTRING = re.compile(r'(""".*?""")', re.DOTALL)

CALLS = (
    (r"\basync (?=with\b)", ""),
    (r"\bimport asyncio\n", ""),
    (r"\basyncio\.create_task", ""),
    (r"\b(redis|valkey)\.asyncio", r"\1"),
    (r"_async\b|(?<=_)async_", ""),
)
"""Further replacements in the program with every call."""


def consumer() -> str:
    """Return the program with each call of threads, from the one with each call of asyncio."""
    text = CONSUMER.read_text()
    for pattern, replacement in (*CODE, *CALLS):
        text = re.sub(pattern, replacement, text)
    return text


def main() -> int:
    """Write or check the twins; return the exit status: 1 if the check finds a stale file."""
    if "--consumer" in sys.argv[1:]:
        THREADS.parent.mkdir(parents=True, exist_ok=True)
        THREADS.write_text(consumer())
        return 0
    check, old = "--check" in sys.argv[1:], False
    for target in dict.fromkeys(twin.target for twin in TWINS):
        path = PACKAGE / f"{target}.py"
        text = made = path.read_text()
        for twin in TWINS:
            if twin.target == target:
                made = copy_methods(twin, (PACKAGE / f"{twin.source}.py").read_text(), made)
        made = formatted(made, path)
        if made == text:
            continue
        old = True
        if check:
            sys.stderr.write(f"{path} is stale: run `make twins`\n")
        else:
            path.write_text(made)
            sys.stdout.write(f"wrote {path}\n")
    return int(check and old)


def formatted(text: str, path: Path) -> str:
    """Return the text in the style of the project."""
    command = [sys.executable, "-m", "ruff", "format", "--stdin-filename", str(path), "-"]
    return subprocess.run(command, input=text, stdout=subprocess.PIPE, text=True, check=True, cwd=PACKAGE.parent).stdout


def copy_methods(twin: Twin, source: str, target: str) -> str:
    """Return the target with updated copies of the source's methods; a new copy follows the copy of the method before.

    Raises:
        LookupError: A new method has no copied method before it.
    """
    lines, before = target.split("\n"), None
    for name, (begin, end) in methods(source, f"Async{twin.name}").items():
        place, mine = plain(name), methods("\n".join(lines), twin.name)
        if name not in twin.by_hand:
            mine_begin, mine_end = mine.get(place, (0, 0))
            old = "\n".join(lines[mine_begin:mine_end])
            copy = threaded("\n".join(source.split("\n")[begin:end]), old, name).split("\n")
            if place in mine:
                lines[mine_begin:mine_end] = copy
            elif before:
                after = mine[before][1]
                lines[after:after] = ["", *copy]
            else:
                raise LookupError(f"{twin.name} has no {place}: add one by hand at the right place")
        if place in methods("\n".join(lines), twin.name):
            before = place
    return "\n".join(lines)


def methods(text: str, name: str) -> dict[str, tuple[int, int]]:
    """Return the span of each method of a class, with overloads and decorators: its first line and the line after."""
    (found,) = [node for node in ast.parse(text).body if isinstance(node, ast.ClassDef) and node.name == name]
    spans: dict[str, tuple[int, int]] = {}
    for node in found.body:
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            first = min([node.lineno, *(decorator.lineno for decorator in node.decorator_list)]) - 1
            begin = spans.get(node.name, (first, 0))[0]
            spans[node.name] = begin, node.end_lineno or first
    return spans


def plain(name: str) -> str:
    """Return a method's name for threads."""
    return re.sub(r"^__a(?=(enter|exit)__$)", "__", name)


def threaded(method: str, before: str, name: str) -> str:
    """Return a method for threads, with the description that it had before; a new method brings that for asyncio."""
    parts, mine = _DOCSTRING.split(method, maxsplit=1), _DOCSTRING.search(before)
    parts[0], parts[2:] = in_code(parts[0], name), [in_code(part, name) for part in parts[2:]]
    if len(parts) > 1 and mine:
        parts[1] = mine[0]
    return "".join(parts)


def in_code(text: str, name: str) -> str:
    """Return code for threads; a release never waits for a protocol that its own thread has begun."""
    for pattern, replacement in CODE:
        text = re.sub(pattern, replacement, text)
    return text.replace("runner.run(", "runner.give_back(") if name in {"release", "_leave"} else text


if __name__ == "__main__":
    sys.exit(main())
