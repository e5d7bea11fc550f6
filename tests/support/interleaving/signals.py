"""A signal during a thread's work on a transport: at each point where one can come, one after another."""

from contextlib import suppress

from redsync._drivers.interruptions import INTERRUPTED
from redsync._drivers.requests import Sleeper
from tests.support.interleaving.rig import Rig
from tests.support.interleaving.scenarios import ALL_NODES, judge_owed, send, start
from tests.support.interleaving.world import Boom

__all__ = ["Strikes"]


class Strikes:
    """A signal comes at one point of thread `a`: in all schedules at its first, then at its second, and so on.

    Attributes:
        struck: The number of schedules in which it came.
        points: The thread's next actions at those points.
    """

    def __init__(self):
        self.at = 1
        self.struck = 0
        self.points = set()

    def explore(self, scenario, search):
        """Search through a scenario for each point, until there is none."""
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
        """Throw the handler's exception at thread `a`, which rolls back what it may have made."""

        return self._throwing(self._claim, nodes, others)

    @staticmethod
    def _claim(rig):
        owner = rig.owner()
        try:
            rig.broadcast(owner, b"a0")
        except Boom:
            rig.given_up.add(b"a0")
        # Sent completely, even if the signal comes only now.
        with suppress(Boom):
            rig.tell(owner, b"a1", owed_to=ALL_NODES)

    def interrupting_the_last(self, nodes=1, others="b"):
        """The same during the thread's last send, perhaps of others' commands as well."""

        def release(rig):
            with suppress(Boom):
                rig.tell(rig.owner(), b"a1", owed_to=ALL_NODES)

        return self._throwing(release, nodes, others)

    def handling_and_interrupting(self, nodes=1, others="b"):
        """The handler itself calls the client, if the thread sleeps, and then raises."""
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
                # The reasons of a node without a vote whose connection was abandoned: the interruption, or no other
                # connection.
                reasons = {letter + b"0", "not connected yet", *INTERRUPTED}
                assert set(tally.replies) <= reasons, f"{letter}0 got {tally.replies}"
                rig.tell(owner, letter + b"1", owed_to=ALL_NODES)

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
        """The handler itself calls the client, if the thread sleeps."""

        def scenario(world):
            rig = Rig(world, nodes)
            # The leader whose thread is busy may sleep in its poll for another second.
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
