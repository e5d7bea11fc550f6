"""Mark what CSS can't select by itself, for better line breaks: words in inline code, and long cells of tables.

Browsers break lines after each hyphen, also in `--max-hold`. On a phone, a cell of long text needs a fixed width,
a short one does not, and a long name may break after an underscore. mkdocs calls `on_page_content`; see `hooks` in
mkdocs.yml, and docs/stylesheets/wide.css.
"""

from __future__ import annotations

import re
from html import unescape
from typing import Any, Final

_INLINE: Final = re.compile(r"(?<!<span></span>)<code>([^<]*)</code>")  # a block's code follows an empty span
_WORD: Final = re.compile(r"(?<!\S)(?=\S*-)\S{2,25}(?!\S)")
_NAME: Final = re.compile(r"\w{19,}")
_CELL: Final = re.compile(r"<(t[dh])((?: style=\"[^\"]*\")?)>(.*?)</\1>", re.DOTALL)
_TAG: Final = re.compile(r"<[^>]*>")
_LONG: Final = 20
"""The length of a cell's text in characters from which it is long."""


def on_page_content(html: str, **_: Any) -> str:
    """Return the page's content with these classes: `unbroken` for words with hyphens, `long` for cells."""
    return _CELL.sub(_cell, _INLINE.sub(_code, html))


def _code(code: re.Match[str]) -> str:
    words = _WORD.sub(r'<span class="unbroken">\g<0></span>', code[1])
    words = _NAME.sub(lambda name: name[0].replace("_", "_<wbr>"), words)
    return f"<code>{words}</code>"


def _cell(cell: re.Match[str]) -> str:
    name, style, content = cell.groups()
    text = " ".join(unescape(_TAG.sub("", content)).split())
    return f'<{name} class="long"{style}>{content}</{name}>' if len(text) > _LONG else cell[0]
