"""The rate limit over processes and node failures: every window of all their successes, wherever it begins."""

import time

import pytest

from tests.chaos.history import read
from tests.faults.havoc import await_work, start


def successes(pool):
    """Return when there was a success, in order, in ns."""
    return sorted(line["at"] for life in pool.lives for line in read(life.history) if line["event"] == "success")


@pytest.mark.parametrize(("rate", "per"), [(5, 0.5), (1_000, 1.0)], ids=["10/s", "1000/s"])
@pytest.mark.sweep
def test_no_window_has_more_successes_than_the_rate_while_nodes_come_and_go(nodes, tmp_path, rate, per):
    options = {"work": "eager", "seed": "1", "restart_guard": 1.0, "limit": rate, "per": per, "owners": 4}
    with start(tmp_path, lambda _: nodes.urls, ["rate_limiter:x"], clients=2, **options) as pool:
        pool.await_all("ready")
        # Servers that have just started grant nothing before a window has passed.
        time.sleep(max(per, 1.0) * 1.01 + 0.4)
        pool.go()
        time.sleep(1.0)
        nodes.kill(0)
        time.sleep(0.7)
        nodes.restart(0)
        time.sleep(0.3 + 2 * per)
        nodes.pause(1)
        time.sleep(0.4)
        nodes.resume(1)
        await_work(pool, lambda: len(successes(pool)) > 2 * rate)
        pool.finish()
    instants = successes(pool)
    narrowest = min(later - sooner for sooner, later in zip(instants, instants[rate:], strict=False)) / 1e9
    print(len(instants), "successes; the narrowest", rate + 1, "in", narrowest, "s")
    assert narrowest >= per
