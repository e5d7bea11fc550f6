"""A signal's handler that cancels the waiting task, as that of `asyncio.run` does, at any point of its round."""

import asyncio

from redsync._core.effects import Broadcast, Command, Packed
from redsync._core.ownership import Owner
from redsync._drivers.process import clock
from redsync._drivers.requests import Request
from tests.drivers.test_aio_transport_interrupted_twice import Loop
from tests.support.injection import Strikes
from tests.support.locks import PATIENCE
from tests.support.rigs import MANY


def test_cancelled_task_ends_and_the_loop_has_no_error(nodes, make_script, raw):
    script = make_script("one", "redis.call('rpush', KEYS[1], ARGV[1]) return 1")
    for node in raw:
        node.script_load(script.source)
    wrong, points = [], 0
    with Loop(nodes.urls[:2], script, numbers=True) as loop:
        command, owner = Command(script, (b"list",), (b"a",), Packed()), Owner("loop", 1)
        loop.loop.set_exception_handler(lambda _, context: wrong.append(repr(context.get("exception"))))
        while True:
            effect = Broadcast(command, owner, bool, PATIENCE)
            request = Request(effect, effect.tally([node.address for node in loop.nodes]))
            request.tally.sent_at = clock()
            asking = loop.loop.create_task(loop.carry(request))
            strikes = Strikes(points + 1, handler=asking.cancel)
            strikes.run(lambda asking=asking: loop.run(asyncio.wait([asking], timeout=PATIENCE)))
            if not strikes.where:
                break
            points += 1
            if not asking.done():
                wrong.append(f"{strikes.where} left it asleep")
                asking.cancel()
            loop.run(loop.settle())
    assert wrong == []
    assert points > MANY / 2
