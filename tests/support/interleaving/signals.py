"""A signal in the middle of what a thread does on a transport: at each point where one can come, one after another."""

from contextlib import suppress

from redsync._drivers.interruptions import INTERRUPTED
from redsync._drivers.requests import Sleeper
from tests.support.interleaving.rig import Rig
from tests.support.interleaving.scenarios import EVERYBODY, judge_owed, send, start
from tests.support.interleaving.world import Boom

__all__ = ["Strikes"]


class Strikes:
    """A signal comes at one point of thread `a`: at its first one, in all schedules, then at its second one, and so on.

    Attributes:
        struck: In how many schedules it came.
        points: What the thread was about to do then.
    """

    def __init__(self):
        self.at = 1
        self.struck = 0
        self.points = set()

    def explore(self, scenario, search):
        """Search through a scenario for each point, as long as there is one."""
        schedules = 0
        while True:
            before = self.struck
            schedules += search(scenario).schedules
            if self.struck == before:
                return schedules
            self.at += 1

    def _set(self, thread, strike):
        thread.strike, thread.strike_at = strike, self.at

    def _note(self, thread):
        if thread.struck is not None:
            self.struck += 1
            self.points.add(thread.struck)

    def interrupting(self, nodes=1, others="b"):
        """What the handler raises is thrown at thread `a`, which undoes what it may have made."""

        return self._throwing(self._claim, nodes, others)

    @staticmethod
    def _claim(rig):
        owner = rig.owner()
        try:
            rig.broadcast(owner, b"a0")
        except Boom:
            rig.given_up.add(b"a0")
        # Sent to the end, even if the signal comes only now.
        with suppress(Boom):
            rig.tell(owner, b"a1", owed_to=EVERYBODY)

    def interrupting_the_last(self, nodes=1, others="b"):
        """The same while it sends what it sends last, perhaps with what others have sent."""

        def release(rig):
            with suppress(Boom):
                rig.tell(rig.owner(), b"a1", owed_to=EVERYBODY)

        return self._throwing(release, nodes, others)

    def handling_and_interrupting(self, nodes=1, others="b"):
        """The handler calls the client itself, if the thread sleeps, and raises then."""
        return self._throwing(self._claim, nodes, others, calls=True)

    def _throwing(self, program, nodes, others, *, calls=False):
        def scenario(world):
            rig = Rig(world, nodes)
            world.patient = calls

            def strike():
                if calls and isinstance(rig.doing.what, Sleeper):
                    with rig.doing.aside():
                        send(rig, [b"h0"])
                raise Boom

            def other(letter):
                owner = rig.owner()
                tally = rig.broadcast(owner, letter + b"0")
                # Why a node had no vote whose connection was given up: of the interruption, or for it has no other.
                reasons = {letter + b"0", "not connected yet", *INTERRUPTED}
                assert set(tally.replies) <= reasons, f"{letter}0 got {tally.replies}"
                rig.tell(owner, letter + b"1", owed_to=EVERYBODY)

            thread = rig.thread("a", program, rig)
            for letter in others:
                rig.thread(letter, other, letter.encode())
            self._set(thread, strike)

            def judge():
                self._note(thread)
                assert world.now <= 1.0, f"they waited for {world.now:g} s"
                judge_owed(rig, [letter.encode() for letter in "a" + others])

            return judge

        return scenario

    def handling(self, nodes=1, others="b"):
        """The handler calls the client itself, if the thread sleeps."""

        def scenario(world):
            rig = Rig(world, nodes)
            # The leader whose thread does something else may be asleep in its poll for a second more.
            world.patient = True

            def handle():
                if isinstance(rig.doing.what, Sleeper):
                    with rig.doing.aside():
                        send(rig, [b"h0"])

            whats = start(rig, *(f"{letter}0" for letter in "a" + others))
            thread = world.threads[0]
            self._set(thread, handle)

            def judge():
                self._note(thread)
                assert world.now <= 1.0, f"they waited for {world.now:g} s"
                rig.judge()
                rig.judge_executed(*whats, *([b"h0"] if b"h0" in rig.requests else []))

            return judge

        return scenario
