"""What modules of web frameworks share: names out of a request, and the header fields of a rate limiter.

The fields are those of draft-ietf-httpapi-ratelimit-headers-10: `RateLimit-Policy` says how much is allowed,
`RateLimit` what is left of it and when there is more. `Retry-After` is of RFC 9110. All count in whole seconds, rounded
up.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from string import Formatter
from typing import Any, Final

__all__ = ["BUSY", "LIMITED", "UNAVAILABLE", "NameTemplate", "Policy"]

BUSY: Final = "somebody else is at it"
UNAVAILABLE: Final = "the lock service is out of reach"
LIMITED: Final = "too many requests"


class NameTemplate:
    """A synchronizer's name with fields such as `{number}`, which a request fills in."""

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
            raise LookupError(f"the name {self.text!r} needs {', '.join(missing)}, but the request has {known}")
        return self.text.format_map(values)


class Policy:
    """A rate limit as header fields tell it.

    Attributes:
        rate: How many are allowed.
        per: In how many seconds.
        fields: `RateLimit-Policy`, for every reply.
    """

    def __init__(self, name: str, rate: int, per: float) -> None:
        """Take what the limiter takes; `name` tells policies apart, so it is the template."""
        self.rate: Final = rate
        self.per: Final = per
        printable = "".join(letter if " " <= letter <= "~" else "?" for letter in name)
        escaped = printable.replace("\\", "\\\\").replace('"', '\\"')
        self._name: Final = f'"{escaped}"'
        self.fields: Final = {"RateLimit-Policy": f"{self._name};q={rate};w={math.ceil(per)}"}

    def refusal(self, retry_after: float) -> dict[str, str]:
        """Return all fields of a reply to a request that was refused."""
        seconds = max(math.ceil(retry_after), 1)
        return {**self.fields, "RateLimit": f"{self._name};r=0;t={seconds}", "Retry-After": str(seconds)}
