"""Say what the site's search ranks higher, and lower, when mkdocs builds the pages.

Answers come before details: the page of questions first, the reference and what only developers of redsync need last.
A tag is a word that users search for and the page does not say. mkdocs calls `on_page_markdown`; see `hooks` in
mkdocs.yml, and docs/javascripts/search-words.js.
"""

from __future__ import annotations

from typing import Any, Final

EXCLUDED: Final = ("changelog.md",)
BOOSTS: Final = {
    "questions.md": 3.0,
    "reference/": 0.5,
    "architecture.md": 0.2,
    "internals.md": 0.2,
    "benchmarks.md": 0.3,
    "testing.md": 0.3,
    "guarantees.md": 0.7,
    "glossary.md": 0.7,
    "operate/dashboard.md": 0.7,
}
"""By page, or by folder; 1 for all others."""

TAGS: Final = {
    "cli/lock.md": ["bash", "flock", "shell script"],
    "compare/migrating.md": ["Java", "Go", "switch"],
    "cookbook/cron.md": ["scheduler", "systemd"],
    "howto/fork.md": ["multiprocessing", "uWSGI"],
    "howto/leader-election.md": ["Kubernetes", "singleton"],
    "locks/fenced.md": ["Kleppmann"],
    "operate/managed.md": ["AWS", "Azure", "Google Cloud", "ElastiCache", "Memorystore", "Upstash"],
    "rate-limiting.md": ["throttle", "quota"],
    "semaphores.md": ["concurrency"],
}


def on_page_markdown(markdown: str, *, page: Any, **_: Any) -> str:
    """Return the page unchanged; set what the plugin `search` reads from its metadata."""
    path = page.file.src_uri
    search = page.meta.setdefault("search", {})
    if path in EXCLUDED:
        search["exclude"] = True
    for start, boost in BOOSTS.items():
        if path.startswith(start):
            search["boost"] = boost
    if path in TAGS:
        page.meta["tags"] = TAGS[path]
    return markdown
