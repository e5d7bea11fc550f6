"""Generate two pages from the source: `python tools/card.py`; with `--check`, list the stale ones.

- docs/card.md: every public class, method, option and error on one page, with signatures and sentences of the package.
- docs/llms.txt: the pages of the documentation and their subjects, as https://llmstxt.org proposes.
"""

from __future__ import annotations

import inspect
import re
import sys
from collections.abc import Iterator
from enum import Enum
from pathlib import Path
from typing import Any, Final

ROOT: Final = Path(__file__).parents[1]
sys.path.insert(0, str(ROOT))

import redsync  # noqa: E402  (the package of this checkout)

_NAV: Final = re.compile(r"^ +- \"?([^\"\n]+?)\"?: (\S+\.md)$|^  - ([^:\n]+):$", re.MULTILINE)

_NAME: Final = re.compile(r"The \w+'s name(?:, as given)?\.")
"""The description of an attribute `name`, which all objects with a name have; described once."""

_HOLDING: Final = ("timeout", "lease", "max_hold", "on_lost")
"""Options that most synchronizers share; described once."""

_KINDS: Final = tuple("".join(word.capitalize() for word in row[0].split("_")) for row in redsync._KINDS)

_ORDER: Final = ("Client", *_KINDS, "ReadLock", "WriteLock", "Permit", "Hold", "MultiHold")
"""Classes in the order in which readers meet them; the others follow by name."""

_LIKE: Final = {"MultiLock": "Lock", "Permit": "Hold", "MultiHold": "Hold"}
"""Classes that have what another class has; only their other members are listed."""

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
    "reference.md": "Every public class and function with its whole docstring.",
    "benchmarks.md": "The cost of redsync next to bare sockets and other libraries, and how to measure it.",
    "testing.md": "Nodes, faults and a simulator for tests of your code.",
    "architecture.md": "The layers, what each may import, and why.",
    "internals.md": "How each mechanism works, and why.",
}
"""Summaries of pages whose first sentence is none."""


def card() -> str:
    """Return the page with the whole public API."""
    named = {name: getattr(redsync, name) for name in redsync.__all__}
    errors = {name: value for name, value in named.items() if issubclass(value, Exception)}
    plain = {name: value for name, value in named.items() if not name.startswith("Async") and name not in errors}
    lines = [
        "# Quick reference",
        "",
        "Every class, method, option and error of `redsync` on one page; [API](reference.md) has more text, and types.",
        "For asyncio, put `Async` before the name of a class, and `await` before methods marked *await*.",
        "Synchronizers, holds, `LockInfo`, `HoldLost` and `HoldOrphaned` have a `name`.",
        "",
        "## Options of a client",
        "",
        *_options(redsync.Client),
        "",
    ]
    lines += ["## Options of locks and semaphores", "", "Below, `**options` stands for these four.", ""]
    told = _told(redsync.Client.get_lock, "Args")
    lines += [f"- `{name}`: {told[name]}" for name in _HOLDING]
    for names, members in _alike(plain, named).items():
        lines += ["", f"## {', '.join(names)}", ""]
        lines += [
            _sentence(plain[name]) if len(names) == 1 else f"- `{name}`: {_sentence(plain[name])}" for name in names
        ]
        lines += ["", *(["All of them have:", ""] if len(names) > 1 else []), *members]
    lines += [""]
    lines += ["## Errors", "", *_errors(errors), ""]
    return re.sub(r"\n{3,}", "\n\n", "\n".join(lines))


def _alike(plain: dict[str, type], named: dict[str, type]) -> dict[tuple[str, ...], tuple[str, ...]]:
    """Return the members of each group of classes that have the same members."""
    members: dict[tuple[str, ...], list[str]] = {}
    for name in sorted(plain, key=lambda name: (_ORDER.index(name) if name in _ORDER else len(_ORDER), name)):
        own = tuple(_members(plain[name], named.get(f"Async{name}")))
        if name in _LIKE:
            like = {_name(line) for line in _members(plain[_LIKE[name]], None)}
            own = (f"It has what `{_LIKE[name]}` has.", "", *(line for line in own if _name(line) not in like))
        members.setdefault(own, []).append(name)
    return {tuple(names): told for told, names in members.items()}


def _name(line: str) -> str:
    """Return the name of the member that a line describes."""
    return re.split(r"\W", line[3:])[0]


def _sentence(value: Any) -> str:
    """Return the first sentence of a docstring, in one line."""
    text = " ".join((inspect.getdoc(value) or "").split("\n\n")[0].split())
    return re.split(r"(?<=[.!?]) (?=[A-Z`])", text)[0]


def _options(client: type) -> Iterator[str]:
    """Yield each argument of a client with its default and its description."""
    told = _told(client, "Args")
    for parameter in inspect.signature(client).parameters.values():
        yield f"- `{_parameter(parameter)}`: {told[parameter.name]}"


def _told(value: Any, section: str) -> dict[str, str]:
    """Return the first sentence about each item of a docstring's section."""
    block = re.search(rf"^{section}:\n(.*?)(?=^\S|\Z)", inspect.getdoc(value) or "", re.MULTILINE | re.DOTALL)
    items = re.findall(r"^    (\w+): (.*?)(?=^    \w+: |\Z)", block[1] if block else "", re.MULTILINE | re.DOTALL)
    return {name: re.split(r"(?<=[.]) (?=[A-Z`])", " ".join(said.split()))[0] for name, said in items}


def _members(value: type, twin: type | None) -> Iterator[str]:
    public = dict(_public(value))
    for name, said in _told(value, "Attributes").items():
        if name not in public or not callable(public[name]):
            if not _NAME.fullmatch(said):
                yield f"- `{name}`: {said}"
            public.pop(name, None)
    if issubclass(value, Enum):
        yield from (f"- `{name}`" for name in value.__members__)
        return
    for name, member in public.items():
        if isinstance(member, classmethod) and value is not redsync.Client:  # creates objects from replies
            continue
        if isinstance(member, property):
            if not _NAME.fullmatch(_sentence(member)):
                yield f"- `{name}`: {_sentence(member)}"
            continue
        function = member.__func__ if isinstance(member, classmethod) else member
        if inspect.isfunction(function):
            awaited = " *await*" if inspect.iscoroutinefunction(getattr(twin, name, None)) else ""
            yield f"- `{name}{_signature(function)}`{awaited}: {_sentence(function)}"


def _public(value: type) -> Iterator[tuple[str, Any]]:
    """Yield the public members of a class, in the order of its bases, each as the class defines or inherits it."""
    names = dict.fromkeys(name for each in reversed(value.__mro__) for name in vars(each) if not name.startswith("_"))
    for name in names:
        home = next(each for each in value.__mro__ if name in vars(each))
        if home.__module__.startswith("redsync") and name != "runner":  # not for applications
            yield name, vars(home)[name]


def _signature(function: Any) -> str:
    signature = inspect.signature(function)
    shared = set(_HOLDING) <= signature.parameters.keys()
    words: list[str] = []
    marked = False
    for name, each in signature.parameters.items():
        if name in ("self", "cls") or (shared and name in _HOLDING):
            continue
        if each.kind is each.KEYWORD_ONLY and not marked:
            words.append("*")
        marked = marked or each.kind in (each.KEYWORD_ONLY, each.VAR_POSITIONAL)
        words.append(_parameter(each))
    returned = str(signature.return_annotation).replace("redsync.", "")
    arrow = "" if returned == "None" else f" -> {returned}"
    return f"({', '.join([*words, *(['**options'] if shared else [])])}){arrow}"


def _parameter(parameter: inspect.Parameter) -> str:
    stars = "*" * (parameter.kind is parameter.VAR_POSITIONAL) + "**" * (parameter.kind is parameter.VAR_KEYWORD)
    default = "" if parameter.default is parameter.empty else f"={parameter.default!r}"
    return f"{stars}{parameter.name}{default}"


def _errors(errors: dict[str, type]) -> Iterator[str]:
    for name, error in sorted(errors.items(), key=lambda item: (len(item[1].__mro__), item[0])):
        public = [base for each in error.__bases__ for base in (each.__bases__ if each.__name__[0] == "_" else (each,))]
        bases = ", ".join(f"`{base.__name__}`" for base in public)
        yield f"- `{name}` ({bases}): {_sentence(error)}"
        yield from (f"    - `{attribute}`: {said}" for attribute, said in _told(error, "Attributes").items())


def index() -> str:
    """Return the list of pages for language models."""
    lines = [
        "# redsync",
        "",
        "> Distributed locks and other synchronizers over independent Redis masters, for Python: threads and asyncio.",
        "",
        "Install `redsync-toolkit`, import `redsync`. `with Client(urls).get_lock(name) as hold:` is the common case.",
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
    text = (ROOT / "docs" / page).read_text() if page != "card.md" else card()
    blocks = [block for block in text.split("\n\n") if not block.startswith(("#", "!", "<", "`", "-", "|", "```", ">"))]
    first = re.split(r"(?<=[.?!:]) (?=[A-Z`])", " ".join(blocks[0].split()))[0]
    return re.sub(r"\[([^]]*)\]\([^)]*\)", r"\1", first)


def main() -> int:
    """Write or check the files; return the exit status."""
    old = []
    for name, text in (("card.md", card()), ("llms.txt", index())):
        file = ROOT / "docs" / name
        if "--check" not in sys.argv[1:]:
            file.write_text(text)
        elif not file.exists() or file.read_text() != text:
            old.append(name)
    if old:
        print(f"stale, run `make docs`: {', '.join(old)}")  # noqa: T201
    return int(bool(old))


if __name__ == "__main__":
    sys.exit(main())
