"""The semaphore's asyncio part: the body of `async with` when a permit is lost."""

import asyncio

import pytest

from redsync import LeaseLostError
from tests.aio_support import client_of, in_loop
from tests.support.locks import lose


@pytest.mark.parametrize("of_permit", [False, True])
@in_loop
async def test_body_is_cancelled_when_its_permit_is_lost(nodes, of_permit):
    async with client_of(nodes) as client:
        semaphore = client.get_semaphore("x", 2)

        async def body():
            async with await semaphore.acquire() if of_permit else semaphore:
                lose(client)
                await asyncio.sleep(30)

        with pytest.raises(LeaseLostError, match="permit of semaphore 'x'"):
            await body()
        assert await semaphore.available() == 2
