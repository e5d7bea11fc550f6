"""Fail the build of the documentation if a page would load anything from another site.

Pages are also read from files, and behind firewalls. mkdocs calls `on_post_page`; see `hooks` in mkdocs.yml.
"""

from __future__ import annotations

import re
from typing import Any, Final

_FETCHED: Final = re.compile(
    r"""<(?:script|img|iframe|source|link(?=[^>]*\brel="?(?:stylesheet|icon|preload|preconnect)))\b
        [^>]*\b(?:src|href)="?((?:https?:)?//[^\s">]+)""",
    re.VERBOSE,
)


def on_post_page(output: str, *, page: Any, **_: Any) -> str:
    """Return the page unchanged.

    Raises:
        RuntimeError: It loads something from another site.
    """
    if found := foreign(output):
        raise RuntimeError(f"{page.file.src_uri} fetches {', '.join(found)}: keep a copy in docs/")
    return output


def foreign(html: str) -> list[str]:
    """Return the URLs of other sites that a page would load."""
    return _FETCHED.findall(html)
