"""Driving a protocol in a task: replies go in, errors are thrown in, and clean-up runs to the end."""

import asyncio
from types import SimpleNamespace

import pytest

from redsync._core.effects import Signal, Wait, Wakeup, signal, wait
from redsync._drivers.aio import AioCall, AioRunner


def drive(steps, perform):
    call = AioCall(SimpleNamespace(stepping=False))
    return AioRunner.drive(None, steps, call, lambda effect, call: perform(effect))


class Performer:
    """Performs effects: a signal at once, a sleep until the test ends it."""

    def __init__(self):
        self.performed = []
        self.waker = None

    async def __call__(self, effect):
        self.performed.append(effect)
        if isinstance(effect, Signal):
            return None
        self.waker = asyncio.get_running_loop().create_future()
        return await self.waker


def sleeping(key=b"key"):
    return wait(Wait(1.0, key))


@pytest.mark.parametrize("cancellations", [1, 2, 5])
def test_cancellation_is_thrown_in_and_the_clean_up_runs_to_the_end(cancellations):
    async def main():
        perform = Performer()

        def steps():
            try:
                yield from sleeping()
            finally:
                for name in (b"first", b"second", b"third"):
                    yield from signal(name)

        task = asyncio.create_task(drive(steps(), perform))
        await asyncio.sleep(0)
        for _ in range(cancellations):
            task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert task.cancelled()
        assert [effect.key for effect in perform.performed] == [b"key", b"first", b"second", b"third"]

    asyncio.run(main())


def test_cancellation_together_with_the_reply_wins():
    async def main():
        perform, seen = Performer(), []

        def steps():
            try:
                seen.append((yield from sleeping()))
            except asyncio.CancelledError:
                seen.append("cancelled")
                raise

        task = asyncio.create_task(drive(steps(), perform))
        await asyncio.sleep(0)
        perform.waker.set_result(Wakeup(1.0, 1))
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert seen == ["cancelled"]

    asyncio.run(main())


def test_dropped_coroutine_performs_its_clean_up_through_all_delegations():
    """GeneratorExit would close the inner generators of a protocol, which then may not yield any more."""
    performed = []

    def inner():
        try:
            yield from sleeping()
        except BaseException:
            yield from signal(b"clean-up")
            raise

    def steps():
        return (yield from inner())

    async def perform(effect):
        performed.append(effect)
        if isinstance(effect, Wait):
            await Suspended()

    driving = drive(steps(), perform)
    driving.send(None)
    driving.close()
    assert performed == [Wait(1.0, b"key"), Signal(b"clean-up")]


class Suspended:
    def __await__(self):
        yield
