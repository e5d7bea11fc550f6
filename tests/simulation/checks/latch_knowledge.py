"""Latches: what calls on them may report, and that they open."""

import math
from collections.abc import Iterable, Iterator, Sequence
from functools import partial
from typing import Final

from redsync._core.quorum import quorum_of
from redsync.testing.simulator.store import Hash
from redsync.testing.simulator.trace_events import Decided, Did, Executed, Faulted, Sent
from tests.simulation.checks.base import OwnChecker, Trial, loses_memory, who
from tests.simulation.checks.kept import kept_at

EXCHANGE: Final = "latch_exchange"

_ASKED = ("set", "delete", "count down", "look", "wait")

_KEPT_AT_LEAST = 0.98
"""The part of a latch's keeping time for which nodes certainly keep it: clocks drift, and rounds take a moment."""


class Generation:
    """One setting of a latch.

    Attributes:
        number: Its number.
        size: The amount to count down; 0 if it deletes the latch.
        client: The client that sent the first command about it.
        began: The instant that command was sent.
        turn: The number of calls that had begun or ended by then.
        established: The instant since which every program that asks finds it; infinity before that, or if all nodes
            have forgotten it.
        confirmed: The instant its program learned that it has set it; infinity if it did not.
        void: True if it may have been forgotten, and no quorum of nodes has learned of it again since.
        forgotten: All nodes may have forgotten count-downs from before this instant.
    """

    def __init__(self, number: int, size: int, sent: Sent, turn: int) -> None:
        self.number: Final = number
        self.size: Final = size
        self.client: Final = sent.client
        self.began: Final = sent.at
        self.turn: Final = turn
        self.established = self.confirmed = math.inf
        self.void = False
        self.forgotten = -math.inf


class Call:
    """One call of a program.

    Attributes:
        how: The operation: "set", "delete", "count down", "look" or "wait".
        client: Its client's name.
        n: The amount it sets or counts down.
        owner: The waiter, as nodes store it.
        began: The instant it began.
        ended: The instant it ended; infinity before that.
        awaited: The generation that it found when it first looked, 0 if none was set; None before that.
    """

    def __init__(self, did: Did) -> None:
        self.how: Final[str] = did.about["how"]
        self.client: Final[str] = did.about["client"]
        self.n: Final[int] = did.about.get("n", 0)
        self.owner: Final = str(did.about.get("owner", "")).encode()
        self.did: Final = did
        self.began: Final = did.at
        self.ended = math.inf
        self.awaited: int | None = None


def _most_counted(turns: Sequence[tuple[str, Call]], since: int) -> int:
    """Return how much may have been counted down of a setting made after `since` turns; each call counts once.

    Each count-down "begins", and then "succeeds" or "fails", unless it never ends. The client's next call repeats one
    that failed.
    """
    active: dict[Call, None] = {}
    doubts: dict[str, int] = {}
    counted = 0
    for i, (what, call) in enumerate(turns):
        if i == since:
            counted = sum(each.n for each in active)
        if what == "begins":
            active[call] = None
        else:
            del active[call]
        if i >= since:
            doubt = doubts.setdefault(call.client, 0)
            if what == "begins":
                counted += call.n - min(doubt, call.n)
                doubts[call.client] = max(doubt - call.n, 0)
            elif what == "fails":
                doubts[call.client] += call.n
    return counted if len(turns) > since else sum(each.n for each in active)


class PastOfLatch:
    """The history of one latch.

    Attributes:
        generations: Its generations, by number.
        calls: The calls that have not ended, by machine and program.
        nodes: The generation that each node has learned of, 0 for none.
    """

    def __init__(self, quorum: int, nodes: int) -> None:
        self.generations: Final[dict[int, Generation]] = {}
        self.calls: Final[dict[tuple[str, str], Call]] = {}
        self.nodes: Final = [0] * nodes
        self._quorum: Final = quorum
        self._turns: Final[list[tuple[str, Call]]] = []
        self._told: Final[list[tuple[Call, Generation, int]]] = []
        self._forgot: Final = [-math.inf] * nodes
        self._used = math.inf

    @property
    def latest(self) -> Generation | None:
        """The generation with the highest number sent so far."""
        return self.generations[max(self.generations)] if self.generations else None

    # Recording.

    def begin(self, did: Did) -> None:
        """Record a call."""
        call = self.calls[did.machine.name, did.who] = Call(did)
        if call.how == "count down":
            self._turns.append(("begins", call))

    def end(self, did: Did) -> Call | None:
        """Record the outcome of a call; return the call."""
        call = self.calls.pop((did.machine.name, did.who), None)
        if call is not None:
            call.ended = did.at
            if call.how == "count down":
                self._turns.append(("succeeds" if did.what == "counted" else "fails", call))
            if did.what == "set":
                for generation in self.generations.values():
                    if (generation.client, generation.size) == (call.client, call.n) and generation.began >= call.began:
                        generation.confirmed = did.at
                        generation.established = min(generation.established, did.at)
            if did.what in {"opened", "found"}:
                match list(self.possible(call.began)):
                    case [Generation() as found]:
                        self._told.append((call, found, found.size - did.about.get("left", 0)))
        return call

    def tell(self, sent: Sent) -> bool:
        """Record a command; return whether a generation begins with it."""
        number, size = int(sent.args[5]), int(sent.args[6])
        begins = number > 0 and number not in self.generations
        if begins:
            self.generations[number] = Generation(number, size, sent, len(self._turns))
        return begins

    def hear(self, node: int, number: int, now: float) -> None:
        """Record what a node has learned."""
        self.nodes[node] = number
        for generation in self.generations.values():
            if generation.established > now and sum(known >= generation.number for known in self.nodes) >= self._quorum:
                generation.established = now
            generation.void &= self.nodes.count(generation.number) < self._quorum

    def forget(self, node: int, now: float) -> None:
        """Record that a node has lost its memory."""
        self.nodes[node], self._forgot[node] = 0, now
        highest = max((each.number for each in self.generations.values() if each.established <= now), default=0)
        if max(self.nodes) < highest:
            self._void(now)

    def use(self, sent_at: float, keep: float) -> None:
        """Record a round that has succeeded."""
        if sent_at > self._used + keep * _KEPT_AT_LEAST:
            self._void(sent_at)
        self._used = sent_at

    def _void(self, now: float) -> None:
        for generation in self.generations.values():
            generation.established, generation.void, generation.forgotten = math.inf, True, now

    # Answers.

    def possible(self, since: float) -> Iterator[Generation | None]:
        """Return the generations that a call begun at `since` may find; None if it may find that none was set."""
        newest = max((each.number for each in self.generations.values() if each.established <= since), default=0)
        if not newest:
            yield None
        yield from (generation for number, generation in self.generations.items() if number >= newest)

    def most(self, generation: Generation, turn: int | None = None) -> int:
        """Return how much may have been counted down in a generation, by now or by that turn."""
        return _most_counted(self._turns[:turn], generation.turn)

    def least(self, generation: Generation, until: float) -> int:
        """Return how much has certainly been counted down in a generation by an instant."""
        later = min((each.began for each in self.generations.values() if each.number > generation.number), default=1e9)
        known = partial(self._is_known, since=generation.forgotten, until=until)
        succeeded = [call for what, call in self._turns if what == "succeeds" and known(call)]
        counted = sum(call.n for call in succeeded if generation.established <= call.began and call.ended <= later)
        told = [down for call, found, down in self._told if found is generation and known(call)]
        return max(counted, *told, 0)

    def _is_known(self, call: Call, since: float, until: float) -> bool:
        """Return whether nodes have known the outcome of a call from that time ever since."""
        forgot = sum(forgot >= call.began for forgot in self._forgot)
        return since <= call.began and call.ended <= until and forgot < self._quorum

    def may_be_open(self, generation: Generation, turn: int | None = None) -> bool:
        """Return whether enough may have been counted down, by now or by that turn."""
        return self.most(generation, turn) >= generation.size

    def replaced(self) -> Iterable[tuple[Generation, Generation]]:
        """Return each confirmed generation that was replaced although it can't have been open, with its successor."""
        for number, generation in self.generations.items():
            later = [each for each in self.generations.values() if each.number > number]
            if generation.confirmed < math.inf and not generation.void:
                first = min(later, key=lambda each: each.number, default=None)
                if first is not None and first.size and not self.may_be_open(generation, first.turn):
                    yield generation, first


class Latches:
    """The possible answers of a latch, derived from programs' reports and nodes' data.

    It must get all events, in order.

    Each setting is a *generation*. It begins when a client sends the first command that informs a node of it. It is
    *established* once a quorum of nodes has learned of it, or when it is *confirmed*: when the call that set it has
    returned. From then on no program that asks finds an earlier one.

    A client's count-downs in a generation have an upper and a lower bound. Each of its calls counts once, and the
    client's next call repeats one that failed. So *most* counts all that was begun while the generation existed, less
    what was repeated; *least* counts all that has succeeded since the generation was established, and all that a
    program has learned of, unless a majority of nodes forgot.

    When the last node forgets what it has learned of the established generation, or when no round has succeeded for as
    long as nodes keep a latch, the generation is *void*: a client that looks for the first time may then find that the
    latch was never set. A command that was under way for that long may even restore the data of its client, which can
    be less than was known later.
    """

    def __init__(self, sim: Trial) -> None:
        self._sim: Final = sim
        self._rounds: Final[dict[tuple[str, int], Sent]] = {}
        self.pasts: Final[dict[str, PastOfLatch]] = {}

    def past(self, name: str) -> PastOfLatch:
        """Return the history of the latch with that name."""
        if name not in self.pasts:
            nodes = len(self._sim.nodes)
            self.pasts[name] = PastOfLatch(quorum_of(nodes), nodes)
        return self.pasts[name]

    def note(self, event: Sent | Executed | Decided | Faulted) -> PastOfLatch | None:
        """Record all but the programs' actions; return the history of a latch that now gets a new setting."""
        match event:
            case Sent() if event.script == EXCHANGE:
                self._rounds[event.client, event.number] = event
                past = self.past(_name(event))
                return past if past.tell(event) else None
            case Executed() if event.script == EXCHANGE:
                self._note_executed(event)
            case Decided():
                sent = self._rounds.pop((event.client, event.number), None)
                if sent is not None and event.verdict == "won":
                    self._note_won(sent, event)
            case Faulted() if loses_memory(event):
                for node in self._sim.nodes:
                    if node.name == who(event):
                        for past in self.pasts.values():
                            past.forget(node.index, event.at)
            case _:
                pass
        return None

    def note_did(self, did: Did) -> tuple[PastOfLatch, Call] | None:
        """Record a program's action; return the call that has ended, and the history of its latch."""
        if "name" not in did.about:
            return None
        if did.what == "asks":
            if did.about.get("how") in _ASKED and "client" in did.about:
                self.past(did.about["name"]).begin(did)
            return None
        past = self.pasts.get(did.about["name"])
        call = None if past is None else past.end(did)
        return None if past is None or call is None else (past, call)

    def _note_executed(self, executed: Executed) -> None:
        number = kept_at(self._sim.nodes[executed.node], executed.keys[0], Hash).get(b"generation")
        self.past(_name(executed)).hear(executed.node, int(number or 0), executed.at)

    def _note_won(self, sent: Sent, decided: Decided) -> None:
        past = self.past(_name(sent))
        past.use(sent.at, int(sent.args[0]) / 1000)
        for call in past.calls.values():
            if call.awaited is None and call.owner and bytes(sent.args[1]).endswith(b" " + call.owner):
                call.awaited = max(reply[0] for reply in decided.replies if isinstance(reply, list))


def _name(event: Sent | Executed) -> str:
    return event.keys[0].decode(errors="replace").rpartition(":")[2].rstrip("}")


class LatchNeverEarly(OwnChecker):
    """Never early: no call reports a latch open too early, and all reports are true.

    Programs report what they do (`Machine.tell` with "asks", and with the outcome: see the journal of the fault
    harness). All instants are in true time, over all machines, whatever the faults:

    * when a waiter that has looked once learns that the latch is open, enough *distinct* count-downs of the setting
      that it found had begun, unless that setting was deleted, or opened and replaced. A loss of memory is no excuse,
      because the waiter sends its knowledge to the nodes. A waiter that has not looked before is judged by all settings
      that it may find (see `Latches`);
    * the amount left that a program learns lies between the least and the most that can be left, again of a setting
      that may be found;
    * what a program learned stays true: a program that looks later never learns that more is left;
    * once the setter of a latch has learned that it is set, it is set again only if it is open.

    Not seen: programs that do not report what they do; which of two settings is found while they replace each other;
    how long waiters take to learn of it, which `latch opens` judges.
    """

    name = "latch never early"
    watches = (Did, Sent, Executed, Decided, Faulted)
    rests_on_clocks = True

    def __init__(self, sim: Trial) -> None:
        super().__init__(sim)
        self._latches: Final = Latches(sim)

    def see(self, event: Did | Sent | Executed | Decided | Faulted) -> str | None:
        """Record what happens, and judge what programs learn."""
        if not isinstance(event, Did):
            setting = self._latches.note(event)
            return None if setting is None else self._judge_set(setting)
        ended = self._latches.note_did(event)
        if ended is None:
            return None
        past, call = ended
        match event.what:
            case "opened":
                false = self._judge_open(past, call)
            case "found":
                false = self._judge_count(past, call, event.about["left"])
            case "set":
                false = self._judge_set(past)
            case _:
                false = None
        who, name = f"{event.who} on {event.machine.name}", event.about["name"]
        return false and f"{who} {event.what} {name!r}, but {false}"

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
    def _judge_set(past: PastOfLatch) -> str | None:
        for generation, later in past.replaced():
            return f"{_what_was_begun(past, generation, later.turn)} when {_what(later)} replaced it"
        return None


def _what(generation: Generation | None) -> str:
    return "what was never set" if generation is None else f"{generation.size} of setting {generation.number}"


def _what_was_begun(past: PastOfLatch, generation: Generation, turn: int | None = None) -> str:
    return f"of {_what(generation)} no more than {past.most(generation, turn)} had begun to be counted down"


_WOKEN = 0.3
"""Seconds within which a waiter learns of it without faults: less than a waiter sleeps that is not woken."""

_CONNECTED = 5.0
"""Seconds to connect and to look again."""


class LatchOpens(OwnChecker):
    """Latch opens: once a latch is counted down to zero and faults are over, all its waiters learn of it.

    Programs report what they do: see `LatchNeverEarly`. If as many count-downs have succeeded as the latch was set to,
    each waiter on a running machine learns of it within `bound` of the latest of three instants: that one, the
    beginning of its own call, and the end of the last fault (see `fault_free`). The bound is the 1.5 s after which a
    waiter looks again, by a slow clock, and a few rounds; after faults also the time to connect, and to abandon a
    silent connection.

    In a run without any fault nodes wake the waiters, so the bound is `_WOKEN` seconds.

    Not seen: latches whose count-downs a majority of nodes has forgotten; they may open late.
    """

    name = "latch opens"
    watches = (Did, Sent, Executed, Decided, Faulted)
    every = 0.1

    def __init__(self, sim: Trial) -> None:
        super().__init__(sim)
        self._latches: Final = Latches(sim)
        self._faulted = False

    @property
    def bound(self) -> float:
        """Seconds for which a waiter may wait for an open latch."""
        return _CONNECTED + self.silence if self._faulted else _WOKEN

    def see(self, event: Did | Sent | Executed | Decided | Faulted) -> None:
        """Record what happens."""
        self._faulted = self._faulted or isinstance(event, Faulted)
        if isinstance(event, Did):
            self._latches.note_did(event)
        else:
            self._latches.note(event)

    def look(self) -> Iterable[str]:
        """Look for waiters that have not learned of it."""
        since = self.sim.now - self.bound
        if self.sim.fault_free.lasted() <= self.bound:
            return
        for name, past in self._latches.pasts.items():
            generation = past.latest
            if generation is None or generation.established > since or past.least(generation, since) < generation.size:
                continue
            for call in past.calls.values():
                if call.how == "wait" and call.began < since and not call.did.machine.crashed:
                    yield (
                        f"{call.did.who} on {call.did.machine.name} has waited for {name!r} since {call.began:.6f}, "
                        f"and it has been open for more than {self.bound:.3f} s"
                    )
