"""Calls that only look wait for a hung minority only briefly; `tests/protocols/test_answers.py` has the rule."""

import asyncio

from tests.simulation.trial import Trial


async def look_at_everything(client, operator, hung):
    """Return how many seconds each call that begins with a look took while these nodes hung."""
    read_write = client.get_read_write_lock("rw")
    semaphore, limiter = client.get_semaphore("s", 2), client.get_rate_limiter("r", 2, per=9.0)
    questions = {
        "inspect": lambda: client.inspect("x"),
        "locked": client.get_lock("x").locked,
        "read locked": read_write.read_lock.locked,
        "available": semaphore.available,
        "permits": semaphore.permits,
        "holders": semaphore.holders,
        "resize": lambda: semaphore.resize(3),
        "successes": limiter.available,
        "retry after": limiter.retry_after,
        "count": client.get_count_down_latch("l").count,
        "force release": operator.get_lock("x").force_release,
        "read force release": operator.get_read_write_lock("rw").read_lock.force_release,
    }
    loop, taken = asyncio.get_running_loop(), {}
    for name, ask in questions.items():
        for node in hung:
            node.hang()
        begun_at = loop.time()
        await ask()
        taken[name] = loop.time() - begun_at
        for node in hung:
            node.resume()
        # Nothing is pending any more, so no node is suspected yet.
        await asyncio.sleep(0.1)
    return taken


def test_looks_wait_for_hung_minority_only_briefly():
    taken = {}

    async def program(client, operator):
        await client.get_lock("x").acquire()
        await client.get_semaphore("s", 2).acquire()
        taken.update(await look_at_everything(client, operator, [sim.nodes[1], sim.nodes[4]]))

    with Trial(seed=11, nodes=5, lease=900.0, node_timeout=5.0) as sim:
        a = sim.machine("a")
        a.start(program(a.client(), a.client()))
        sim.run(100)
    assert len(taken) == 12
    assert {name: seconds for name, seconds in taken.items() if seconds > 0.15} == {}
