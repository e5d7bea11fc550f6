"""Make the long description for package indexes from README.md, when hatchling builds a distribution.

The project has no address on the web, so an index could not follow README's relative links. The description names the
files instead, which the source distribution contains, and omits pictures. See `hooks` in pyproject.toml.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any, Final

from hatchling.metadata.plugin.interface import MetadataHookInterface

_PICTURE: Final = re.compile(r"^!\[[^\]]*\]\((?!https?:).*?\n\n", re.MULTILINE | re.DOTALL)
_LINK: Final = re.compile(r"\[([^\]]*)\]\((?!https?:)([^)#]+)(?:#[^)]*)?\)")


class LongDescription(MetadataHookInterface):
    """Sets `readme` of the project's metadata."""

    def update(self, metadata: dict[str, Any]) -> None:
        """Add the description."""
        text = (Path(self.root) / "README.md").read_text(encoding="utf-8")
        metadata["readme"] = {"content-type": "text/markdown", "text": without_relative_links(text)}


def without_relative_links(text: str) -> str:
    """Return a Markdown text without paragraphs that begin with a picture, and with paths instead of relative links."""
    return _LINK.sub(r"\1 (`\2`)", _PICTURE.sub("", text))
