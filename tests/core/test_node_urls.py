"""URLs of single nodes that redis-py would read otherwise than they were meant."""

import pytest

from redsync._core.node_urls import NodeUrlError, check_url

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
        (f"redis://app:57#{SECRET}@10.0.0.1:6379/0", "has a # in its URL"),
        ("redis://10.0.0.1:6379/0#", "has a # in its URL"),
        ("unix:///run/r#.sock", "has a # in its URL"),
        (f"redis://app:57/{SECRET}@10.0.0.1:6379/0", "path is not the number of a database"),
        (f"redis://:57/{SECRET}@10.0.0.1:6379/0", "without a host"),
        (f"redis://:57?{SECRET}@10.0.0.1:6379/0", "an option without a value"),
        (f"redis://app:57?{SECRET}@10.0.0.1:6379/0", "an option without a value"),
        ("redis://10.0.0.1:6379/cache", "path is not the number of a database"),
        ("redis://10.0.0.1:6379/0/1", "path is not the number of a database"),
        ("redis://10.0.0.1:6379/-1", "path is not the number of a database"),
        ("redis://", "without a host"),
        ("redis:///0", "without a host"),
        ("redis://:6379/0", "without a host"),
        ("unix://run/redis.sock", "without the path of a socket"),
        ("unix://", "without the path of a socket"),
        ("unix:redis.sock", "without the path of a socket"),
        (f"redis://:{SECRET}#@10.0.0.1:6379/0", "is not a valid URL"),
        (f"redis://:{SECRET}[@10.0.0.1:6379/0", "is not a valid URL"),
        ("redis://10.0.0.1:0", "is not a valid URL"),
        ("redis://10.0.0.1:70000", "is not a valid URL"),
        ("http://10.0.0.1", "is not a valid URL"),
        ("10.0.0.1:6379", "is not a valid URL"),
    ],
)
def test_url_that_would_lead_elsewhere_is_refused_without_showing_it(url, what):
    with pytest.raises(NodeUrlError) as caught:
        check_url(url)
    assert what in str(caught.value)
    assert SECRET not in str(caught.value)
