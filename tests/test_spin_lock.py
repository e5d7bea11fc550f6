"""The public contract of the spin lock: it polls, on real nodes, for threads and for asyncio."""

import math
from decimal import Decimal

import pytest

from redsync._facades.exclusive import _pause

pytestmark = pytest.mark.usefixtures("both_flavours", "all_nodes_met")


@pytest.fixture
def lock(client):
    return client.get_spin_lock("x")


@pytest.mark.parametrize("kind", ["spin_lock", "mutex"])
def test_waiting_calls_the_backoff_and_leaves_no_place_on_any_node(client, kind, other, raw, eventually):
    tried, make = [], getattr(client, f"get_{kind}")
    lock, waiting = make("x"), make("x", backoff=lambda tries: tried.append(tries) or 0.001)
    with waiting:
        pass
    other.do(lock.acquire)
    assert waiting.acquire(False) is False
    assert tried == [], "it has not waited"
    seen = []

    def look_and_release():
        eventually(lambda: len(tried) > 20)
        seen.append((raw.keys(), client.inspect("x").waiters))
        lock.release()

    releaser = other.start(look_and_release)
    assert waiting.acquire(timeout=20)
    releaser.result(20)
    assert seen == [([{b"redsync:x"}] * 5, ())]
    assert tried[:3] == [1, 2, 3]
    waiting.release()
    eventually(lambda: raw.keys() == [set()] * 5)


def test_default_backoff_grows_from_a_millisecond_to_a_tenth_of_a_second():
    longest = [_pause(None, "x", tries, 0.999999) for tries in range(1, 12)]
    shortest = [_pause(None, "x", tries, 0.0) for tries in range(1, 12)]
    assert longest[:7] == pytest.approx([0.001 * 2**n for n in range(7)], rel=0.01)
    assert longest[7:] == pytest.approx([0.1] * 4, rel=0.01)
    assert shortest == pytest.approx([pause / 4 for pause in longest], rel=0.01)


@pytest.mark.parametrize("pause", [-0.1, math.inf, -math.inf, math.nan, None, "soon", Decimal(-1)])
def test_invalid_pause_is_a_value_error(pause):
    """`tests/protocols/test_queue_policies.py` shows that a backoff that raises leaves nothing."""
    with pytest.raises(ValueError, match=r"backoff of lock 'x' must be .* seconds, at least 0, not "):
        _pause(lambda tries: pause, "x", 1, 0.5)
    assert type(_pause(lambda tries: Decimal(1), "x", 1, 0.5)) is float


def test_backoff_that_is_not_a_function_is_refused(client):
    async def later(tries): ...

    for make, backoff in (
        (client.get_spin_lock, 0.1),
        (client.get_spin_lock, "soon"),
        (client.get_mutex, (1, 2)),
        (client.get_mutex, later),
    ):
        with pytest.raises(TypeError, match="backoff must be a function from the number of tries to seconds, not"):
            make("x", backoff=backoff)
