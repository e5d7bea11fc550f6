"""What modules of web frameworks share: what they say, and the header fields of a rate limiter.

The fields are those of draft-ietf-httpapi-ratelimit-headers-10: `RateLimit-Policy` says how much is allowed,
`RateLimit` what is left of it and when there is more. `Retry-After` is of RFC 9110. All count in whole seconds, rounded
up.
"""

from __future__ import annotations

import math
from typing import Final

__all__ = ["BUSY", "LIMITED", "UNAVAILABLE", "Policy"]

BUSY: Final = "somebody else is at it"
UNAVAILABLE: Final = "the lock service is out of reach"
LIMITED: Final = "too many requests"


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
