"""Names of synchronizers that are made of what a framework has: a request, a call's arguments, a cache's key."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from string import Formatter
from typing import Any, Final

__all__ = ["LONGEST", "NameTemplate", "shortened"]

LONGEST: Final = 256
"""How many bytes of a text may be part of a name, which has 512 at most."""


def shortened(text: str) -> str:
    """Return a text, or its hash if it is too long for a name."""
    encoded = text.encode()
    return text if len(encoded) <= LONGEST else hashlib.sha256(encoded).hexdigest()


class NameTemplate:
    """A synchronizer's name with fields such as `{number}`, which a request or a call fills in."""

    def __init__(self, text: str) -> None:
        """Check it.

        Raises:
            TypeError: `text` is no string.
            ValueError: `text` is empty, or a field of it has no name.
        """
        if not isinstance(text, str):
            raise TypeError(f"a name is a string such as 'order:{{number}}', not {text!r}")
        try:
            fields = [field for _, field, _, _ in Formatter().parse(text) if field is not None]
        except ValueError as error:
            raise ValueError(f"the name {text!r} is no template: {error}") from None
        if not text or not all(field.isidentifier() for field in fields):
            raise ValueError(f"a name is some text, with fields such as '{{number}}', not {text!r}")
        self.text: Final = text
        self.fields: Final = frozenset(fields)

    def fill(self, values: Mapping[str, Any]) -> str:
        """Return the name.

        Raises:
            LookupError: A field has no value.
        """
        if missing := sorted(self.fields - values.keys()):
            known = ", ".join(sorted(values)) or "nothing"
            raise LookupError(f"the name {self.text!r} needs {', '.join(missing)}, but there is {known}")
        return self.text.format_map(values)
