"""The spin lock as its users meet it: it tries again and again, on real nodes, for threads and for asyncio."""

import math
import pickle

import pytest

from redsync import AcquireTimeout, QuorumError, SpinLock
from tests.support.locks import PATIENCE, claims, timed

pytestmark = pytest.mark.usefixtures("both_flavours", "all_nodes_met")


@pytest.fixture
def lock(client):
    return client.get_spin_lock("x")


class Backoff:
    """Notes with what it was asked, and says the same each time."""

    def __init__(self, pause):
        self._pause = pause
        self.tries = []

    def __call__(self, tries):
        self.tries.append(tries)
        return self._pause


class Pauses:
    """A back-off that can be pickled and compared."""

    def __init__(self, pause):
        self.pause = pause

    def __call__(self, tries):
        return self.pause

    def __eq__(self, other):
        return type(other) is Pauses and other.pause == self.pause

    __hash__ = None


def test_waiting_leaves_no_place_on_any_node(client, lock, other, raw, eventually):
    backoff = Backoff(0.001)
    other.do(lock.acquire)
    waiting = client.get_spin_lock("x", backoff=backoff)
    seen = []

    def look_and_release():
        eventually(lambda: len(backoff.tries) > 20)
        seen.append((raw.keys(), client.inspect("x").waiters))
        lock.release()

    releaser = other.start(look_and_release)
    assert waiting.acquire(timeout=20)
    releaser.result(20)
    assert seen == [([{b"redsync:x"}] * 5, ())]
    waiting.release()
    eventually(lambda: raw.keys() == [set()] * 5)


def test_backoff_is_called_with_the_number_of_tries_and_kept(client, lock, other):
    backoff = Backoff(0.05)
    other.do(lock.acquire)
    assert client.get_spin_lock("x", backoff=backoff).acquire(timeout=1) is False
    assert backoff.tries == list(range(1, len(backoff.tries) + 1))
    assert 2 <= len(backoff.tries) <= 21, "0.05 s and a round each"
    # Each acquire counts anew.
    assert client.get_spin_lock("x", backoff=backoff).acquire(timeout=0.01) is False
    assert backoff.tries[-1] == 1
    other.do(lock.release)


def test_backoff_of_zero_tries_at_once(client, lock, other):
    backoff = Backoff(0)
    other.do(lock.acquire)
    assert client.get_spin_lock("x", backoff=backoff).acquire(timeout=0.3) is False
    assert len(backoff.tries) > 5
    other.do(lock.release)


def test_backoff_is_not_asked_when_the_lock_is_free_or_not_waited_for(client, lock, other):
    backoff = Backoff(0.01)
    with client.get_spin_lock("x", backoff=backoff) as hold:
        hold.check()
    other.do(lock.acquire)
    assert client.get_spin_lock("x", backoff=backoff).acquire(False) is False
    assert backoff.tries == []
    other.do(lock.release)


def test_default_backoff_grows_from_a_millisecond_to_a_tenth_of_a_second(lock):
    real = getattr(lock, "_real", lock)
    longest = [real._pause(tries, 0.999999) for tries in range(1, 12)]
    shortest = [real._pause(tries, 0.0) for tries in range(1, 12)]
    assert longest[:7] == pytest.approx([0.001 * 2**n for n in range(7)], rel=0.01)
    assert longest[7:] == pytest.approx([0.1] * 4, rel=0.01)
    assert shortest == pytest.approx([pause / 4 for pause in longest], rel=0.01)


@pytest.mark.parametrize("pause", [-0.1, math.inf, -math.inf, math.nan])
def test_backoff_that_gives_no_pause_is_a_value_error_and_leaves_nothing(
    client, lock, other, raw, *, pause, eventually
):
    other.do(lock.acquire)
    owner = client.inspect("x").holders[0].owner.encode()
    bad = client.get_spin_lock("x", backoff=lambda tries: pause)
    for wait in (bad.acquire, bad.__enter__):
        with pytest.raises(
            ValueError, match=r"backoff of lock 'x' is a number of seconds from 0 on, not -?(0.1|inf|nan)"
        ):
            wait()
    assert bad.hold_count() == 0
    eventually(lambda: claims(raw) == [{owner: b"1"}] * 5)
    other.do(lock.release)
    eventually(lambda: raw.keys() == [set()] * 5)


@pytest.mark.parametrize("wrong", ["soon", None])
def test_backoff_that_raises_comes_out_and_leaves_nothing(client, lock, other, raw, *, wrong, eventually):
    other.do(lock.acquire)

    def fail(tries):
        if wrong is None:
            raise KeyError(tries)
        return wrong

    with pytest.raises((KeyError, TypeError)):
        client.get_spin_lock("x", backoff=fail).acquire()
    other.do(lock.release)
    eventually(lambda: raw.keys() == [set()] * 5)
    assert lock.acquire(False)


@pytest.mark.parametrize("backoff", [0.1, "soon", (1, 2)])
def test_backoff_is_refused_when_it_is_no_function(client, backoff):
    with pytest.raises(TypeError, match="backoff is a function from the number of tries to seconds, not"):
        client.get_spin_lock("x", backoff=backoff)


def test_acquire_raises_quorum_error_when_the_timeout_is_over(client, lock, nodes):
    for i in range(3):
        nodes.kill(i)
    backoff = Backoff(0.0)
    error, seconds = timed(client.get_spin_lock("x", backoff=backoff).acquire, timeout=0.4)
    assert isinstance(error, QuorumError)
    assert 0.4 <= seconds < PATIENCE
    assert backoff.tries == [], "that is for a lock that others hold"


@pytest.mark.threads_only
@pytest.mark.parametrize("protocol", range(pickle.HIGHEST_PROTOCOL + 1))
def test_pickled_spin_lock_carries_its_backoff_and_options(client, other, protocol):
    lock = client.get_spin_lock("x", backoff=Pauses(0.01), timeout=0.1, lease=5)
    twin, plain = pickle.loads(pickle.dumps([lock, client.get_spin_lock("y")], protocol))
    assert type(twin) is SpinLock
    assert twin._backoff == Pauses(0.01)
    assert plain._backoff is None
    with twin as hold:
        assert 4 < hold.remaining() <= 5
        assert lock.hold_count() == 1
    other.do(lock.acquire)
    with pytest.raises(AcquireTimeout), twin:
        pytest.fail("ran without the lock")
    other.do(lock.release)


@pytest.mark.threads_only
def test_spin_lock_is_not_pickled_when_its_backoff_can_not_be(client):
    with pytest.raises((AttributeError, TypeError, pickle.PicklingError)):
        pickle.dumps(client.get_spin_lock("x", backoff=lambda tries: 0.1))
