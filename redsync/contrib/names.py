"""Names of synchronizers built from a framework's data: a request, a call's arguments, a cache's key."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from string import Formatter
from typing import Any, Final

__all__ = ["LONGEST", "NameTemplate", "shortened"]

LONGEST: Final = 256
"""The longest text, in bytes, that becomes part of a name."""

_LONGEST_NAME: Final = 512


def shortened(text: str, most: int = LONGEST) -> str:
    """Return the text, or its hash if it has more bytes."""
    encoded = text.encode("utf-8", "surrogatepass")
    return text if len(encoded) <= most else hashlib.sha256(encoded).hexdigest()


class NameTemplate:
    """A synchronizer's name with fields such as `{number}`, filled in from a request or a call."""

    def __init__(self, text: str) -> None:
        """Check the template.

        Raises:
            TypeError: `text` is not a string.
            ValueError: `text` is empty, or a field has no valid name.
        """
        if not isinstance(text, str):
            raise TypeError(f"a name must be a string such as 'order:{{number}}', not {text!r}")
        try:
            fields = [field for _, field, _, _ in Formatter().parse(text) if field is not None]
        except ValueError as error:
            raise ValueError(f"the name {text!r} is not a valid template: {error}") from None
        if not text or not all(field.isidentifier() for field in fields):
            raise ValueError(f"a name must be text, with fields such as '{{number}}' if any, not {text!r}")
        self.text: Final = text
        self.fields: Final = frozenset(fields)

    def fill(self, values: Mapping[str, Any]) -> str:
        """Return the name, or its hash if it is too long: requests and calls choose its values.

        Raises:
            LookupError: A field has no value.
        """
        if missing := sorted(self.fields - values.keys()):
            known = ", ".join(sorted(values)) or "nothing"
            raise LookupError(f"the name {self.text!r} needs {', '.join(missing)}, but there is only {known}")
        return shortened(self.text.format_map(values), _LONGEST_NAME)
