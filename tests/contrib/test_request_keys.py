"""Flask and FastAPI: limits per user, and what a limit does while too few nodes answer."""

import asyncio

import fastapi
import flask
import httpx
import pytest

from redsync.contrib.fastapi import Redsync as FastapiRedsync
from redsync.contrib.flask import Redsync as FlaskRedsync
from redsync.testing import LocalNodes

KEY = "X-API-Key"


@pytest.fixture(scope="module")
def own_nodes():
    with LocalNodes(3) as nodes:
        yield nodes


def flask_app(urls):
    app = flask.Flask(__name__)
    app.config["REDSYNC"] = {"URLS": urls, "RESTART_GUARD": 0.0, "NODE_TIMEOUT": 0.1}
    redsync = FlaskRedsync(app)

    @app.get("/limited")
    @redsync.limit("flask:{key}", 1, per=60, key=lambda: flask.request.headers[KEY])
    def limited():
        return "ok"

    @app.get("/open")
    @redsync.limit("flask", 1, per=60, on_outage="open")
    def unlimited():
        return "ok"

    return app


def fastapi_app(urls):
    redsync = FastapiRedsync(urls, restart_guard=0.0, node_timeout=0.1)
    app = fastapi.FastAPI(lifespan=redsync.lifespan)
    of_caller = redsync.limit("fastapi:{key}", 1, per=60, key=lambda request: request.headers[KEY])

    @app.get("/limited", dependencies=[of_caller])
    async def limited():
        return "ok"

    @app.get("/open", dependencies=[redsync.limit("fastapi", 1, per=60, on_outage="open")])
    async def unlimited():
        return "ok"

    @app.get("/held")
    async def held(hold=fastapi.Depends(redsync.lock("held"))):  # noqa: B008  (as FastAPI's users write it)
        return {"lost": hold.lost, "name": hold.name}

    return redsync, app


def ask_flask(app, requests):
    with app.test_client() as site:
        return [site.get(path, headers={KEY: key}).status_code for path, key in requests]


def ask_fastapi(urls, requests):
    async def ask():
        redsync, app = fastapi_app(urls)
        transport = httpx.ASGITransport(app)
        async with redsync.lifespan(app), httpx.AsyncClient(transport=transport, base_url="http://site") as site:
            return [await site.get(path, headers={KEY: key}) for path, key in requests]

    return asyncio.run(ask())


PER_KEY = [("/limited", "ada"), ("/limited", "bob"), ("/limited", "ada"), ("/limited", "a" * 2000)]


def test_each_key_has_its_own_limit(own_nodes):
    app = flask_app(own_nodes.urls)
    assert ask_flask(app, PER_KEY) == [200, 200, 429, 200]
    app.extensions["redsync"].close()
    assert [reply.status_code for reply in ask_fastapi(own_nodes.urls, PER_KEY)] == [200, 200, 429, 200]


def test_guard_may_stand_within_depends(own_nodes):
    (reply,) = ask_fastapi(own_nodes.urls, [("/held", "ada")])
    assert reply.json() == {"lost": False, "name": "held"}


def test_limit_that_is_open_on_an_outage_admits_what_others_refuse():
    with LocalNodes(3) as nodes:
        app, urls = flask_app(nodes.urls), nodes.urls
        assert ask_flask(app, [("/open", "ada"), ("/open", "ada")]) == [200, 429]
        nodes.kill(0)
        nodes.kill(1)
        asked = [("/open", "ada"), ("/open", "ada"), ("/limited", "eve")]
        assert ask_flask(app, asked) == [200, 200, 503]
        app.extensions["redsync"].close()
        assert [reply.status_code for reply in ask_fastapi(urls, asked)] == [200, 200, 503]


@pytest.mark.parametrize("make", [FlaskRedsync, FastapiRedsync])
@pytest.mark.parametrize(
    ("options", "problem"),
    [
        ({"name": "pay:{key}"}, "belong together"),
        ({"name": "pay", "key": lambda *_: "ada"}, "belong together"),
        ({"name": "pay", "on_outage": "ajar"}, 'must be "open" or "closed"'),
    ],
)
def test_options_that_can_not_work_are_refused(make, options, problem):
    with pytest.raises(ValueError, match=problem):
        make().limit(rate=1, per=60, **options)
