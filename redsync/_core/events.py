"""Events for a client's listeners: frozen values, safe to keep and to hand to other threads."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple, TypeAlias

if TYPE_CHECKING:
    from redsync._core.holds import HoldState

__all__ = ["Event", "HoldLost", "HoldOrphaned", "NodeChanged"]


class HoldLost(NamedTuple):
    """A hold ended before its owner released it.

    Attributes:
        name: The synchronizer's name.
        owner: The former holder, as `Hold.owner` names it.
        reason: The cause, as a sentence.
        state: The hold itself.
    """

    name: str | bytes
    owner: str
    reason: str
    state: HoldState


class HoldOrphaned(NamedTuple):
    """The watchdog released a hold whose owner had ended without a release: a thread, a task or a dropped object.

    Attributes:
        name: The synchronizer's name.
        owner: The former holder, as `Hold.owner` names it.
    """

    name: str | bytes
    owner: str


class NodeChanged(NamedTuple):
    """A node went up, down, suspect or quarantined.

    Attributes:
        node: The node's address.
        state: "up", "down", "suspect" or "quarantined".
        reason: Why, as a sentence; empty for "up".
    """

    node: str
    state: str
    reason: str


Event: TypeAlias = HoldLost | HoldOrphaned | NodeChanged
