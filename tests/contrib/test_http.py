"""Header fields of a rate limiter, as in the draft."""

from redsync.contrib.http import Policy


def test_fields_are_structured_fields():
    policy = Policy("pay:{client}", 10, 60)
    assert policy.fields == {"RateLimit-Policy": '"pay:{client}";q=10;w=60'}
    assert policy.refusal(12.1) == {
        "RateLimit-Policy": '"pay:{client}";q=10;w=60',
        "RateLimit": '"pay:{client}";r=0;t=13',
        "Retry-After": "13",
    }


def test_seconds_are_rounded_up_to_at_least_one():
    policy = Policy("x", 1, 0.5)
    assert policy.fields["RateLimit-Policy"].endswith(";w=1")
    assert policy.refusal(0.0)["Retry-After"] == "1"


def test_name_of_a_policy_is_quoted_for_a_header():
    assert Policy('a"b\\ü\r\n', 1, 1).fields["RateLimit-Policy"] == r'"a\"b\\???";q=1;w=1'
