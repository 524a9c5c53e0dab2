"""Compares matches of MirrorFlow's Java regular expressions with those of `java.util.regex`.

One JVM evaluates all of them.
"""

import pytest

from mirrorflow_core.java.pattern_syntax import PatternSyntaxError
from mirrorflow_core.java.patterns import JavaPattern
from tests.harness.java_patterns import java_matches

pytestmark = pytest.mark.more

NAMES = (
    "", "a", "b", "ab", "aab", "aba", "abc", "a.b", "axb", "a-b", "a_b", "A", "AB", "Ab", "aB", "orders",
    "orders.eu", "orders-1", "orders1", "Orders", "__consumer_offsets", "mm2-offsets.east.internal",
    "heartbeats", "west.heartbeats", "12", "a1", "a12", "1", "x", "z", "a\n", "a\r\n", "\n", "a b", "a\tb",
    "\t", "\xe9", "\xc9", "K", "k", "\u212a", "s", "S", "\u017f", "\xdf", "\u03b1", "\u0391", "\u0661",
    "a\u2028", "a\x85b", "\\", r"a\b", "[", "]", "{", "}", "a{", "&", "a&b", "-", "^", "$", "~", "|", ".",
    "aaaaaaaaaaaaaaaaaaaaaaaaaaaaaa", "aaaa", "abab", "aabb", "abba", "foo.bar.baz", "Q", "E", "#", "a#b",
    "\U0001f600", "\x01", "\x0b", "\xa0", "a}", "aa", "#a", "Aa", "aA", "e", "d", "D", "w", "ad", "bb",
    "aaaaa", "bar", "foobar", "foo", "barfoo", "a,b", "a:b", "a\n\n", "a\nb", "a\rb",
)  # fmt: skip
PATTERNS = (
    ".*", "orders.*", r"orders\..*", "[a-z]+", r"[a-z]+\.[a-z]+", "a|ab", "(a|ab)(c|bcd)?", "(?:a|b)*",
    "a?", "a*?", "a*+a", "a++", "a++b", "(?>a+)b", "(?>a|ab)c", "(?=a).*", "(?!a).*", ".*(?<=b)",
    ".*(?<!b)", "(?<=a{1,3})b", ".*(?<=a{1,3})b", ".*(?<=a+)b", ".*(?<=a*)b", ".*(?<=ab|a)", "(?<x>a)",
    r"(?<x>a)b\k<x>", "(?<x>a)(?<x>b)", r"(?<x1>a)\1", "(?<1x>a)", "(?<x_y>a)", "(?P<x>a)", r"\k<x>",
    r"(a)(b)\2\1", r"\Qa.b\E.*", r"\Qa.b", r"\Q\E", r"\Qab\E+", r"a\Q\\\E?b", r"\\Qa", r"\Q12\E", r"a\1",
    r"a\Q1\E", r"(a)\Q1\E", r"\p{Alpha}+", r"\p{Lower}+", r"\p{Upper}+", r"\p{Digit}+", r"\p{Alnum}+",
    r"\p{Punct}", r"\p{Graph}+", r"\p{Print}+", r"\p{Blank}", r"\p{Cntrl}", r"\p{XDigit}+", r"\p{Space}",
    r"\p{ASCII}*", r"\P{Alpha}+", r"\p{L}+", r"\pL+", r"\PL", r"\p{Lu}", r"\p{Ll}", r"\p{N}", r"\p{Nd}",
    r"\p{IsAlphabetic}", r"\p{IsLatin}+", r"\p{InGreek}", r"\p{IsGreek}", r"\p{script=Greek}",
    r"\p{sc=Latin}", r"\p{block=Greek}", r"\p{blk=BasicLatin}+", r"\p{gc=Lu}", r"\p{general_category=Lu}",
    r"\p{IsL}", r"\p{IsLowercase}", r"\p{IsUppercase}", r"\p{IsWhite_Space}", r"\p{IsPunctuation}",
    r"\p{IsDigit}", r"\p{IsControl}", r"\p{javaLowerCase}", r"\p{javaUpperCase}", r"\p{javaWhitespace}",
    r"\p{javaLetterOrDigit}", r"\p{L1}", r"\p{LC}", r"\p{all}", r"\p{Foo}", r"\p{IsFoo}", r"\p{InFoo}",
    r"\p{lower}", r"\p{alpha}", r"\p{foo=bar}", r"\p{}", r"\p", r"\p{L", "[[:alpha:]]", "[a-z&&[^b]]",
    "[a-z&&[^b]]+", "[a-z&&b]", "[a-z&&b-d]+", "[a-z&&[ab]c]", "[a-c[x-z]]", "[a-c[x-z]]+", "[^a-c[x-z]]",
    "[^a-z&&[ab]]", "[^a-z&&b]", "[a&&b]", "[a-z&&[^b]&&[^c]]", "[&&a]", "[a&&]", "[a&b]", "[a&]", "[&]",
    "[]a]", "[]", "[^]a]", "[^]", "[a", "[a-]", "[-a]", "[a-z-]", r"[a\-z]", r"[\w-]+", r"[\d.]+",
    r"[a-\d]", r"[\d-z]", "[z-a]", "[^a]", "[^^]", r"[\^a]", "[a^]", r"[\Qa-z\E]", r"[\Q]\E]",
    r"[\p{L}\d]+", r"[\p{L}&&[^a]]", r"[^\p{L}]", r"[\P{L}]", r"[\h]", r"[\x61-\x63]", r"[\u0061]",
    r"[\e\t\n]", "[|]", "[~]", "[~~a]", "[a||b]", "[a--b]", "[.]", "[$]", "[(]", "[{]", "[}]", "[a-[b]]",
    "[[a]-b]", r"[\b]", r"[\1]", r"[\R]", r"[\z]", r"[\cA]", r"[\0101]", r"\h", r"\H", r"\v", r"\V", r"\R",
    r"a\R", r"a\Rb", r"a\R\R", r"\R\n", r"\X", r"\X+", r"a\Z", r"a\Z\n", r"a\z", r"a\z\n", "a$", r"a$\n",
    r"a$\r\n", r"a\n$", "a$.*", "(?s)a$.*", "(?m)a$.*", "(?ms)a$.*", r"(?m)a$\nb", r"(?m)a\n^b", "(?m)^a$",
    "a^b", "^a", "^*a", "$*", "a$?", r"\Aa", r"\Ga", r"a\G", "a.", "a.b", "(?s)a.", "(?s)a.b", "(?d)a.",
    "(?d)a.b", "(?i)a", "(?i)ab", "(?i)orders", "(?i)[a-z]+", "(?i)[^a]", "(?i)k", "(?iu)k", "(?iu)s",
    "(?i)s", r"(?i)\xe9", r"(?iu)\xe9", "(?iu)\xe9", "(?i)\xdf", "(?iu)\xdf", r"(?iu)\u03b1", "(?iu)[a-z]",
    r"(?i)\p{Lower}", r"(?i)\p{Upper}+", r"(?i)\p{Lu}", r"(?i)\p{L}", r"(?i)(a)\1", "(?i:a)b", "a(?i)b",
    "a(?i)b|b", "(?i)a|b", "a|(?i)b|a", "(a(?i)b)b", "(?-i)a", "(?i)a(?-i)b", "(?i-s:a)b",
    "(?x) a b # comment", r"(?x)a\ b", "(?x)[a b]", "(?x)a +", "(?x) [#]", r"(?x)\#a", r"(?U)\w", r"(?U)\d",
    r"(?U)\p{Alpha}", r"(?U)\p{Lower}+", r"(?U)\s", "(?u)a", "(?L)a", "(?)a", "(?i", "(?", "(?#a)b", "(?:",
    "(", ")", "a)", "(a", "*", "+a", "?", "a**", "a*?+", "a+*", "a{2}", "a{2,}", "a{1,2}", "a{,2}", "a{2}+",
    "a{2}?", "a{2,1}", "a{", "a{x", "a{2", "a{2,x}", "{", "{1}", "}", "]", "a}", "a{1}{2}", "a{2}{2}",
    "a{99999999999}", "(?i)*", "|", "||", "a|", "|a", "a||b", "()", "()*", "(a|)*", "(a*)*", "(a*)+",
    r"(a|b\1)+", r"\1(a)", r"(a)\2", r"(a)\11", r"(a)\10", r"\1", r"\0", r"\01", r"\061", r"\0101",
    r"\0377", r"\0777", r"\x61", r"\x{61}", r"\x{1F600}", r"\x{110000}", r"\x6", r"\x", r"\u0061", r"\u006",
    r"\uD83D\uDE00", r"\N{LATIN SMALL LETTER A}", r"\N{FOO}", r"\cA", r"\c", r"\a", r"\e", r"\f", r"\t",
    r"\n", r"\d+", r"\D+", r"\w+", r"\W+", r"\s", r"\S+", r"a\b.b", "\\", r"\C", r"\E", r"\F", r"\I", r"\K",
    r"\L", r"\M", r"\O", r"\T", r"\Y", r"\g", r"\i", r"\j", r"\l", r"\m", r"\o", r"\q", r"\y", r"\-", r"\_",
    r"\.", "\\\xe9", r"\#", r"a\.b", "(?=a)*a", "(?!b)?a", "(?<!b)*a", "(?:)*", "(?:a){0}", "a{0}",
    "(a){2}", "(?:ab)+", "(?:a|aa)+", "(a+)+", "(.*)(.*)", "[a-z]*[._-][a-z]*", "(?i)[A-Z&&[^B]]+",
    "(?i)[k]", "(?iu)[j-l]", r"(?i)[\x41]", "foo(?=bar).*", "foo(?!bar).*", "(?:foo|bar)*", ".*foo", ".+?",
    ".??", r"[\w.]+\.internal", r"(?:.*\.)?heartbeats", r"mm2-.*\.internal", "__.*", "[^_].*",
    "(?!__)(?!mm2).*", "[a-zA-Z0-9._-]{1,249}", r"\p{Alpha}[\p{Alnum}._-]*", r"\w+(?:[.-]\w+)*",
    r"(?<topic>[a-z]+)(?:-(?<n>\d+))?", r"(\w)(\w)\2\1", r"(?<a>.)(?<b>.)\k<a>\k<b>", "a,b", "a:b", r"\,",
    "[,]", "~", "`", "@", "a&&b", "&&", "-", "a-b", '"', ".*(?<=a+?)b", ".*(?<=(ab)+)b", ".*(?<=(?:ab)*)b",
    ".*(?<=a{2,})b", ".*(?<=[ab]*)b", r".*(?<=(a)\1)b", "|{2}", "(?i){2}", "a{2}*", r"a\b-b", r"a\bb",
    r"\ba.*", r".*\Bb",
)  # fmt: skip


def _matches(pattern: str) -> list[str]:
    try:
        compiled = JavaPattern(pattern)
    except PatternSyntaxError:
        return ["E"] * len(NAMES)
    return ["1" if compiled.matches(name) else "0" for name in NAMES]


def test_patterns_match_as_in_java():
    """Both engines refuse the same patterns. `\\b` beyond ASCII is not compared, because it changed with Java 19."""
    questions = [(pattern, name) for pattern in PATTERNS for name in NAMES]
    results = iter(java_matches(questions))

    java_results = {pattern: [next(results) for _ in NAMES] for pattern in PATTERNS}

    assert {} == {
        pattern: [
            (name, java, matches)
            for name, java, matches in zip(NAMES, java_result, _matches(pattern), strict=True)
            if java != matches
        ]
        for pattern, java_result in java_results.items()
        if java_result != _matches(pattern)
    }
