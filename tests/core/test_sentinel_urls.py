"""URLs of Sentinel groups: their content, and which are invalid."""

import pytest

from redsync._core.node_urls import NodeUrlError
from redsync._core.sentinel_urls import GroupUrl, require_different


def test_full_url_is_read():
    said = GroupUrl.read(
        "rediss+sentinel://user:p%40ss@s1:1001,[::1]:1002,s3/my%20master/7?replicas=3&socket_keepalive=yes"
        "&sentinel_username=watcher&sentinel_password=s%26cret&ssl_ca_certs=/ca.pem"
    )
    assert said == GroupUrl(
        "my master",
        "rediss://user:p%40ss@master:1/7?socket_keepalive=yes&ssl_ca_certs=%2Fca.pem",
        (
            ("s1:1001", "rediss://watcher:s%26cret@s1:1001/0?ssl_ca_certs=%2Fca.pem"),
            ("[::1]:1002", "rediss://watcher:s%26cret@[::1]:1002/0?ssl_ca_certs=%2Fca.pem"),
            ("s3:26379", "rediss://watcher:s%26cret@s3:26379/0?ssl_ca_certs=%2Fca.pem"),
        ),
        3,
    )
    assert said.address == "my master@s1:1001"


@pytest.mark.parametrize("url", ["redis+sentinel://a/m", "redis+sentinel://a/m/", "redis+sentinel://a/m/0?replicas=0"])
def test_short_url_is_read(url):
    assert GroupUrl.read(url) == GroupUrl("m", "redis://master:1/0?", (("a:26379", "redis://a:26379/0?"),), 0)


@pytest.mark.parametrize(
    ("url", "matches"),
    [("redis+sentinel://a/m", True), ("rediss+sentinel://a/m", True), ("redis://a", False), ("unix:///a", False)],
)
def test_scheme_identifies_a_group(url, matches):
    assert GroupUrl.matches(url) is matches


@pytest.mark.parametrize(
    ("url", "wrong"),
    [
        ("redis+sentinel://", "is not a valid URL"),
        ("redis+sentinel://:57#W@s1/m", "is not a valid URL"),
        ("redis+sentinel://s1", "is not a valid URL"),
        ("redis+sentinel://s1/", "is not a valid URL"),
        ("redis+sentinel:///m", "is not a valid URL"),
        ("redis+sentinel://s1/m/one", "is not a valid URL"),
        ("redis+sentinel://s1,/m", "names a server that is not host:port"),
        ("redis+sentinel://s1:0/m", "names a server that is not host:port"),
        ("redis+sentinel://s1:70000/m", "names a server that is not host:port"),
        ("redis+sentinel://s1,s2:5,s1:26379/m", "names a server twice: list each once"),
        ("redis+sentinel://s1/m?replicas=two", "has replicas= with something that is not a number"),
        ("redis+sentinel://s1/m?replicas=-1", "has replicas= with something that is not a number"),
        ("redis+sentinel://s1/m?replicas=1000", "has replicas= with something that is not a number"),
    ],
)
def test_invalid_url_is_refused_and_not_shown(url, wrong):
    with pytest.raises(NodeUrlError) as caught:
        GroupUrl.read(url)
    assert wrong in str(caught.value)
    assert "s1" not in str(caught.value)


def test_list_of_sentinels_has_each_once():
    require_different(["a:1", "a:2"])
    for wrong in ([], ["a:1", "b:1", "a:1"]):
        with pytest.raises(NodeUrlError):
            require_different(wrong)
