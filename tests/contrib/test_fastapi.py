"""FastAPI served by uvicorn: locks, limits, and a node that is killed meanwhile."""

import asyncio
import threading
from typing import Annotated

import anyio.to_thread
import fastapi
import httpx
import pytest
import uvicorn

from redsync import AsyncHold, ConfigurationError, Hold
from redsync.contrib.fastapi import Redsync

pytestmark = [pytest.mark.framework, pytest.mark.sweep]


class Site:
    """An application that uvicorn serves in a thread, with a lock, a limit, and a door at which requests wait."""

    def __init__(self, urls):
        self.redsync = Redsync(urls, restart_guard=0.0)
        self.app = fastapi.FastAPI(lifespan=self.redsync.lifespan)
        self.inside = threading.Event()
        self.door = threading.Event()
        self._add_paths()
        config = uvicorn.Config(self.app, port=0, log_config=None, lifespan="on", ws="none")
        self._server = uvicorn.Server(config)
        self._thread = threading.Thread(target=self._server.run)

    def _add_paths(self):
        app, redsync = self.app, self.redsync
        paying = Annotated[AsyncHold, redsync.lock("order:{number}", timeout=0.2)]

        @app.post("/orders/{number}")
        async def pay(number: int, hold: paying):
            return {"paid": number, "valid": hold.remaining() > 0, "name": hold.name}

        @app.post("/slow/{number}", dependencies=[redsync.lock("slow:{number}", timeout=0.0, busy=409)])
        async def slow(number: int):
            self.inside.set()
            while not self.door.is_set():  # noqa: ASYNC110  (another thread opens it)
                await asyncio.sleep(0.005)
            return {"done": number}

        @app.get("/limited/{user}", dependencies=[redsync.limit("user:{user}", 2, per=60)])
        async def limited(user: str):
            return {"hello": user}

        @app.get("/named/{client}", dependencies=[redsync.lock("named:{client}")])
        async def named(client: str):
            return {"held": await redsync.client.get_lock("named:127.0.0.1").locked()}

    def __enter__(self):
        self._thread.start()
        return self

    def __exit__(self, *_):
        self.door.set()
        self._server.should_exit = True
        self._thread.join(20)
        assert not self._thread.is_alive()

    @property
    def url(self):
        return f"http://127.0.0.1:{self._server.servers[0].sockets[0].getsockname()[1]}"

    @property
    def started(self):
        return self._server.started


@pytest.fixture
def site(nodes, eventually):
    with Site(nodes.urls[:3]) as site:
        eventually(lambda: site.started)
        yield site


@pytest.fixture
def web(site):
    with httpx.Client(base_url=site.url, timeout=20) as web:
        yield web


def test_lock_is_held_during_the_request(web, make_client):
    reply = web.post("/orders/7")
    assert (reply.status_code, reply.json()) == (200, {"paid": 7, "valid": True, "name": "order:7"})
    rival = make_client(n=3).get_lock("order:7")
    with rival:
        busy = web.post("/orders/7")
        assert (busy.status_code, busy.headers["Retry-After"]) == (423, "1")
        assert busy.json() == {"detail": "the resource is locked"}
        assert web.post("/orders/8").status_code == 200
    assert web.post("/orders/7").status_code == 200
    assert rival.acquire(False)


def test_second_request_is_refused_during_the_first(site, web, other):
    first = other.start(web.post, "/slow/1")
    assert site.inside.wait(20)
    assert web.post("/slow/1").status_code == 409
    site.door.set()
    assert first.result(20).json() == {"done": 1}
    assert web.post("/slow/1").status_code == 200


def test_caller_does_not_choose_the_address_of_the_client(web):
    assert web.get("/named/ada").json() == {"held": True}


def test_loss_is_a_503(site, web, other, make_client):
    request = other.start(web.post, "/slow/2")
    assert site.inside.wait(20)
    make_client(n=3).get_lock("slow:2").force_release()
    lost = request.result(20)
    assert (lost.status_code, lost.json()) == (503, {"detail": "the lock service is unavailable"})


def test_reply_beyond_the_limit_says_when_to_retry(web):
    for _ in range(2):
        reply = web.get("/limited/ada")
        assert reply.status_code == 200
    refused = web.get("/limited/ada")
    assert (refused.status_code, refused.json()) == (429, {"detail": "too many requests"})
    seconds = int(refused.headers["Retry-After"])
    assert 30 < seconds <= 61  # a limiter may be late by a hundredth
    assert web.get("/limited/bob").status_code == 200


def test_one_dead_node_of_three_changes_nothing_and_two_are_a_503(nodes, site, web):
    assert web.post("/orders/1").status_code == 200
    nodes.kill(0)
    assert web.post("/orders/1").status_code == 200
    assert web.get("/limited/eve").status_code == 200
    nodes.kill(1)
    for reply in (web.post("/orders/1"), web.get("/limited/eve")):
        assert (reply.status_code, reply.json()) == (503, {"detail": "the lock service is unavailable"})


def test_bad_configuration_stops_the_application_at_its_start(monkeypatch):
    monkeypatch.delenv("REDSYNC_URLS", raising=False)

    async def start(redsync):
        async with redsync.lifespan():
            raise AssertionError("never reached")

    with pytest.raises(ConfigurationError, match="REDSYNC_URLS"):
        asyncio.run(start(Redsync()))
    with pytest.raises(ValueError, match="lease"):
        asyncio.run(start(Redsync(["redis://127.0.0.1:1"], lease=-1)))


def test_bad_options_are_refused_at_once():
    redsync = Redsync()
    for name in ("", "{}"):
        with pytest.raises(ValueError, match="name"):
            redsync.lock(name)
        with pytest.raises(ValueError, match="name"):
            redsync.limit(name, 1, per=1)
    with pytest.raises(ValueError, match="timeout must be a number of seconds"):
        redsync.lock("x", timeout=-1)
    with pytest.raises(ValueError, match="busy must be an error status"):
        redsync.lock("x", busy=200)


def test_client_exists_only_during_the_lifespan(nodes):
    redsync = Redsync(nodes.urls, restart_guard=0.0)

    async def main():
        for _ in range(2):
            with pytest.raises(RuntimeError, match="lifespan=redsync"):
                redsync.client  # noqa: B018
            async with redsync.lifespan():
                assert await redsync.client.get_lock("x").acquire(False)
                with pytest.raises(RuntimeError, match="already begun"):
                    async with redsync.lifespan():
                        raise AssertionError("never reached")
                assert redsync.client

    asyncio.run(main())


def test_dependency_in_threads_keeps_its_lock_after_the_thread_that_began_it(make_client, monkeypatch, eventually):
    """A `def` dependency: anyio runs its `yield` in threads of a pool, and ends those that are idle for 10 s."""
    monkeypatch.setattr("anyio._backends._asyncio.WorkerThread.MAX_IDLE_TIME", 0.0)
    events, began = [], []
    client, theirs = make_client(listeners=[events.append]), make_client().get_lock("x")

    def locked():
        with client.get_lock("x") as hold:
            began.append(threading.current_thread())
            client.get_lock("acquired").acquire()
            yield hold

    app = fastapi.FastAPI()

    @app.get("/")
    async def path(hold: Annotated[Hold, fastapi.Depends(locked)]):
        # Of two busy workers, the one that began is idle first, so the next call takes the other, and ends this one.
        both, later = threading.Barrier(2), threading.Event()

        def occupy():
            both.wait(20)
            if threading.current_thread() is not began[0]:
                later.wait(20)

        workers = [asyncio.create_task(anyio.to_thread.run_sync(occupy)) for _ in range(2)]
        await asyncio.wait(workers, return_when=asyncio.FIRST_COMPLETED)
        later.set()
        await asyncio.wait(workers)
        await anyio.to_thread.run_sync(int)
        await asyncio.to_thread(began[0].join, 20)
        assert not began[0].is_alive()
        await asyncio.to_thread(eventually, lambda: [event.name for event in events] == ["acquired"])
        return {"lost": hold.lost, "free": await asyncio.to_thread(theirs.acquire, False)}

    async def ask():
        async with httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://site") as web:
            return (await web.get("/")).json()

    assert asyncio.run(ask()) == {"lost": False, "free": False}
    assert theirs.acquire(False)
