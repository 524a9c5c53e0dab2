"""Properties files are parsed and formatted as by `java.util.Properties`."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mirrorflow_core.errors import InvalidSettingError
from mirrorflow_core.java.properties import (
    PropertyReader,
    format_properties,
    parse_properties,
    trailing_comment,
)

TEXTS = st.text(st.characters(exclude_categories=["Cs"]))


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("a=b", {"a": "b"}),
        ("a = b", {"a": "b"}),
        ("a:b", {"a": "b"}),
        ("a b", {"a": "b"}),
        ("a\t:\tb", {"a": "b"}),
        ("a = = b", {"a": "= b"}),
        ("  a=b  ", {"a": "b  "}),
        ("a", {"a": ""}),
        ("a=", {"a": ""}),
        ("=b", {"": "b"}),
        ("# c=d\n! e=f\n  # g\na=b", {"a": "b"}),
        ("a=b # no comment", {"a": "b # no comment"}),
        ("a=1\na=2", {"a": "2"}),
        ("a=b\\\n   c", {"a": "bc"}),
        ("a=b\\\\\nc=d", {"a": "b\\", "c": "d"}),
        ("a=b\\\n# c", {"a": "b# c"}),
        ("# c\\\na=b", {"a": "b"}),
        ("a=b\\\n\nc=d", {"a": "b", "c": "d"}),
        ("\\\n\na=b", {"a": "b"}),
        ("a=b\\", {"a": "b"}),
        ("a\\=b\\:c\\ d=e", {"a=b:c d": "e"}),
        ("a=\\t\\n\\r\\f\\q\\#\\!", {"a": "\t\n\r\fq#!"}),
        ("a=\\u00e9\\u20AC", {"a": "é€"}),
        ("a=\\uD83D\\uDE00", {"a": "\U0001f600"}),
        ("a=1\r\nb=2\rc=3\n", {"a": "1", "b": "2", "c": "3"}),
        ("\ufeffa=1", {"a": "1"}),
        ("A->B.enabled = true", {"A->B.enabled": "true"}),
        ("clusters: A, B", {"clusters": "A, B"}),
    ],
)
def test_text_is_parsed_as_in_java(text: str, expected: dict[str, str]):
    """Separators, escapes, continuations and comments follow java.util.Properties."""
    assert expected == parse_properties(text)


@pytest.mark.parametrize("text", ["password=\\u12", "password=\\uzzzz"])
def test_a_malformed_escape_is_refused_without_showing_the_value(text: str):
    """Java throws an exception too. The error names only the key, because the value may be a password."""
    with pytest.raises(InvalidSettingError, match=r"^password: ") as raised:
        parse_properties(text)
    assert text.partition("=")[2] not in str(raised.value)


@given(st.dictionaries(TEXTS, TEXTS))
def test_formatted_properties_are_parsed_back(properties: dict[str, str]):
    """This holds for any text. The output is ASCII, so that any encoding can read it."""
    text = format_properties(properties)

    assert text.isascii()
    assert properties == parse_properties(text)


def test_formatted_values_stay_readable():
    """Separators are escaped only in keys."""
    text = format_properties({"a b": "x=y: #1", "jaas": 'm required u="\\\\a";', "blank": " x"})

    assert text == 'a\\ b=x=y: #1\njaas=m required u="\\\\\\\\a";\nblank=\\ x\n'


@given(st.text())
def test_any_properties_text_is_parsed_or_refused(text: str):
    """No text causes an error other than InvalidSettingError."""
    try:
        parse_properties(text)
    except InvalidSettingError:
        assert "\\u" in text


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        ("true  # comment", "true"),
        ("SSL // if needed", "SSL"),
        ("# all of it", ""),
        ("http://host:80/a#b", None),
        ("a#b//c", None),
        ("plain", None),
    ],
)
def test_a_comment_after_a_value_is_detected(value: str, expected: str | None):
    """A comment must follow white space, because addresses contain `//` and `#`."""
    assert expected == trailing_comment(value)


@pytest.mark.parametrize("digits", [101, 5_000])
def test_a_number_with_more_digits_than_any_setting_has_is_refused(digits: int) -> None:
    """Python's own error for thousands of digits would be a traceback, or a failed call of REST."""
    read = PropertyReader({"a": "9" * digits})

    with pytest.raises(InvalidSettingError, match=r"a: .* is not a whole number"):
        read.whole("a", minimum=0)
    with pytest.raises(InvalidSettingError, match=r"a: .* is not a number of bytes"):
        read.size_bytes("a")
