"""Names built from a framework's data."""

import pytest

from redsync.contrib.names import LONGEST, NameTemplate, shortened


def test_name_is_filled_in_from_the_request():
    template = NameTemplate("order:{number}:{client}")
    assert template.fields == {"number", "client"}
    assert template.fill({"number": 7, "client": "::1", "more": 1}) == "order:7:::1"
    assert NameTemplate("plain").fill({}) == "plain"
    assert NameTemplate("{{x}}").fill({}) == "{x}"


def test_error_of_a_missing_value_names_it():
    with pytest.raises(LookupError, match=r"'order:\{number\}' needs number, but there is only client, id$"):
        NameTemplate("order:{number}").fill({"id": 1, "client": 2})
    with pytest.raises(LookupError, match=r"but there is only nothing$"):
        NameTemplate("order:{number}").fill({})


def test_name_that_values_make_too_long_is_replaced_by_its_hash():
    template = NameTemplate("{a}")
    assert template.fill({"a": "ä" * 256}) == "ä" * 256
    assert len(template.fill({"a": "ä" * 257})) == len(template.fill({"a": "\ud800" * 200})) == 64


def test_values_are_not_templates():
    assert NameTemplate("{a}").fill({"a": "{b}"}) == "{b}"


@pytest.mark.parametrize("text", ["", "{}", "{0}", "{a.b}", "{a[0]}", "x{", "x}"])
def test_bad_template_is_refused(text):
    with pytest.raises(ValueError, match="name"):
        NameTemplate(text)


def test_name_that_is_not_a_string_is_refused():
    with pytest.raises(TypeError, match=r"not b'x'"):
        NameTemplate(b"x")


def test_long_text_is_replaced_by_its_hash():
    assert shortened("x" * LONGEST) == "x" * LONGEST
    longer, other = shortened("x" * LONGEST + "y"), shortened("x" * LONGEST + "z")
    assert len(longer) == len(other) == 64
    assert longer != other
    assert len(shortened("ä" * LONGEST)) == 64
