"""Flask in its test client, and FastAPI served by uvicorn: locks and limits of requests, and nodes that are killed."""

import asyncio
import functools
import json
import math
import threading
from decimal import Decimal
from fractions import Fraction
from typing import Annotated

import fastapi
import flask
import httpx
import pytest
import uvicorn

from redsync import AsyncHold, ConfigurationError
from redsync.contrib.fastapi import Redsync as FastapiRedsync
from redsync.contrib.flask import Redsync as FlaskRedsync

pytestmark = [pytest.mark.framework, pytest.mark.sweep]

KEY = "X-API-Key"


def flask_app(urls):
    redsync = FlaskRedsync()
    app = flask.Flask(__name__)
    app.config["REDSYNC"] = {"URLS": urls, "RESTART_GUARD": 0.0}
    redsync.init_app(app)
    elsewhere = []

    @app.post("/orders/<int:number>")
    @redsync.lock("order:{number}", timeout=0.1)
    def pay(number):
        return {"paid": number, "name": redsync.hold.name}

    @app.post("/loses/<int:number>")
    @redsync.lock("order:{number}", busy=409)
    def loses(number):
        redsync.client.get_lock(f"order:{number}").force_release()
        redsync.hold.check()

    @app.get("/limited/<user>")
    @redsync.limit("user:{user}", [(2, 60), (9, 3600)])
    def limited(user):
        return {"hello": user}

    @app.get("/keyed")
    @redsync.limit("key:{key}", 1, per=60, key=lambda: flask.request.headers[KEY])
    def keyed():
        return "ok"

    @app.get("/open")
    @redsync.limit("open", 1, per=60, on_outage="open")
    def unlimited():
        return "ok"

    @app.get("/named/<client>")
    @redsync.lock("named:{client}")
    def named(client):
        return {"held": redsync.client.get_lock("named:127.0.0.1").locked()}

    def tell_hold_after(view):
        @functools.wraps(view)
        def told():
            return f"{view()}, {redsync.hold.name}"

        return told

    @app.post("/nested")
    @redsync.lock("outer")
    @tell_hold_after
    @redsync.lock("inner", timeout=0.0, busy=409)
    def nested():
        return redsync.hold.name

    @app.post("/async/<int:number>")
    @redsync.lock("order:{number}", timeout=0.1)
    async def pay_async(number):
        await asyncio.sleep(0)
        other = threading.Thread(target=busy_elsewhere, args=(redsync.client, number))
        other.start()
        other.join()
        return {"paid": number, "name": redsync.hold.name, "busy": elsewhere.pop()}

    @app.get("/async/limited")
    @redsync.limit("async", 1, per=60)
    async def limited_async():
        await asyncio.sleep(0)
        return "ok"

    def busy_elsewhere(client, number):
        elsewhere.append(not client.get_lock(f"order:{number}").acquire(False))

    return app


class FastapiSite:
    """An application that uvicorn serves in a thread."""

    def __init__(self, urls):
        self.redsync = FastapiRedsync(urls, restart_guard=0.0)
        self.app = fastapi.FastAPI(lifespan=self.redsync.lifespan)
        self._add_paths()
        config = uvicorn.Config(self.app, port=0, log_config=None, lifespan="on", ws="none")
        self._server = uvicorn.Server(config)
        self._thread = threading.Thread(target=self._server.run)

    def _add_paths(self):
        app, redsync = self.app, self.redsync

        @app.post("/orders/{number:int}")
        async def pay(number: int, hold: Annotated[AsyncHold, redsync.lock("order:{number}", timeout=0.1)]):
            return {"paid": number, "name": hold.name}

        @app.post("/loses/{number}", dependencies=[redsync.lock("order:{number}", busy=409)])
        async def loses(number: int):
            await redsync.client.get_lock(f"order:{number}").force_release()
            await asyncio.sleep(3600)

        @app.get("/limited/{user}", dependencies=[redsync.limit("user:{user}", [(2, 60), (9, 3600)])])
        async def limited(user: str):
            return {"hello": user}

        of_key = redsync.limit("key:{key}", 1, per=60, key=lambda request: request.headers[KEY])

        @app.get("/keyed", dependencies=[of_key])
        async def keyed():
            return "ok"

        @app.get("/open", dependencies=[redsync.limit("open", 1, per=60, on_outage="open")])
        async def unlimited():
            return "ok"

        @app.get("/held")
        async def held(hold=fastapi.Depends(redsync.lock("held"))):  # noqa: B008  (as FastAPI's users write it)
            return {"lost": hold.lost, "name": hold.name}

        @app.get("/named/{client}", dependencies=[redsync.lock("named:{client}")])
        async def named(client: str):
            return {"held": await redsync.client.get_lock("named:127.0.0.1").locked()}

    def __enter__(self):
        self._thread.start()
        return self

    def __exit__(self, *_):
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
def app(nodes):
    app = flask_app(nodes.urls[:3])
    yield app
    app.extensions["redsync"].close()


@pytest.fixture
def flask_web(app):
    return app.test_client()


@pytest.fixture
def fastapi_web(nodes, eventually):
    with FastapiSite(nodes.urls[:3]) as site:
        eventually(lambda: site.started)
        with httpx.Client(base_url=site.url, timeout=20) as web:
            yield web


@pytest.fixture(params=["flask", "fastapi"])
def web(request, nodes):
    """A client of either application, which have the same paths."""
    return request.getfixturevalue(f"{request.param}_web")


# Both.


def test_lock_is_held_while_the_request_is_handled(web, make_client):
    reply = web.post("/orders/7")
    assert (reply.status_code, json.loads(reply.text)) == (200, {"paid": 7, "name": "order:7"})
    rival = make_client(n=3).get_lock("order:7")
    with rival:
        busy = web.post("/orders/7")
        assert (busy.status_code, busy.headers["Retry-After"]) == (423, "1")
        assert "the resource is locked" in busy.text
        # However a caller spells the number, no other lock is taken for order 7.
        assert [web.post(f"/orders/{seven}").status_code for seven in ("07", "7.0", "+7", "%207")] == [
            423,
            404,
            404,
            404,
        ]
        assert web.post("/loses/7").status_code == 409
        assert web.post("/orders/8").status_code == 200
    assert web.post("/orders/7").status_code == 200
    assert rival.acquire(False)


def test_loss_is_a_503(web):
    lost = web.post("/loses/2")
    assert lost.status_code == 503
    assert "the lock service is unavailable" in lost.text


def test_caller_does_not_choose_the_address_of_the_client(web):
    assert json.loads(web.get("/named/ada").text) == {"held": True}


def test_reply_beyond_the_limit_says_when_to_retry(web):
    web.post("/orders/7")  # The client connects: a first try that not all nodes get may cost a success.
    for _ in range(2):
        reply = web.get("/limited/ada")
        assert (reply.status_code, json.loads(reply.text)) == (200, {"hello": "ada"})
    refused = web.get("/limited/ada")
    assert refused.status_code == 429
    assert "too many requests" in refused.text
    assert 30 < int(refused.headers["Retry-After"]) <= 61  # a limiter may be late by a hundredth
    assert web.get("/limited/bob").status_code == 200


def test_each_key_has_its_own_limit(web):
    web.post("/orders/7")
    keys = ("ada", "bob", "ada", "a" * 2000)
    assert [web.get("/keyed", headers={KEY: key}).status_code for key in keys] == [200, 200, 429, 200]


def test_one_dead_node_of_three_changes_nothing_and_two_are_a_503_unless_a_limit_is_open(nodes, web):
    nodes.kill(0)
    assert web.post("/orders/1").status_code == 200
    assert web.get("/limited/eve").status_code == 200
    assert [web.get("/open").status_code for _ in range(2)] == [200, 429]
    nodes.kill(1)
    for reply in (web.post("/orders/1"), web.get("/limited/eve")):
        assert reply.status_code == 503
        assert "the lock service is unavailable" in reply.text
    assert [web.get("/open").status_code for _ in range(2)] == [200, 200]


@pytest.mark.parametrize("make", [FlaskRedsync, FastapiRedsync])
def test_bad_options_are_refused_at_once(make):
    redsync = make()
    for name in ("", "{}"):
        with pytest.raises(ValueError, match="name"):
            redsync.lock(name)
        with pytest.raises(ValueError, match="name"):
            redsync.limit(name, 1, per=1)
    for timeout in (-1, math.inf, math.nan, None, "1", True):
        with pytest.raises(ValueError, match="timeout must be a number of seconds, 0 or more, not"):
            redsync.lock("x", timeout=timeout)
    for lease in (0, -1):
        with pytest.raises(ValueError, match="lease must be a positive number of seconds"):
            redsync.lock("x", lease=lease)
    # As `get_lock` does, guards accept numbers of any type.
    redsync.lock("x", timeout=Fraction(1, 2), lease=Decimal(5))
    with pytest.raises(TypeError, match="unexpected keyword argument 'leese'"):
        redsync.lock("x", leese=1)
    for rate, per in ((0, 60), (10, None), (10, -1), ([(10, 1), 60], None), ([], None), ([(10, 1)], 60), ("10", 60)):
        with pytest.raises(
            ValueError, match=r"a rate is 10, per=60 or \[\(10, 1\), \(1000, 3600\)\], for example, not"
        ):
            redsync.limit("x", rate, per=per)
    with pytest.raises(ValueError, match="busy must be an error status"):
        redsync.lock("x", busy=200)
    for name, options in (("pay:{key}", {}), ("pay", {"key": lambda *_: "ada"})):
        with pytest.raises(ValueError, match="belong together"):
            redsync.limit(name, 1, per=60, **options)
    with pytest.raises(ValueError, match='must be "open" or "closed"'):
        redsync.limit("pay", 1, per=60, on_outage="ajar")


# Flask.


def test_view_may_be_async(flask_web):
    assert flask_web.post("/async/7").json == {"paid": 7, "name": "order:7", "busy": True}
    assert [flask_web.get("/async/limited").status_code for _ in range(2)] == [200, 429]


def test_hold_belongs_to_the_innermost_lock(flask_web, make_client):
    assert flask_web.post("/nested").data == b"inner, outer"
    with make_client(n=3).get_lock("inner"):
        assert flask_web.post("/nested").status_code == 409
    assert make_client(n=3).get_lock("outer").acquire(False)


def test_error_handler_of_the_application_sees_the_refusal(app, flask_web):
    def explain(error):
        return {"error": error.description}, 429, {"Retry-After": error.get_response().headers["Retry-After"]}

    app.register_error_handler(429, explain)
    replies = [flask_web.get("/limited/eve") for _ in range(3)]
    assert replies[-1].json == {"error": "too many requests"}
    assert "Retry-After" in replies[-1].headers


def test_bad_setting_stops_an_application_of_flask_at_its_start(monkeypatch):
    monkeypatch.delenv("REDSYNC_URLS", raising=False)
    app = flask.Flask(__name__)
    with pytest.raises(ConfigurationError, match="REDSYNC: REDSYNC_URLS is not set"):
        FlaskRedsync(app)
    app.config["REDSYNC"] = {"URLS": "redis://127.0.0.1:1", "LEESE": 1}
    with pytest.raises(ConfigurationError, match=r"REDSYNC: .*unexpected keyword argument 'leese'"):
        FlaskRedsync(app)
    with app.app_context(), pytest.raises(RuntimeError, match="not set up in this application"):
        FlaskRedsync().client  # noqa: B018


# FastAPI.


def test_guard_may_stand_within_depends(fastapi_web):
    assert fastapi_web.get("/held").json() == {"lost": False, "name": "held"}


def test_guards_of_an_application_hold_for_its_websockets(nodes):
    redsync = FastapiRedsync(nodes.urls[:3], restart_guard=0.0)
    limit = redsync.limit("key:{key}", 1, per=60, key=lambda connection: connection.headers[KEY])
    app = fastapi.FastAPI(dependencies=[limit])

    @app.websocket("/{name}")
    async def talk(socket: fastapi.WebSocket, hold: Annotated[AsyncHold, redsync.lock("{name}")]):
        await socket.accept()
        await socket.send_text(hold.name)

    async def connected():
        return {"type": "websocket.connect"}

    async def connect():
        sent = asyncio.Queue()
        scope = {"type": "websocket", "path": "/talk", "query_string": b"", "headers": [(KEY.lower().encode(), b"ada")]}
        await app({**scope, "extensions": {"websocket.http.response": {}}}, connected, sent.put)
        return [await sent.get() for _ in range(2)]

    async def main():
        async with redsync.lifespan():
            return [await connect() for _ in range(2)]

    (_, talked), (refused, _) = asyncio.run(main())
    assert (talked["text"], refused["status"]) == ("talk", 429)


def test_bad_configuration_stops_an_application_of_fastapi_at_its_start(monkeypatch):
    monkeypatch.delenv("REDSYNC_URLS", raising=False)

    async def start(redsync):
        async with redsync.lifespan():
            raise AssertionError("never reached")

    with pytest.raises(ConfigurationError, match="REDSYNC_URLS"):
        asyncio.run(start(FastapiRedsync()))
    monkeypatch.setenv("REDSYNC_URLS", "redis://127.0.0.1:1")
    with pytest.raises(ConfigurationError, match="at least one node"):
        asyncio.run(start(FastapiRedsync([])))
    with pytest.raises(ValueError, match="lease"):
        asyncio.run(start(FastapiRedsync(["redis://127.0.0.1:1"], lease=-1)))


def test_client_exists_only_during_the_lifespan(nodes):
    redsync = FastapiRedsync(nodes.urls, restart_guard=0.0)

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
