"""Flask with locks and limits as decorators, in its test client, and in gunicorn with two workers while a node dies."""

import asyncio
import json
import os
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import flask
import pytest

from redsync import ConfigurationError
from redsync.contrib.flask import Redsync
from tests.support.gunicorn import gunicorn

pytestmark = [pytest.mark.framework, pytest.mark.sweep]

SHOP = """
import json, os, time
from pathlib import Path
from flask import Flask
from redsync.contrib.flask import Redsync

app = Flask(__name__)
app.config["REDSYNC"] = json.loads(os.environ["SHOP_REDSYNC"])
redsync = Redsync(app)

@app.get("/count")
@redsync.lock("counter", timeout=20.0)
def count():
    # Not atomic but for the lock.
    file = Path("counter")
    number = int(file.read_text() if file.exists() else "0") + 1
    time.sleep(0.005)
    file.write_text(str(number))
    return str(number), {"Worker": os.getpid()}
"""


@pytest.fixture
def app(nodes):
    redsync = Redsync()
    app = flask.Flask(__name__)
    app.config["REDSYNC"] = {"URLS": nodes.urls[:3], "RESTART_GUARD": 0.0}
    redsync.init_app(app)

    @app.post("/orders/<int:number>")
    @redsync.lock("order:{number}", timeout=0.1)
    def pay(number):
        return {"paid": number, "name": redsync.hold.name}

    @app.post("/loses/<int:number>")
    @redsync.lock("order:{number}", busy=409)
    def loses(number):
        redsync.client.get_lock(f"order:{number}").force_release()
        redsync.hold.check()

    @app.post("/nested")
    @redsync.lock("outer")
    @redsync.lock("inner", timeout=0.0, busy=409)
    def nested():
        return redsync.hold.name

    @app.get("/limited/<user>")
    @redsync.limit("user:{user}", 2, per=60)
    def limited(user):
        return user, 201

    @app.post("/async/<int:number>")
    @redsync.lock("order:{number}", timeout=0.1)
    async def pay_async(number):
        await asyncio.sleep(0)
        other = threading.Thread(target=busy_elsewhere, args=(redsync.client, number))
        other.start()
        other.join()
        return {"paid": number, "name": redsync.hold.name, "busy": elsewhere.pop()}

    @app.get("/named/<client>")
    @redsync.lock("named:{client}")
    def named(client):
        return {"held": redsync.client.get_lock("named:127.0.0.1").locked()}

    @app.get("/async/limited")
    @redsync.limit("async", 1, per=60)
    async def limited_async():
        await asyncio.sleep(0)
        return "ok"

    elsewhere = []

    def busy_elsewhere(client, number):
        elsewhere.append(not client.get_lock(f"order:{number}").acquire(False))

    yield app
    app.extensions["redsync"].close()


@pytest.fixture
def web(app):
    return app.test_client()


def test_lock_is_held_while_the_view_runs(web, make_client):
    assert web.post("/orders/7").json == {"paid": 7, "name": "order:7"}
    with make_client(n=3).get_lock("order:7"):
        busy = web.post("/orders/7")
        assert (busy.status_code, busy.headers["Retry-After"]) == (423, "1")
        assert b"the resource is locked" in busy.data
        assert web.post("/loses/7").status_code == 409
        assert web.post("/orders/8").status_code == 200
    assert web.post("/orders/7").status_code == 200


def test_view_may_be_async(web):
    assert web.post("/async/7").json == {"paid": 7, "name": "order:7", "busy": True}
    assert [web.get("/async/limited").status_code for _ in range(2)] == [200, 429]


def test_loss_is_a_503(web):
    lost = web.post("/loses/2")
    assert lost.status_code == 503
    assert b"the lock service is unavailable" in lost.data


def test_hold_belongs_to_the_innermost_lock(web, make_client):
    assert web.post("/nested").data == b"inner"
    with make_client(n=3).get_lock("inner"):
        assert web.post("/nested").status_code == 409
    assert make_client(n=3).get_lock("outer").acquire(False)


def test_caller_does_not_choose_the_address_of_the_client(web):
    assert web.get("/named/ada").json == {"held": True}


def test_reply_beyond_the_limit_says_when_to_retry(web):
    web.post("/orders/7")  # The client connects: a first try that not all nodes get may cost a success.
    for _ in range(2):
        reply = web.get("/limited/ada")
        assert (reply.status_code, reply.data) == (201, b"ada")
    refused = web.get("/limited/ada")
    assert refused.status_code == 429
    seconds = int(refused.headers["Retry-After"])
    assert 30 < seconds <= 61  # a limiter may be late by a hundredth
    assert web.get("/limited/bob").status_code == 201


def test_error_handler_of_the_application_sees_the_refusal(app, web):
    def explain(error):
        return {"error": error.description}, 429, {"Retry-After": error.get_response().headers["Retry-After"]}

    app.register_error_handler(429, explain)
    replies = [web.get("/limited/eve") for _ in range(3)]
    assert replies[-1].json == {"error": "too many requests"}
    assert "Retry-After" in replies[-1].headers


def test_one_dead_node_of_three_changes_nothing_and_two_are_a_503(nodes, web):
    nodes.kill(0)
    assert web.post("/orders/1").status_code == 200
    nodes.kill(1)
    for reply in (web.post("/orders/1"), web.get("/limited/eve")):
        assert reply.status_code == 503


def test_bad_setting_stops_the_application_at_its_start(monkeypatch):
    monkeypatch.delenv("REDSYNC_URLS", raising=False)
    app = flask.Flask(__name__)
    with pytest.raises(ConfigurationError, match="REDSYNC: REDSYNC_URLS is not set"):
        Redsync(app)
    app.config["REDSYNC"] = {"URLS": "redis://127.0.0.1:1", "LEESE": 1}
    with pytest.raises(ConfigurationError, match=r"REDSYNC: .*unexpected keyword argument 'leese'"):
        Redsync(app)
    with app.app_context(), pytest.raises(RuntimeError, match="not set up in this application"):
        Redsync().client  # noqa: B018


def test_bad_options_are_refused_at_once():
    redsync = Redsync()
    for make in (redsync.lock, lambda name: redsync.limit(name, 1, per=1)):
        with pytest.raises(ValueError, match="name"):
            make("{}")
    with pytest.raises(ValueError, match="timeout must be a number of seconds"):
        redsync.lock("x", timeout=-1)
    with pytest.raises(ValueError, match="busy must be an error status"):
        redsync.lock("x", busy=200)


def test_workers_of_gunicorn_exclude_each_other_while_a_node_dies(tmp_path, nodes):
    (tmp_path / "shop.py").write_text(SHOP)
    paths = os.pathsep.join([str(tmp_path), str(Path(__file__).parents[2])])
    setting = json.dumps({"URLS": nodes.urls[:3], "RESTART_GUARD": 0})
    environment = {**os.environ, "PYTHONPATH": paths, "SHOP_REDSYNC": setting}
    with gunicorn("shop:app", tmp_path, environment) as web, ThreadPoolExecutor(8) as browsers:
        requests = [browsers.submit(web.get, "/count") for _ in range(40)]
        nodes.kill(0)
        requests += [browsers.submit(web.get, "/count") for _ in range(40)]
        replies = [request.result() for request in requests]
    assert sorted(int(reply.text) for reply in replies) == list(range(1, 81))
    assert len({reply.headers["Worker"] for reply in replies}) == 2
