"""URLs of clusters: what they say, and which say nothing."""

import pytest

from redsync._core.cluster_urls import ClusterUrl
from redsync._core.sentinel_urls import GroupUrlError


def test_url_says_everything():
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
def test_little_needs_to_be_said(end):
    said = ClusterUrl.read(f"redis+cluster://a{end}?nodes=1")
    assert said == ClusterUrl("redis://server:1/0?", (("a:6379", "redis://a:6379/0?"),), 1, 0)


@pytest.mark.parametrize(
    ("url", "matches"),
    [("redis+cluster://a", True), ("rediss+cluster://a", True), ("redis://a", False), ("redis+sentinel://a/m", False)],
)
def test_scheme_tells_a_cluster(url, matches):
    assert ClusterUrl.matches(url) is matches


@pytest.mark.parametrize(
    ("url", "wrong"),
    [
        ("redis+cluster://", "is no URL such as"),
        ("redis+cluster://s1/1?nodes=3", "is no URL such as"),
        ("redis+cluster://s1", "needs nodes="),
        ("redis+cluster://s1?nodes=", "needs nodes="),
        ("redis+cluster://s1?nodes=0", "needs nodes="),
        ("redis+cluster://s1?nodes=-1", "needs nodes="),
        ("redis+cluster://s1?nodes=1000", "needs nodes="),
        ("redis+cluster://s1,?nodes=3", "names a server that is no host:port"),
        ("redis+cluster://s1:x?nodes=3", "names a server that is no host:port"),
        ("redis+cluster://s1,s1:6379?nodes=3", "names a server twice"),
        ("redis+cluster://s1?nodes=3&replicas=many", "has replicas= with something"),
    ],
)
def test_url_that_says_too_little_or_too_much_is_refused_and_not_shown(url, wrong):
    with pytest.raises(GroupUrlError) as caught:
        ClusterUrl.read(url)
    assert wrong in str(caught.value)
    assert "s1" not in str(caught.value)
