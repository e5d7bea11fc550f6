"""Show the calls of each class in a table in the API reference, when mkdocs builds the pages.

Below the heading of each class that exists in both flavours it adds a table: each call, marked if asyncio awaits it,
and its effect. Calls of asyncio are described only where they differ. A class that has the calls of another one refers
to it. A class that has a section gets no second heading, and the table of contents lists classes but not their methods.
mkdocs calls the functions `on_...`; see `hooks` in mkdocs.yml.
"""

from __future__ import annotations

import inspect
import re
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

ROOT: Final = Path(__file__).parents[1]
sys.path.insert(0, str(ROOT))

import redsync  # noqa: E402  (the package of this checkout)

FOLDER: Final = "reference/"
_ALIKE: Final = ("Lock", "Hold")
"""Classes whose calls others share."""

_SHARED: Final = ("timeout", "lease", "max_hold", "on_lost")
_HEADING: Final = re.compile(r"^## (\w+)\n", re.MULTILINE)
_PRIVATE: Final = re.compile(r'id="(redsync\.[\w.]*\b_[A-Za-z]\w*)"')
_SECOND_HEADING: Final = re.compile(r'>\s*<h3 id="(redsync\.([A-Z]\w+))" class="doc doc-heading">.*?</h3>', re.DOTALL)


def on_page_markdown(markdown: str, *, page: Any, **_: Any) -> str:
    """Return a page of the reference with its tables, and all other pages unchanged."""
    return with_tables(markdown) if page.file.src_uri.startswith(FOLDER) else markdown


def on_page_content(html: str, *, page: Any, **_: Any) -> str:
    """Return a page of the reference without second headings, and all other pages unchanged.

    Raises:
        ValueError: It would show something private: options of mkdocstrings do not mean what they seem to.
    """
    if not page.file.src_uri.startswith(FOLDER):
        return html
    if shown := _PRIVATE.findall(html):
        raise ValueError(f"{page.file.src_uri} shows private members, such as {shown[0]}")
    return without_second_headings(html)


def on_page_context(context: dict[str, Any], *, page: Any, **_: Any) -> dict[str, Any]:
    """Drop methods from the reference's table of contents; the search has indexed them before."""
    if page.file.src_uri.startswith(FOLDER):
        for section in page.toc.items[0].children:
            section.children = [each for each in section.children if each.title != section.title]
            for each in section.children:
                each.children = []
    return context


def without_second_headings(html: str) -> str:
    """Return the page without the heading of each class that has a section; its anchor stays."""

    def anchor(heading: re.Match[str]) -> str:
        return f' id="{heading[1]}">' if f'<h2 id="{heading[2].lower()}">' in html else heading[0]

    return _SECOND_HEADING.sub(anchor, html)


def with_tables(markdown: str) -> str:
    """Return the page with a table below the heading of each class that also exists for asyncio."""
    return _HEADING.sub(lambda heading: heading[0] + "\n".join(["", *_table(heading[1])]), markdown)


def _table(name: str) -> Iterator[str]:
    plain, twin = getattr(redsync, name, None), getattr(redsync, f"Async{name}", None)
    if plain is None or twin is None:
        return
    methods = list(_methods(plain))
    if (like := _like(plain, methods)) is not None:
        yield from (f"All calls are those of [`{like}`][redsync.{like}].", "")
        return
    rows = [f"| {_call(plain, twin, each)} | {_effect(plain, each)} |" for each in methods]
    if hasattr(plain, "__enter__"):
        rows.insert(0, f"| `with {_variable(name)}:` *async* | |")
    if rows:
        yield from (f"| `{name}`, `Async{name}` | |", "|---|---|", *rows, "")


def _like(value: type, methods: list[str]) -> str | None:
    """Return the class that defines all these methods, if it is another one."""
    for name in _ALIKE:
        other = getattr(redsync, name)
        same = (inspect.getattr_static(value, each) is inspect.getattr_static(other, each, None) for each in methods)
        if value is not other and methods and all(same):
            return name
    return None


def _variable(name: str) -> str:
    return re.sub(r"(?<=[a-z])(?=[A-Z])", "_", name).lower().rpartition("_")[2]


def _methods(value: type) -> Iterator[str]:
    """Yield the public methods of a class, before those of its bases."""
    home = [each for each in value.__mro__ if each.__module__.startswith("redsync")]
    names = dict.fromkeys(name for each in home for name in vars(each) if not name.startswith("_"))
    for name in names:
        found = inspect.getattr_static(value, name)
        if inspect.isfunction(found) or isinstance(found, classmethod):
            yield name


def _call(plain: type, twin: type, name: str) -> str:
    """Return how a method is called, with a mark if asyncio awaits it."""
    method, other = getattr(plain, name), getattr(twin, name)
    assert _arguments(method) == _arguments(other), f"the twins of {plain.__name__}.{name} differ"
    awaited = " *await*" if inspect.iscoroutinefunction(other) else ""
    return f"[`{name}({_arguments(method)})`][redsync.{plain.__name__}.{name}]{awaited}"


def _effect(value: type, name: str) -> str:
    """Return the first sentence of a method's docstring."""
    text = " ".join((inspect.getdoc(getattr(value, name)) or "").split("\n\n")[0].split())
    return re.split(r"(?<=[.!?]) (?=[A-Z`])", text)[0].replace("|", r"\|")


def _arguments(method: Any) -> str:
    """Return the arguments of a method with defaults, without types; `**options` stands for the shared options."""
    words: list[str] = []
    parameters = inspect.signature(method).parameters
    shared = set(_SHARED) <= parameters.keys()
    for parameter in parameters.values():
        if parameter.name == "self" or (shared and parameter.name in _SHARED):
            continue
        if parameter.kind is parameter.KEYWORD_ONLY and not any(word.startswith("*") for word in words):
            words.append("*")
        stars = "*" * (parameter.kind is parameter.VAR_POSITIONAL) + "**" * (parameter.kind is parameter.VAR_KEYWORD)
        default = "" if parameter.default is parameter.empty else f"={parameter.default!r}"
        words.append(f"{stars}{parameter.name}{default}")
    return ", ".join([*words, *["**options"] * shared])
