"""Never early: no call reports a latch open too early, and all reports are true.

Programs report what they do (`Machine.tell` with "asks", and with the outcome: see the journal of the fault harness).
All instants are in true time, over all machines, whatever the faults:

* when a waiter that has looked once learns that the latch is open, enough *distinct* count-downs of the setting that it
  found had begun, unless that setting was deleted, or opened and replaced. A loss of memory is no excuse, because the
  waiter sends its knowledge to the nodes. A waiter that has not looked before is judged by all settings that it may
  find (see `latches`);
* the amount left that a program learns lies between the least and the most that can be left, again of a setting that
  may be found;
* what a program learned stays true: a program that looks or waits later never learns that more is left. So a latch that
  was open, or fully counted down, is found to be open;
* once the setter of a latch has learned that it is set, it is set again only if it is open.

Not seen: programs that do not report what they do; which of two settings is found while they replace each other; how
long waiters take to learn of it, which `latch opens` judges.
"""

from __future__ import annotations

from typing import Final

from redsync.testing.simulator.checks.checker import Checker, Simulation
from redsync.testing.simulator.checks.latches import Call, Generation, Latches, PastOfLatch
from redsync.testing.simulator.happenings import Decided, Did, Executed, Faulted, Sent

__all__ = ["LatchNeverEarly"]


class LatchNeverEarly(Checker):
    """Programs learn only the truth about latches."""

    name = "latch never early"
    watches = (Did, Sent, Executed, Decided, Faulted)
    rests_on_clocks = True

    def __init__(self, sim: Simulation) -> None:
        super().__init__(sim)
        self._latches: Final = Latches(sim)

    def see(self, happening: Did | Sent | Executed | Decided | Faulted) -> str | None:
        """Record what happens, and judge what programs learn."""
        if not isinstance(happening, Did):
            setting = self._latches.note(happening)
            return None if setting is None else self._judge_set(setting)
        ended = self._latches.note_did(happening)
        if ended is None:
            return None
        past, call = ended
        match happening.what:
            case "opened":
                false = self._judge_open(past, call)
            case "looked":
                false = self._judge_count(past, call, happening.about["left"])
            case "busy":
                false = self._judge_closed(past, call)
            case "set":
                false = self._judge_set(past)
            case _:
                false = None
        who, name = f"{happening.who} on {happening.machine.name}", happening.about["name"]
        return false and f"{who} {happening.what} {name!r}, but {false}"

    @staticmethod
    def _judge_open(past: PastOfLatch, call: Call) -> str | None:
        found = list(past.possible(call.began))
        if call.awaited is not None:
            awaited = past.generations.get(call.awaited)
            if awaited is None or past.latest is not awaited:
                return None
            found = [awaited]
        if any(generation is None or past.may_be_open(generation) for generation in found):
            return None
        return " and ".join(_what_was_begun(past, generation) for generation in found if generation is not None)

    @staticmethod
    def _judge_count(past: PastOfLatch, call: Call, left: int) -> str | None:
        told = []
        for generation in past.possible(call.began):
            most = 0 if generation is None else max(generation.size - past.least(generation, call.began), 0)
            least = 0 if generation is None else max(generation.size - past.most(generation), 0)
            if least <= left <= most:
                return None
            told.append(f"from {least} to {most} are left of {_what(generation)}")
        return f"learned {left}, and " + ", and ".join(told)

    @staticmethod
    def _judge_closed(past: PastOfLatch, call: Call) -> str | None:
        found = list(past.possible(call.began))
        if any(each is not None and past.least(each, call.began) < each.size for each in found):
            return None
        return f"it was open when it asked at {call.began:.6f}: " + " and ".join(map(_what, found))

    @staticmethod
    def _judge_set(past: PastOfLatch) -> str | None:
        for generation, later in past.replaced():
            return f"{_what_was_begun(past, generation, later.turn)} when {_what(later)} replaced it"
        return None


def _what(generation: Generation | None) -> str:
    return "what was never set" if generation is None else f"{generation.size} of setting {generation.number}"


def _what_was_begun(past: PastOfLatch, generation: Generation, turn: int | None = None) -> str:
    return f"of {_what(generation)} no more than {past.most(generation, turn)} had begun to be counted down"
