"""Java's replacement strings."""

import pytest

from mirrorflow_core.java.patterns import JavaPattern
from mirrorflow_core.java.replacement_strings import Replacement


@pytest.mark.parametrize(
    ("regex", "replacement", "text", "expected"),
    [
        ("a|ab", "$0x", "ab", "axb"),
        ("(.)(.*)", "$2$1", "abc", "bca"),
        ("(a)(b)?", "<$2>", "a", "<>"),
        ("(x)", "$12", "x", "x2"),
        ("(?<n>.*)", "${n}!", "abc", "abc!"),
        ("(.*)", "\\$1", "abc", "$1"),
        ("(.*)", "a\\b", "abc", "ab"),
        (".*?(b*)", "[$1]", "aabb", "[]aabb"),
        ("(.*)", "$01", "abc", "abc"),
        ("(.*)", "", "abc", ""),
    ],
)
def test_replacements_are_those_of_java(regex: str, replacement: str, text: str, expected: str):
    """Each row was printed by a Java Matcher."""
    pattern = JavaPattern(regex)
    found = pattern.find(text)

    assert found is not None
    assert Replacement(replacement, pattern).first(found) == expected


@pytest.mark.parametrize("text", ["$2", "$", "x\\", "${no}", "${1}"])
def test_what_java_refuses_is_refused_when_it_is_read(text: str):
    with pytest.raises(ValueError, match=r"group|backslash"):
        Replacement(text, JavaPattern("(.*)"))


def test_equal_parts_are_an_equal_replacement():
    pattern = JavaPattern("(a)")

    assert Replacement("$1", pattern) == Replacement("$1", pattern) != Replacement("x", pattern)
