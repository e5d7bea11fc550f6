"""Driving in a loop: steps are atomic, sleeps end in time, and a failing callback ends only itself."""

import asyncio

import pytest

from tests.aio_support import claims, client_of, in_loop, until

ENDLESS = 30


@pytest.fixture
def events():
    return []


@pytest.fixture
def make_client(nodes, events):
    return lambda **options: client_of(nodes, **{"listeners": [events.append], **options})


@in_loop
async def test_callback_that_raises_a_cancellation_does_not_end_the_maintenance(make_client, raw, events, caplog):
    def cancel(hold):
        raise asyncio.CancelledError

    async with make_client(lease=1.0) as client:
        await client.get_lock("x", on_lost=cancel).acquire()
        for node in raw:
            node.delete("redsync:x")
        await until(lambda: events)
        assert "CancelledError" in caplog.records[-1].getMessage()
        async with client.get_lock("y") as hold:
            before = hold._state.valid_until
            await until(lambda: hold._state.valid_until > before)


def test_callback_that_exits_ends_the_loop_and_holds_are_released(make_client, raw):
    def leave(hold):
        raise SystemExit(3)

    async def main():
        client = make_client(lease=1.0)
        await client.get_lock("other", lease=60.0).acquire()
        await client.get_lock("x", on_lost=leave).acquire()
        for node in raw:
            node.delete("redsync:x")
        await asyncio.sleep(ENDLESS)

    with pytest.raises(SystemExit) as caught:
        asyncio.run(main())
    assert caught.value.code == 3
    assert claims(raw) == []
