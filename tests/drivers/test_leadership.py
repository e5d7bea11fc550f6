"""Leadership: one of the waiting threads leads, and passes the lead on."""

import select
import signal
import threading
import time

import pytest

from redsync._drivers.leadership import Leadership
from redsync._drivers.process import clock
from redsync._drivers.reentry import Doing
from redsync._drivers.requests import Sleeper
from redsync._drivers.wakers import Waker
from tests.support.locks import PATIENCE

NOW = 100.0


class Company:
    """Threads that wait for replies; the test says what leading does.

    Attributes:
        lead: Called in the leading thread, with its sleeper.
        led: The sleepers that have led, in order.
    """

    def __init__(self):
        self.mutex, self.waker = threading.Lock(), Waker()
        self.leadership = Leadership(self.mutex, lambda: NOW, self.waker, self._lead, Doing(), make_lock=threading.Lock)
        self.lead = lambda sleeper: None
        self.led = []

    def _lead(self, sleeper, _):
        assert sleeper.leads
        self.led.append(sleeper)
        self.lead(sleeper)
        sleeper.done = True

    def follow(self, sleeper):
        """Make a thread wait; return once it follows."""
        followers = len(self.leadership.followers)
        thread = start(self.leadership.wait, sleeper, NOW + 60)
        deadline = time.monotonic() + PATIENCE
        while len(self.leadership.followers) == followers:
            assert time.monotonic() < deadline
        return thread

    def is_woken(self):
        return bool(select.select([self.waker.fileno], [], [], 0)[0])


@pytest.fixture
def company():
    company = Company()
    yield company
    company.waker.close()


def test_lead_goes_to_the_first_waiter_then_to_the_longest_waiting_one(company):
    first, second, third = (Sleeper() for _ in range(3))
    threads = []

    def wait_for_company(sleeper):
        if sleeper is first:
            threads.extend([company.follow(second), company.follow(third)])

    company.lead = wait_for_company
    company.leadership.wait(first, NOW + 60)
    for thread in threads:
        thread.join(PATIENCE)
    assert company.led == [first, second, third]
    assert company.leadership.try_lead(Sleeper()), "no thread leads"


def test_done_follower_is_passed_over(company):
    """It is about to leave, and would not lead until then."""
    leader, second, third = (Sleeper() for _ in range(3))
    company.leadership.try_lead(leader)
    company.leadership.followers.update({second: None, third: None})
    second.done = True
    company.leadership.leave(leader)
    assert [sleeper.leads for sleeper in (leader, second, third)] == [False, False, True]


def test_done_follower_that_an_interrupted_leader_has_not_woken_is_woken_when_it_leaves(company):
    leader, follower = Sleeper(), Sleeper()
    company.leadership.try_lead(leader)
    thread = company.follow(follower)
    follower.done = True
    company.leadership.leave(leader)
    thread.join(PATIENCE)
    assert not thread.is_alive()


def test_wait_ends_at_once_if_done_and_at_the_deadline(company):
    done = Sleeper()
    done.done = True
    company.leadership.wait(done, NOW + 60)
    company.leadership.wait(Sleeper(), NOW)
    assert company.led == []


def test_closed_leadership_lets_only_lasting_sleepers_wait(company):
    asleep, lasting = Sleeper(), Sleeper()
    lasting.lasts = True
    company.leadership.close()
    company.leadership.wait(asleep, NOW + 60)
    company.leadership.wait(lasting, NOW + 60)
    assert company.led == [lasting]


def test_lead_is_taken_once_and_returned(company):
    keeper, other = Sleeper(), Sleeper()
    assert company.leadership.try_lead(keeper)
    assert not company.leadership.try_lead(other)
    company.leadership.leave(keeper)
    assert company.leadership.try_lead(other)


def test_awaken_interrupts_only_the_leaders_poll(company):
    company.leadership.awaken(Sleeper())
    assert not company.is_woken()
    leader = Sleeper()
    company.leadership.try_lead(leader)
    company.leadership.awaken(leader)
    assert company.is_woken()


# On a transport.


def start(function, *args):
    thread = threading.Thread(target=function, args=args)
    thread.start()
    return thread


def await_pending(rig, i, n):
    deadline = time.monotonic() + PATIENCE
    while len(rig.transport.links[i].pending) < n:
        assert time.monotonic() < deadline
        time.sleep(0.001)


@pytest.fixture
def interrupt_after(boom):
    """Return a function that makes a signal handler raise in the main thread, some seconds later."""

    def raise_boom(number, frame):
        raise boom

    timers = []

    def interrupt_after(seconds):
        arguments = (threading.get_ident(), signal.SIGUSR1)
        timers.append(threading.Timer(seconds, signal.pthread_kill, arguments))
        timers[-1].start()

    before = signal.signal(signal.SIGUSR1, raise_boom)
    yield interrupt_after
    for timer in timers:
        timer.join()
    signal.signal(signal.SIGUSR1, before)


def test_follower_takes_the_lead_when_the_leader_is_interrupted(rig, nodes, interrupt_after, boom):
    nodes.pause(1)
    nodes.pause(2)
    request = rig.send(rig.echo, rig.owner(), "leader", timeout=20)
    tallies = []

    def follow():
        await_pending(rig, 1, 1)
        tallies.append(rig.ask(rig.echo, rig.owner(), "follower", timeout=10.0))

    follower = start(follow)
    interrupt_after(0.3)
    with pytest.raises(boom):
        rig.finish(request)
    assert follower.is_alive()
    nodes.resume(1)
    follower.join(20)
    assert tallies[0].won
    nodes.resume(2)


def test_closing_ends_sleeps_but_not_rounds(rig, nodes):
    nodes.pause(1)
    nodes.pause(2)
    ends = {}

    def sleep():
        ends["slept"] = rig.transport.wait_for_wakeup(rig.transport.wakeups.wait_for_nodes(None, clock() + 30, 1, 0.0))

    def ask():
        ends["won"] = rig.ask(rig.echo, rig.owner(), 1, timeout=10.0).won

    threads = [start(sleep), start(ask)]
    await_pending(rig, 1, 1)
    rig.transport.close()
    threads[0].join(20)
    assert ends["slept"] == (0, 0)
    nodes.resume(1)
    threads[1].join(20)
    assert ends["won"]
    nodes.resume(2)
