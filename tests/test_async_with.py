"""`async with lock`: its body when the hold is lost, alone and together with other cancellations."""

import asyncio
from contextlib import aclosing, suppress

import pytest

from redsync import AsyncHold, HoldLost, LeaseLostError
from tests.aio_support import ENDLESS, claims, client_of, comes_out, goes_on, in_loop, turns, until, uvloop_in_sweeps
from tests.support.locks import lose


@pytest.fixture
def make_client(nodes, events):
    return lambda **options: client_of(nodes, **{"listeners": [events.append], **options})


# The loss alone.


async def in_lock(client, body):
    async with client.get_lock("x"):
        await body()


async def in_semaphore(client, body):
    async with client.get_semaphore("x", 2):
        await body()


async def with_permit(client, body):
    async with await client.get_semaphore("x", 2).acquire():
        await body()


async def with_permit_again(client, body):
    async def work(permit):
        async with permit:
            await body()

    async with client.get_semaphore("x", 2) as permit:
        await work(permit)


async def in_generator(client, body):
    async def rows():
        async with client.get_lock("x"):
            yield

    async with aclosing(rows()) as stream:
        async for _ in stream:
            await body()


async def decorated(client, body):
    @client.locked("{name}")
    async def work(name):
        await body()

    await work("x")


@pytest.mark.parametrize("hold", [in_lock, in_semaphore, with_permit, with_permit_again, in_generator, decorated])
@uvloop_in_sweeps
@in_loop
async def test_body_is_cancelled_when_what_it_holds_is_lost(make_client, events, raw, *, loop, hold):
    cancelled = []

    async def body():
        lose(client)
        try:
            await asyncio.sleep(ENDLESS)
        except asyncio.CancelledError:
            cancelled.append(True)
            raise

    async with make_client() as client:
        with comes_out(LeaseLostError, match="'x' was lost"):
            await hold(client, body)
        await goes_on()
        await until(lambda: not raw.count("redsync:x"))
        assert cancelled == [True]
        assert [type(event) for event in events if isinstance(event, HoldLost)] == [HoldLost]
        await hold(client, goes_on)


@in_loop
async def test_tasks_inside_one_permit_get_only_their_own_cancellation(make_client):
    """Whichever leaves first."""

    async def work(permit):
        with comes_out(LeaseLostError):
            async with permit:
                await asyncio.sleep(ENDLESS)
        await goes_on()

    async with make_client() as client:
        permit = await client.get_semaphore("x", 2).acquire()
        tasks = [asyncio.create_task(work(permit)) for _ in range(2)]
        await turns(2)
        lose(client)
        await asyncio.gather(*tasks)


@in_loop
async def test_body_is_cancelled_when_the_nodes_forget_or_its_lease_ends(make_client, raw):
    """The real case, with the watchdog's own renewal."""
    async with make_client(lease=0.6) as client:
        with comes_out(LeaseLostError):
            async with client.get_lock("x"):
                for node in raw:
                    node.flushall()
                    node.set("redsync:x", "foreign")
                await asyncio.sleep(ENDLESS)
        await goes_on()
        with comes_out(LeaseLostError):
            async with client.get_lock("y", lease=0.2):
                await asyncio.sleep(ENDLESS)
        await goes_on()


@in_loop
async def test_loss_noticed_by_the_body_or_its_end_is_raised_once_and_cancels_nothing_later(make_client):
    async def check(hold):
        hold.check()

    async with make_client() as client:
        for notice in (check, AsyncHold.extend, AsyncHold.release, goes_on):
            with comes_out(LeaseLostError):
                async with client.get_lock("x") as hold:
                    hold._state.valid_until = 0.0
                    if notice is not goes_on:
                        await notice(hold)
            await goes_on()
            async with client.get_lock("x"):
                await goes_on()


@in_loop
async def test_loss_propagates_no_matter_how_the_body_handles_its_cancellation(make_client):
    async def swallow(hold):
        with suppress(asyncio.CancelledError):
            await asyncio.sleep(ENDLESS)
        await asyncio.sleep(0.001)
        reached.append("the end")

    async def release_and_hide(hold):
        try:
            await asyncio.sleep(ENDLESS)
        finally:
            with comes_out(LeaseLostError):
                await hold.release()

    async def notice_and_hide(hold):
        with comes_out(LeaseLostError):
            hold.check()
        await asyncio.sleep(ENDLESS)

    async def raise_instead(hold):
        try:
            await asyncio.sleep(ENDLESS)
        except asyncio.CancelledError:
            raise KeyError("mine") from None

    reached = []
    async with make_client() as client:
        for body in (swallow, release_and_hide, notice_and_hide, raise_instead):
            with comes_out(KeyError if body is raise_instead else LeaseLostError) as info:
                async with client.get_lock("x") as hold:
                    lose(client)
                    await body(hold)
            await goes_on()
    assert reached == ["the end"]
    assert any("was lost" in note for note in info.value.__notes__), "its own error carries the loss"


# With a callback.


@in_loop
async def test_body_with_on_lost_learns_of_the_loss_only_by_it_even_if_it_raises(make_client, caplog):
    told = []

    def on_lost(hold):
        told.append(hold)
        raise KeyError("mine")

    async with make_client() as client:
        with comes_out(LeaseLostError):
            async with client.get_lock("x", on_lost=on_lost) as hold:
                lose(client)
                await until(lambda: told)
                await asyncio.sleep(0.01)
                assert told[0].lost
                assert told[0].owner == hold.owner
        assert len(told) == 1
        await goes_on()
    assert "raised" in caplog.text


# Nested.


@in_loop
async def test_nested_withs_of_two_locks_raise_each_loss(make_client, raw):
    async with make_client() as client:
        for lost in ("ab", "ba", "a", "b"):
            with comes_out(LeaseLostError) as info:
                async with client.get_lock("a"), client.get_lock("b"):
                    for name in lost:
                        lose(client, name)
                    await asyncio.sleep(ENDLESS)
            assert info.value.name == min(lost), "the outer one's own loss comes last"
            await goes_on()
            await until(lambda: not claims(raw))
            assert len(client.runner.session.holds) == 0


@in_loop
async def test_loss_of_the_outer_lock_during_the_inner_release_releases_both(make_client, raw):
    """At every turn of the loop from the inner release on."""

    async def lose_after(k):
        await turns(k)
        lose(client, "a")

    async with make_client() as client:
        for k in (*range(12), 16, 24, 40):
            with comes_out(LeaseLostError, match="'a'"):
                async with client.get_lock("a"):
                    async with client.get_lock("b"):
                        losing = asyncio.create_task(lose_after(k))
                    await asyncio.sleep(ENDLESS)
            await losing
            await goes_on()
            await until(lambda: not claims(raw))
            assert len(client.runner.session.holds) == 0


@in_loop
async def test_outer_with_that_survives_the_loss_of_the_inner_goes_on(make_client, raw):
    async with make_client() as client:
        async with client.get_lock("a") as outer:
            with comes_out(LeaseLostError):
                async with client.get_lock("b"):
                    lose(client, "b")
                    await asyncio.sleep(ENDLESS)
            await goes_on()
            outer.check()
            await outer.extend()
        await until(lambda: not claims(raw))


@in_loop
async def test_child_task_with_the_hold_is_not_cancelled(make_client):
    """Only the owner is cancelled: code that passes a hold on must cancel its receivers."""
    async with make_client() as client:
        with comes_out(LeaseLostError):
            async with client.get_lock("x") as hold:
                child = asyncio.create_task(hold.wait_lost(ENDLESS))
                await turns(3)
                lose(client)
                await asyncio.sleep(ENDLESS)
        assert await child is True
        await goes_on()


# Together with a cancellation from outside.


@pytest.mark.parametrize(("held", "lost"), [("x", "x"), ("xyz", "y"), ("xyz", "xz")])
@uvloop_in_sweeps
@in_loop
async def test_loss_together_with_a_cancelled_task_does_not_swallow_it(make_client, raw, loop, held, lost):
    """In either order, even in one turn of the loop, and even when several locks of a multi-lock are lost."""

    async def hold(client, begun):
        locks = [client.get_mutex(name) if name == "y" else client.get_lock(name) for name in held]
        async with locks[0] if held == "x" else client.get_multi_lock(*locks):
            begun.set()
            await asyncio.sleep(ENDLESS)

    def lose_all(client):
        for state in list(client.runner.session.holds):
            if state.name in lost:
                lose(client, state.name)

    async with make_client() as client:
        for turns_between in (-3, -2, -1, 0, 1, 2, 3, 5):
            begun = asyncio.Event()
            task = asyncio.create_task(hold(client, begun))
            await begun.wait()
            if turns_between < 0:
                lose_all(client)
            await turns(abs(turns_between))
            task.cancel()
            if turns_between >= 0:
                await turns(turns_between)
                lose_all(client)
            with comes_out((asyncio.CancelledError, LeaseLostError)) as info:
                await task
            # The loss propagates only if it came before the cancellation, or that came at the end of the with.
            assert task.cancelled() or turns_between < 0
            assert all("was lost" in note for note in getattr(info.value, "__notes__", []))
            await until(lambda: not claims(raw))
            assert len(client.runner.session.holds) == 0


@in_loop
async def test_loss_in_the_turn_of_the_cancellation_reports_both(make_client):
    async def hold(client):
        async with client.get_lock("x"):
            lose(client)
            await asyncio.sleep(ENDLESS)

    seen = []

    def cancel(event):
        seen.append(event)
        task.cancel()

    async with make_client(listeners=[cancel]) as client:
        task = asyncio.create_task(hold(client))
        with comes_out(asyncio.CancelledError) as info:
            await task
        assert task.cancelled()
        assert seen
        assert any("was lost" in note for note in info.value.__notes__)


@in_loop
async def test_loss_together_with_a_timeout_raises_each_in_its_own_block(make_client):
    """Both at once; the outer one's error comes last."""
    async with make_client() as client:
        with comes_out((TimeoutError, LeaseLostError)):
            async with asyncio.timeout(ENDLESS) as timeout:
                async with client.get_lock("x"):
                    lose(client)
                    await turns(1)
                    # In the next turn the watchdog reports the loss; the timeout may come first or second.
                    timeout.reschedule(asyncio.get_running_loop().time())
                    await asyncio.sleep(ENDLESS)
        await goes_on()


@in_loop
async def test_task_cancelled_earlier_can_still_lose(make_client):
    """It swallowed that cancellation, so its count stays at one; the `with` removes only what it added."""

    async def stubborn(client):
        with suppress(asyncio.CancelledError):
            await asyncio.sleep(ENDLESS)
        with comes_out(LeaseLostError):
            async with client.get_lock("x"):
                lose(client)
                await asyncio.sleep(ENDLESS)
        return asyncio.current_task().cancelling()

    async with make_client() as client:
        task = asyncio.create_task(stubborn(client))
        await turns(2)
        task.cancel()
        assert await task == 1
