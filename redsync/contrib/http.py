"""Messages and rate limit header fields that the modules for web frameworks share.

draft-ietf-httpapi-ratelimit-headers-10 defines `RateLimit-Policy`, the quota, and `RateLimit`, the rest of the quota
and the time until there is more. RFC 9110 defines `Retry-After`. All times are whole seconds, rounded up.
"""

from __future__ import annotations

import math
from typing import Final

__all__ = ["BUSY", "LIMITED", "UNAVAILABLE", "Policy"]

BUSY: Final = "the resource is locked"
UNAVAILABLE: Final = "the lock service is unavailable"
LIMITED: Final = "too many requests"


class Policy:
    """A rate limit in header fields.

    Attributes:
        rate: The number of requests allowed in `per` seconds.
        per: The window in seconds.
        fields: `RateLimit-Policy`, for every reply.
    """

    def __init__(self, name: str, rate: int, per: float) -> None:
        """Describe a limiter; `name` identifies the policy, so pass the template, not a filled-in name."""
        self.rate: Final = rate
        self.per: Final = per
        printable = "".join(letter if " " <= letter <= "~" else "?" for letter in name)
        escaped = printable.replace("\\", "\\\\").replace('"', '\\"')
        self._name: Final = f'"{escaped}"'
        self.fields: Final = {"RateLimit-Policy": f"{self._name};q={rate};w={math.ceil(per)}"}

    def refusal(self, retry_after: float) -> dict[str, str]:
        """Return all fields of the reply to a refused request."""
        seconds = max(math.ceil(retry_after), 1)
        return {**self.fields, "RateLimit": f"{self._name};r=0;t={seconds}", "Retry-After": str(seconds)}
