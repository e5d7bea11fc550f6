"""What modules of web frameworks share: names out of requests, and header fields as the drafts have them."""

import pytest

from redsync.contrib.http import NameTemplate, Policy


def test_name_is_filled_in_from_the_request():
    template = NameTemplate("order:{number}:{client}")
    assert template.fields == {"number", "client"}
    assert template.fill({"number": 7, "client": "::1", "more": 1}) == "order:7:::1"
    assert NameTemplate("plain").fill({}) == "plain"
    assert NameTemplate("{{x}}").fill({}) == "{x}"


def test_value_that_the_request_lacks_is_told():
    with pytest.raises(LookupError, match=r"'order:\{number\}' needs number, but the request has client, id$"):
        NameTemplate("order:{number}").fill({"id": 1, "client": 2})
    with pytest.raises(LookupError, match=r"but the request has nothing$"):
        NameTemplate("order:{number}").fill({})


def test_values_are_no_templates():
    assert NameTemplate("{a}").fill({"a": "{b}"}) == "{b}"


@pytest.mark.parametrize("text", ["", "{}", "{0}", "{a.b}", "{a[0]}", "x{", "x}"])
def test_bad_template_is_refused(text):
    with pytest.raises(ValueError, match="name"):
        NameTemplate(text)


def test_name_that_is_no_string_is_refused():
    with pytest.raises(TypeError, match=r"not b'x'"):
        NameTemplate(b"x")


def test_fields_are_structured_fields():
    policy = Policy("pay:{client}", 10, 60)
    assert policy.fields == {"RateLimit-Policy": '"pay:{client}";q=10;w=60'}
    assert policy.refusal(12.1) == {
        "RateLimit-Policy": '"pay:{client}";q=10;w=60',
        "RateLimit": '"pay:{client}";r=0;t=13',
        "Retry-After": "13",
    }


def test_seconds_are_rounded_up_and_never_none():
    policy = Policy("x", 1, 0.5)
    assert policy.fields["RateLimit-Policy"].endswith(";w=1")
    assert policy.refusal(0.0)["Retry-After"] == "1"


def test_name_of_a_policy_is_quoted_as_a_header_needs_it():
    assert Policy('a"b\\ü\r\n', 1, 1).fields["RateLimit-Policy"] == r'"a\"b\\???";q=1;w=1'
