"""Generate the facades for threads from those for asyncio: `python tools/twins.py`; with `--check`, list stale ones.

With `--consumer`, write the calls of threads that the type checkers see to `build/typing`.

Each method of a facade is written once, for asyncio. Its twin for threads is the same without `async` and `await`, and
its docstring speaks of threads. The rest of a facade for threads (its description, its attributes, and methods that
asyncio does not have) is written by hand, and so are the methods listed here, which behave differently.
"""

from __future__ import annotations

import ast
import re
import subprocess
import sys
import textwrap
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
    Twin("client_async", "Client", "client", frozenset({"_make_runner", "locked", "__aenter__", "__aexit__"})),
    Twin("_facades/exclusive", "ExclusiveLock", "_facades/exclusive"),
    Twin("_facades/hold", "Hold", "_facades/hold", frozenset({"_open_scope", "_check_loss"})),
    Twin("_facades/latch", "CountDownLatch", "_facades/latch"),
    Twin("_facades/multi_hold", "Releasing", "_facades/multi_hold", frozenset({"_release_rest"})),
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
"""Replacements in code, and in names that docstrings quote."""

CALLS = (
    (r"\basync (?=with\b)", ""),
    (r"\bimport asyncio\n", ""),
    (r"\basyncio\.create_task", ""),
    (r"\bredis\.asyncio", "redis"),
    (r"_async\b|(?<=_)async_", ""),
)
"""Further replacements in the program with every call."""

WORDS = (
    (r" A cancelled release still takes effect, without waiting for the nodes\.", ""),
    (r"A cancelled release still takes effect, without waiting for the nodes\.\n\n", ""),
    (r" A cancelled call may or may not have counted, like a failed one\.", ""),
    (r" Not a coroutine: it asks no node\.", ""),
    (r"\bthe call is cancelled\b", "the call is interrupted"),
    (r", awaited\.", "."),
    (
        r"in the event loop: a slow call delays all tasks\. Without it, a loss cancels the body of an `async with`\.",
        "in the thread that notices, often the one that renews all holds: a slow call delays renewals.",
    ),
    (r"\ban `async with`", "a `with`"),
    (r"`async with`", "`with`"),
    (r"\bTasks that\b", "Threads that"),
    (r"\btask(s?)\b", r"thread\1"),
)
"""Further replacements in docstrings; they see each paragraph as one line."""


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
    return subprocess.run(command, input=text, capture_output=True, text=True, check=True, cwd=PACKAGE.parent).stdout


def copy_methods(twin: Twin, source: str, target: str) -> str:
    """Return the target with updated copies of the source's methods; a new copy follows the copy of the method before.

    Raises:
        LookupError: A new method has no copied method before it.
    """
    lines, before = target.split("\n"), None
    for name, (begin, end) in methods(source, f"Async{twin.name}").items():
        place, mine = plain(name), methods("\n".join(lines), twin.name)
        if name not in twin.by_hand:
            copy = threaded("\n".join(source.split("\n")[begin:end]), name).split("\n")
            if place in mine:
                mine_begin, mine_end = mine[place]
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


def threaded(method: str, name: str) -> str:
    """Return a method for threads."""
    parts = re.split(r'(""".*?""")', method, maxsplit=1, flags=re.DOTALL)
    parts[0], parts[2:] = in_code(parts[0], name), [in_code(part, name) for part in parts[2:]]
    if len(parts) > 1:
        parts[1] = in_words(parts[1])
    return "".join(parts)


def in_code(text: str, name: str) -> str:
    """Return code for threads; a release never waits for a protocol that its own thread has begun."""
    for pattern, replacement in CODE:
        text = re.sub(pattern, replacement, text)
    return text.replace("runner.run(", "runner.give_back(") if name in {"release", "_leave"} else text


def in_words(docstring: str) -> str:
    """Return a docstring for threads, with changed paragraphs reflowed."""
    blocks: list[str] = []
    for line in re.findall(r"[^\n]+\n*", docstring):
        # A line continues the block above unless that ended a paragraph or a heading, or the line begins a new entry.
        above = blocks[-1] if blocks else "\n\n"
        is_apart = above.endswith(("\n\n", ":\n")) or line.strip() == '"""'
        if not is_apart and (indent_of(line) > indent_of(above) or indent_of(line) == 8):
            blocks[-1] += line
        else:
            blocks.append(line)
    return "".join(map(refilled, blocks))


def indent_of(block: str) -> int:
    """Return the indentation of a block's first line; the first line of a docstring counts as 8."""
    return 8 if block.startswith('"""') else len(block) - len(block.lstrip())


def refilled(block: str) -> str:
    """Return a block for threads, reflowed if it changed."""
    lines = block.rstrip("\n").split("\n")
    flat = " ".join([lines[0], *(line.strip() for line in lines[1:])]) + block[len(block.rstrip("\n")) :]
    made = flat
    for pattern, replacement in (*WORDS, *CODE):
        made = re.sub(pattern, replacement, made)
    if made == flat:
        return block
    if not made.strip():
        return ""
    first = lines[0][: len(lines[0]) - len(lines[0].lstrip())]
    rest = " " * (indent_of(lines[1]) if len(lines) > 1 else 8)
    ending = re.search(r"\s*$", made)[0]  # type: ignore[index]
    filled = textwrap.fill(
        made.strip(), 120, initial_indent=first, subsequent_indent=rest, break_long_words=False, break_on_hyphens=False
    )
    return filled + ending


if __name__ == "__main__":
    sys.exit(main())
