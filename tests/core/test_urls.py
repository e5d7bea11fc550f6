"""URLs of nodes, of Sentinel groups and of clusters: their content, and which are refused."""

import pytest

from redsync._core.urls import NodeUrlError, ServersUrl, check_url, for_redis_py, require_different

SECRET = "Wc903z"


@pytest.mark.parametrize(
    "url",
    [
        "redis://10.0.0.1",
        "redis://10.0.0.1/",
        "redis://10.0.0.1:6379/0",
        "redis://10.0.0.1:6379/15/",
        "redis://:a%23b%2Fc%3Fd@10.0.0.1:6379/0",
        "redis://user:a@b@10.0.0.1:6379/0?client_name=a%40b&db=3",
        "rediss://[::1]:6379?ssl_cert_reqs=none",
        "redis://[fe80::1%25eth0]",
        "redis://a_b.example.",
        f"redis://{'%C3%BC' * 11}.example",
        "unix:///run/redis.sock",
        "unix://user:pw@/run/r%23.sock?db=1",
    ],
)
def test_url_that_redis_py_reads_as_meant_is_accepted(url):
    check_url(url)


@pytest.mark.parametrize(
    ("url", "what"),
    [
        (f"redis://:57#{SECRET}@10.0.0.1:6379/0", "has a # in its URL"),
        ("unix:///run/r#.sock", "has a # in its URL"),
        (f"redis://app:57/{SECRET}@10.0.0.1:6379/0", "path is not the number of a database"),
        (f"redis://:57/{SECRET}@10.0.0.1:6379/0", "without a host"),
        (f"redis://:57?{SECRET}@10.0.0.1:6379/0", "an option without a value"),
        ("redis://10.0.0.1:6379/cache", "path is not the number of a database"),
        ("redis://10.0.0.1:6379/-1", "path is not the number of a database"),
        ("redis://", "without a host"),
        ("redis://:6379/0", "without a host"),
        ("unix:///run/r%FF.sock", "is not UTF-8"),
        ("unix:///run/r\udcff.sock", "is not UTF-8"),
        ("redis+sentinel://:p@10.0.0.1/m%FF", "is not UTF-8"),
        ("redis+cluster://:\udcff@10.0.0.1?nodes=3", "is not UTF-8"),
        ("unix://run/redis.sock", "without the path of a socket"),
        ("unix:redis.sock", "without the path of a socket"),
        (f"redis://:{SECRET}#@10.0.0.1:6379/0", "is not a valid URL"),
        (f"redis://:{SECRET}[@10.0.0.1:6379/0", "%5B for ["),
        ("redis://10.0.0.1:0", "is not a valid URL"),
        ("redis://10.0.0.1:70000", "is not a valid URL"),
        ("http://10.0.0.1", "is not a valid URL"),
        *((f"redis://{host}:6379", "is not a valid URL") for host in ("redis..example", "a" * 64)),
    ],
)
def test_url_that_would_lead_elsewhere_is_refused_without_showing_it(url, what):
    with pytest.raises(NodeUrlError) as caught:
        check_url(for_redis_py(url))
    assert what in str(caught.value)
    assert SECRET not in str(caught.value)


# Sentinel groups.


def test_full_url_of_a_group_is_read():
    said = ServersUrl.read(
        "rediss+sentinel://user:p%40ss@s1:1001,[::1]:1002,s3/my%20master/7?replicas=3&socket_keepalive=yes"
        "&sentinel_username=watcher&sentinel_password=s%26cret&ssl_ca_certs=/ca.pem"
    )
    assert said == ServersUrl(
        "rediss://user:p%40ss@node:1/7?socket_keepalive=yes&ssl_ca_certs=%2Fca.pem",
        (
            ("s1:1001", "rediss://watcher:s%26cret@s1:1001/0?ssl_ca_certs=%2Fca.pem"),
            ("[::1]:1002", "rediss://watcher:s%26cret@[::1]:1002/0?ssl_ca_certs=%2Fca.pem"),
            ("s3:26379", "rediss://watcher:s%26cret@s3:26379/0?ssl_ca_certs=%2Fca.pem"),
        ),
        3,
        service="my master",
    )


@pytest.mark.parametrize("url", ["redis+sentinel://a/m", "redis+sentinel://a/m/", "redis+sentinel://a/m/0?replicas=0"])
def test_short_url_of_a_group_is_read(url):
    assert ServersUrl.read(url) == ServersUrl("redis://node:1/0?", (("a:26379", "redis://a:26379/0?"),), 0, "m")


def test_internationalised_names_of_sentinels_are_read():
    said = ServersUrl.read(f"redis+sentinel://{'a' * 40}。{'b' * 40}.,{'%C3%BC' * 11}/m")
    assert len(said.servers) == 2


def test_list_of_sentinels_has_each_once():
    require_different(["a:1", "a:2"])
    for wrong in ([], ["a:1", "b:1", "a:1"]):
        with pytest.raises(NodeUrlError):
            require_different(wrong)


# Clusters.


def test_full_url_of_a_cluster_is_read():
    said = ServersUrl.read("rediss+cluster://user:p%40ss@a:7000,[::1]:7001,c/0?nodes=3&replicas=2&ssl_ca_certs=/ca.pem")
    assert said == ServersUrl(
        "rediss://user:p%40ss@node:1/0?ssl_ca_certs=%2Fca.pem",
        (
            ("a:7000", "rediss://user:p%40ss@a:7000/0?ssl_ca_certs=%2Fca.pem"),
            ("[::1]:7001", "rediss://user:p%40ss@[::1]:7001/0?ssl_ca_certs=%2Fca.pem"),
            ("c:6379", "rediss://user:p%40ss@c:6379/0?ssl_ca_certs=%2Fca.pem"),
        ),
        2,
        nodes=3,
    )


@pytest.mark.parametrize("end", ["", "/", "/0"])
def test_short_url_of_a_cluster_is_read(end):
    said = ServersUrl.read(f"redis+cluster://a{end}?nodes=1")
    assert said == ServersUrl("redis://node:1/0?", (("a:6379", "redis://a:6379/0?"),), 0)


# Both.


@pytest.mark.parametrize("url", ["redis://a", "unix:///a", "redis+other://a/m"])
def test_url_with_another_scheme_is_none_of_these(url):
    assert ServersUrl.read(url) is None


INVALID = [
    ("redis+sentinel://", "is not a valid URL"),
    ("redis+sentinel://:57#W@s1/m", "is not a valid URL"),
    ("redis+sentinel://s1", "is not a valid URL"),
    ("redis+sentinel:///m", "is not a valid URL"),
    ("redis+sentinel://s1/m/one", "is not a valid URL"),
    ("redis+sentinel://s1,/m", "names a server that is not host:port"),
    ("redis+sentinel://s1:0/m", "names a server that is not host:port"),
    *((f"redis+sentinel://s1,{host}/m", "names a server that is not host:port") for host in ("s..2", ".s2", "ü" * 60)),
    ("redis+sentinel://s1,s2:5,s1:26379/m", "names a server twice: list each once"),
    ("redis+sentinel://s1/m?replicas=two", "has replicas= with something that is not a number"),
    ("redis+sentinel://s1/m?replicas=1000", "has replicas= with something that is not a number"),
    ("redis+sentinel://s1:5,S1:05/m", "names a server twice: list each once"),
    ("redis+sentinel://s1/m?ssl_cert_reqs", "has an option without a value"),
    ("redis+cluster://", "is not a valid URL"),
    ("redis+cluster://:57#W@s1?nodes=3", "is not a valid URL"),
    ("redis+cluster://s1/1?nodes=3", "is not a valid URL"),
    ("redis+cluster://s1", "needs nodes="),
    ("redis+cluster://s1?nodes=0", "needs nodes="),
    ("redis+cluster://s1?nodes=1000", "needs nodes="),
    ("redis+cluster://s1,?nodes=3", "names a server that is not host:port"),
    ("redis+cluster://s1:x?nodes=3", "names a server that is not host:port"),
    ("redis+cluster://s1,s1:6379?nodes=3", "names a server twice"),
    ("redis+cluster://s1?nodes=3&replicas=many", "has replicas= with something"),
]


@pytest.mark.parametrize(("url", "wrong"), INVALID)
def test_invalid_url_of_a_group_or_a_cluster_is_refused_and_not_shown(url, wrong):
    with pytest.raises(NodeUrlError) as caught:
        ServersUrl.read(url)
    assert wrong in str(caught.value)
    assert "s1" not in str(caught.value)
