"""URLs of nodes that were given as redis-py clients: each connects like the client, or there is none."""

import pickle
import ssl
from inspect import signature

import fakeredis
import pytest
import redis
import redis.asyncio
from redis.sentinel import Sentinel

from redsync import Client
from redsync._drivers.urls import url_of
from redsync.testing import LocalNodes

CLASSES = [redis.Redis, redis.asyncio.Redis]
AWKWARD = "p@ss:w/o?r#d%25, [x]\"'\\&=é\n"

SAYABLE = [
    {},
    {"host": "redis-1.example"},
    {"host": "Redis_1.Example", "port": 7000},
    {"host": "::1"},
    {"host": "fe80::1%eth0", "port": 7000},
    {"db": 3},
    {"password": "12/34"},
    {"password": AWKWARD},
    {"username": AWKWARD, "password": AWKWARD},
    {"username": "stranger"},
    {"username": "", "password": ""},
    {"client_name": "worker-1", "encoding": "latin-1"},
    {"ssl": True},
    {"ssl": True, "password": AWKWARD, "ssl_ca_certs": "/etc/a b/ca&.pem", "ssl_cert_reqs": "none"},
    {"ssl": True, "ssl_check_hostname": False, "ssl_certfile": "c.pem", "ssl_keyfile": "k.pem"},
    {"unix_socket_path": "/run/r s?#%.sock"},
    {"unix_socket_path": "/run/redis.sock", "db": 3, "username": AWKWARD, "password": AWKWARD},
    # Settings that a client replaces anyway.
    {"socket_timeout": 3.0, "socket_connect_timeout": 4.0, "health_check_interval": 9, "decode_responses": True},
    {"protocol": 3, "retry_on_error": [OSError], "max_connections": 7},
]

SAYABLE_LATELY = [
    ({"client_name": AWKWARD}, "client_name"),
    ({"ssl": True, "ssl_min_version": ssl.TLSVersion.TLSv1_3}, "ssl_min_version"),
    ({"ssl": True, "ssl_certfile": "c.pem", "ssl_keyfile": "k.pem", "ssl_password": AWKWARD}, "ssl_password"),
]
"""Settings that redis-py before 8.1 reads wrongly in a URL: there they are refused by name."""

REFUSED = [
    ({"credential_provider": redis.UsernamePasswordCredentialProvider("u", "secret")}, "credential_provider"),
    ({"password": b"secret"}, "password"),
    ({"socket_keepalive_options": {1: 2}}, "socket_keepalive_options"),
    ({"unix_socket_path": "redis.sock"}, "path"),
]


@pytest.mark.parametrize("client_class", CLASSES)
@pytest.mark.parametrize("given", SAYABLE, ids=str)
def test_url_connects_like_the_client(given, client_class):
    pool = client_class(**given).connection_pool
    url, unsaid = url_of(pool, client_class)
    assert (url is not None, unsaid) == (True, "")
    check_same(pool, url, client_class)


@pytest.mark.parametrize("client_class", CLASSES)
@pytest.mark.parametrize(("given", "name"), SAYABLE_LATELY, ids=str)
def test_setting_that_redis_py_reads_wrongly_is_refused_by_name(given, name, client_class):
    if name not in signature(client_class).parameters:
        pytest.skip("this redis-py has no such setting")
    pool = client_class(**given).connection_pool
    url, unsaid = url_of(pool, client_class)
    if redis.VERSION < (8, 1):
        assert (url, unsaid) == (None, name)
    else:
        check_same(pool, url, client_class)


def check_same(pool, url, client_class):
    read = client_class.from_url(url).connection_pool
    assert read.connection_class is pool.connection_class
    one, other = read.connection_class(**pool.connection_kwargs), read.connection_class(**read.connection_kwargs)
    for name in ("host", "port", "path", "db", "client_name", "ca_certs", "check_hostname", "certfile", "keyfile"):
        assert getattr(one, name, None) == getattr(other, name, None), name
    for name in ("username", "password", "cert_reqs", "certificate_password", "ssl_min_version", "min_version"):
        assert (getattr(one, name, None) or None) == (getattr(other, name, None) or None), name


@pytest.mark.parametrize("client_class", CLASSES)
@pytest.mark.parametrize(("given", "unsaid"), REFUSED)
def test_setting_that_no_url_can_express_is_refused_by_name(given, unsaid, client_class):
    assert url_of(client_class(**given).connection_pool, client_class) == (None, unsaid)


def test_custom_connection_class_has_no_url():
    class Connection(redis.Connection):
        pass

    class MyConnection(redis.Connection):
        pass

    pools = [redis.ConnectionPool(connection_class=each) for each in (Connection, MyConnection)]
    pools += [
        fakeredis.FakeRedis(server=fakeredis.FakeServer()).connection_pool,
        Sentinel([("127.0.0.1", 1)]).master_for("nodes").connection_pool,
    ]
    for pool in pools:
        name = pool.connection_class.__name__
        assert url_of(pool, redis.Redis) == (None, f"connections of the class {name}")


def test_setting_that_redis_py_does_not_know_has_no_url():
    pool = redis.ConnectionPool(flavour=["strawberry"])
    assert url_of(pool, redis.Redis) == (None, "flavour")


def run_id(client):
    try:
        return client.info("server")["run_id"]
    finally:
        client.close()


def test_pickled_client_of_redis_py_clients_reaches_the_same_nodes_as_the_same_user(server_path, tmp_path):
    path = tmp_path / "n o d e.sock"
    with LocalNodes(2, server=server_path, config={"unixsocket": f"'{path}'"}) as nodes:
        for url in nodes.urls:
            with redis.Redis.from_url(url) as admin:
                admin.execute_command("ACL", "SETUSER", "u:/@", "on", f">{AWKWARD}", "~*", "+@all")
                if admin.info("server")["redis_version"] >= "6.2":
                    admin.execute_command("ACL", "SETUSER", "u:/@", "&*")
                admin.execute_command("ACL", "SETUSER", "default", "off")
        login = {"username": "u:/@", "password": AWKWARD, "db": 2}
        # Both servers were configured with this path; one has taken it from the other.
        by_path, *by_port = [redis.Redis(unix_socket_path=str(path), **login)] + [
            redis.Redis(port=port, **login) for port in nodes.ports
        ]
        given = [next(one for one in by_port if run_id(one) != run_id(by_path)), by_path]
        with Client(given, restart_guard=0, lease=20) as client, client.get_lock("x"):
            pickled = pickle.dumps(client)
        with pickle.loads(pickled) as again, again.get_lock("x"):
            assert again is not client
            assert [node.state for node in again.nodes()] == ["up", "up"]
        for one in given:
            assert one.keys("redsync:x") == []
            one.close()


def test_client_whose_nodes_have_no_url_says_so_when_it_is_pickled():
    provider = redis.UsernamePasswordCredentialProvider("u", "secret")
    given = ["redis://127.0.0.1:1", redis.Redis(port=2, credential_provider=provider)]
    with Client(given) as client, pytest.raises(TypeError) as caught:
        pickle.dumps(client)
    assert str(caught.value) == (
        "a client is pickled as the URLs of its nodes, but no URL can describe node 2, localhost:2: "
        "it can't express credential_provider"
    )
