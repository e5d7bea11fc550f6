"""URLs of clusters: their content, and which are invalid."""

import pytest

from redsync._core.cluster_urls import ClusterUrl
from redsync._core.node_urls import NodeUrlError


def test_full_url_is_read():
    said = ClusterUrl.read("rediss+cluster://user:p%40ss@a:7000,[::1]:7001,c/0?nodes=3&replicas=2&ssl_ca_certs=/ca.pem")
    assert said == ClusterUrl(
        "rediss://user:p%40ss@server:1/0?ssl_ca_certs=%2Fca.pem",
        (
            ("a:7000", "rediss://user:p%40ss@a:7000/0?ssl_ca_certs=%2Fca.pem"),
            ("[::1]:7001", "rediss://user:p%40ss@[::1]:7001/0?ssl_ca_certs=%2Fca.pem"),
            ("c:6379", "rediss://user:p%40ss@c:6379/0?ssl_ca_certs=%2Fca.pem"),
        ),
        3,
        2,
    )


@pytest.mark.parametrize("end", ["", "/", "/0"])
def test_short_url_is_read(end):
    said = ClusterUrl.read(f"redis+cluster://a{end}?nodes=1")
    assert said == ClusterUrl("redis://server:1/0?", (("a:6379", "redis://a:6379/0?"),), 1, 0)


@pytest.mark.parametrize(
    ("url", "matches"),
    [("redis+cluster://a", True), ("rediss+cluster://a", True), ("redis://a", False), ("redis+sentinel://a/m", False)],
)
def test_scheme_identifies_a_cluster(url, matches):
    assert ClusterUrl.matches(url) is matches


@pytest.mark.parametrize(
    ("url", "wrong"),
    [
        ("redis+cluster://", "is not a valid URL"),
        ("redis+cluster://:57#W@s1?nodes=3", "is not a valid URL"),
        ("redis+cluster://s1/1?nodes=3", "is not a valid URL"),
        ("redis+cluster://s1", "needs nodes="),
        ("redis+cluster://s1?nodes=", "needs nodes="),
        ("redis+cluster://s1?nodes=0", "needs nodes="),
        ("redis+cluster://s1?nodes=-1", "needs nodes="),
        ("redis+cluster://s1?nodes=1000", "needs nodes="),
        ("redis+cluster://s1,?nodes=3", "names a server that is not host:port"),
        ("redis+cluster://s1:x?nodes=3", "names a server that is not host:port"),
        ("redis+cluster://s1,s1:6379?nodes=3", "names a server twice"),
        ("redis+cluster://s1?nodes=3&replicas=many", "has replicas= with something"),
    ],
)
def test_invalid_url_is_refused_and_not_shown(url, wrong):
    with pytest.raises(NodeUrlError) as caught:
        ClusterUrl.read(url)
    assert wrong in str(caught.value)
    assert "s1" not in str(caught.value)
