"""Generate docs/llms.txt: `python tools/llms.py`; with `--check`, fail if it is stale.

It lists the pages of the documentation and their subjects, as https://llmstxt.org proposes.
"""

from __future__ import annotations

import re
import sys
from pathlib import Path
from typing import Final

ROOT: Final = Path(__file__).parents[1]
_NAV: Final = re.compile(r"^ +- \"?([^\"\n]+?)\"?: (\S+\.md)$|^  - ([^:\n]+):$", re.MULTILINE)

_ABOUT: Final = {
    "install.md": "Extras, requirements, and three servers to try.",
    "guarantees.md": "Each promise, its conditions, and what happens in each kind of failure.",
    "asyncio.md": "Everything exists twice with the same names: for threads and for asyncio.",
    "howto/long-jobs.md": "Keep a lock through a long job, limit it, and stop the job when the lock is lost.",
    "howto/hand-over.md": "Acquire in one thread or task, release in another.",
    "howto/fork.md": "Clients in forked processes, and where to make them under gunicorn and the like.",
    "howto/leader-election.md": "One of several processes leads; another takes over when it fails.",
    "cookbook/apscheduler.md": "Of several machines with the same schedule, one runs each firing of a job.",
    "cookbook/django.md": "Management commands that run on one machine, views that lock, cache entries computed once.",
    "cookbook/celery.md": "Tasks that at most one worker runs at a time for the same arguments.",
    "cookbook/fastapi.md": "Locks and limits as dependencies, with the right status codes.",
    "cookbook/flask.md": "Locks and limits as decorators of views, with the right status codes.",
    "cookbook/pytest.md": "Tests that need the same printer, account or database run one at a time.",
    "cookbook/cron.md": "A job in the crontab of several machines runs on one of them.",
    "cookbook/cache.md": "Consistent reads and no stampedes, by a read-write lock.",
    "cookbook/dogpile.md": "Mutexes for dogpile.cache that all processes share.",
    "operate/managed.md": "Which managed services can be nodes, in which form, and what their limits mean.",
    "operate/sizing.md": "How many nodes, which leases and timeouts, and what memory and connections cost.",
    "cli/index.md": "All commands, how to name the nodes, and each exit status.",
    "cli/lock.md": "Runs a command under a lock, and ends it before the lock is lost: for shell scripts and cron.",
    "cli/inspect.md": "Show what the nodes keep, examine them, break a claim, export metrics.",
    "reference/index.md": "Conventions, and where each public class is described.",
    "reference/client.md": "`Client`, `AsyncClient`, their options, and what they return.",
    "reference/locks.md": "Every class of locks: all calls, for threads and for asyncio.",
    "reference/holds.md": "`Hold` and `MultiHold`: one acquisition.",
    "reference/semaphores.md": "`Semaphore`, `Permit`, `RateLimiter`, `CountDownLatch`.",
    "reference/exceptions.md": "Every exception, its attributes and its bases.",
    "reference/testing.md": "`LocalNodes`, `FaultProxy`, `Simulation` and the pytest fixtures.",
    "reference/frameworks.md": "`redsync.metrics` and `redsync.contrib`.",
    "benchmarks.md": "The cost of redsync next to bare sockets and other libraries, and how to measure it.",
    "testing.md": "Nodes, faults and a simulator for tests of your code.",
    "architecture.md": "The layers, what each may import, and why.",
    "internals.md": "How each mechanism works, and why.",
}
"""Summaries of pages whose first sentence is none."""


def index() -> str:
    """Return the list of pages for language models."""
    lines = [
        "# redsync",
        "",
        "> Distributed locks and other synchronizers over independent Redis masters, for Python: threads and asyncio.",
        "",
        "Install it from a checkout (there is no release yet), import `redsync`.",
        "`with Client(urls).get_lock(name) as hold:` is the common case.",
        "",
        "## Begin here",
        "",
    ]
    for title, page, section in _NAV.findall(
        (ROOT / "mkdocs.yml").read_text().partition("\nnav:\n")[2].partition("\n\n")[0]
    ):
        if section:
            lines += ["", f"## {section}", ""]
        elif page != "changelog.md":
            lines.append(f"- [{title}]({page.removesuffix('.md')}.html): {_about(page)}")
    return "\n".join(lines) + "\n"


def _about(page: str) -> str:
    """Return the first sentence of a page without links, or its subject from `_ABOUT`."""
    if page in _ABOUT:
        return _ABOUT[page]
    text = (ROOT / "docs" / page).read_text()
    blocks = [block for block in text.split("\n\n") if not block.startswith(("#", "!", "<", "`", "-", "|", "```", ">"))]
    first = re.split(r"(?<=[.?!:]) (?=[A-Z`])", " ".join(blocks[0].split()))[0]
    return re.sub(r"\[([^]]*)\]\([^)]*\)", r"\1", first)


def main() -> int:
    """Write or check the file; return the exit status."""
    file = ROOT / "docs" / "llms.txt"
    if "--check" not in sys.argv[1:]:
        file.write_text(index())
    elif file.read_text() != index():
        print("docs/llms.txt is stale: run `make docs`")  # noqa: T201
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
