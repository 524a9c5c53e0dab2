"""Java's regular expressions: syntax, whole-name matches, and the limits of a match."""

import re
import subprocess
import sys
import time
from contextlib import suppress

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mirrorflow_core.errors import InvalidSettingError
from mirrorflow_core.java import patterns
from mirrorflow_core.java.pattern_syntax import PatternSyntaxError, SlowPatternError, unquoted
from mirrorflow_core.java.patterns import JavaPattern, Replacement, compile_patterns

NAME_MAX = 249
# In any backtracking engine, including this one, the time is exponential in the length of the name.
CATASTROPHE = "(a|a)*"


@pytest.mark.parametrize(
    ("pattern", "matching", "other"),
    [
        (r"\Qa.b\E.*", "a.bc", "axb"),
        (r"\Qa.b", "a.b", "axb"),
        (r"\p{Alpha}+", "orders", "orders1"),
        (r"[\p{Alpha}_]+\p{Digit}", "ab_1", "a-1"),
        (r"[\P{Alpha}]+", "12", "a"),
        (r"\P{Upper}+", "abc", "aBc"),
        (r"\pL+", "abc", "ab1"),
        (r"\p{IsGreek}", "\u03b1", "a"),
        ("(?<x>a)", "a", "b"),
        (r"(?<n>a)\k<n>", "aa", "ab"),
        ("a++b", "aab", "aa"),
        ("(?>a+)b", "ab", "a"),
        ("(?>a|ab)c", "ac", "abc"),
        ("(?!secret).*", "orders", "secret-1"),
        (".*(?<=-eu)", "orders-eu", "orders-us"),
        (".*(?<!-eu)", "orders-us", "orders-eu"),
        ("[a-z&&[^b]]+", "ac", "ab"),
        ("[a-c[x-z]]+", "ax", "d"),
        ("[^a-c[x-z]]+", "d", "x"),
        ("[]a]+", "]a", "b"),
        ("[a||b~~c]+", "a|b~", "d"),
        (r"a\h", "a\u3000", "a\n"),
        (r"a\R", "a\r\n", "a\n\n"),
        (r"a\Z\n", "a\n", "a"),
        (r"a\z", "a", "a\n"),
        (r"a$\n", "a\n", "a"),
        ("(?m)a$\n^b", "a\nb", "a\n"),
        ("(?s)a.b", "a\nb", "a"),
        ("a.b", "axb", "a\nb"),
        ("(?i)orders", "ORDERS", "OTHER"),
        ("x(?i:y)", "xY", "XY"),
        ("x(?i)y|z", "Z", "XY"),
        ("(?i)k", "K", "\u212a"),
        ("(?iu)k", "\u212a", "s"),
        ("(?i)\u00e9", "\u00e9", "\u00c9"),
        ("(?x) a b # comment", "ab", "a b"),
        (r"\w+\z", "abc", "a-c"),
        (r"\d+", "12", "\u0661\u0662"),
        (r"\s", "\t", "\xa0"),
        (r"\w", "a", "\u00e9"),
        (r"(?U)\w", "\u00e9", "-"),
        (r"a\b.b", "a-b", "aab"),
        (r"\0101\x61\u0062\x{63}\cA", "Aabc\x01", "Aabc"),
        (r"(a)\1{2}", "aaa", "aa"),
        ("a{1}{2}", "a", "aa"),
        ("(foo(a|b))", "foob", "b"),
    ],
)
def test_whole_names_match_as_in_java(pattern: str, matching: str, other: str):
    compiled = JavaPattern(pattern)

    assert compiled.matches(matching)
    assert not compiled.matches(other)


@pytest.mark.parametrize(
    "pattern",
    [
        "(", ")", "*a", "a**", "[a", "[]", "[z-a]", r"[a-\d]", "(?P<n>a)", "(?#x)", "(?<n>a)(?<n>b)", r"\k<n>", r"[\k<n>]",
        r"\p{Foo}", r"\p{IsFoo}", r"\y", r"\x6", "a{", "a{2,1}", ".*(?<=(ab)+)", "(?c)a", r"\b{g}", "\\", "(" * 200 + ")" * 200,
    ],
)  # fmt: skip
def test_patterns_that_java_refuses_or_that_are_not_supported_are_refused(pattern: str):
    with pytest.raises(PatternSyntaxError):
        JavaPattern(pattern)


def test_a_quotation_quotes_single_characters():
    r"""Java reads `\Qab\E+` as `ab+`. `\\Q` is an escaped backslash."""
    assert r"ab+\.\*" == unquoted(r"\Qab\E+\Q.*")
    assert r"\\Qa" == unquoted(r"\\Qa")
    assert r"\x312" == unquoted(r"\Q12\E")


literal_names = st.text(st.sampled_from("abAB1.-_"), max_size=8)
plain_patterns = st.lists(
    st.sampled_from(["a", "b", "B", "1", r"\.", "-", "_", ".", ".*", "a*", "b+?", "[ab]", "[^a]+", "(a|b)", r"\d", r"\w+", "a{1,2}"]),
    max_size=6,
).map("".join)  # fmt: skip


@given(pattern=plain_patterns, name=literal_names)
def test_plain_patterns_agree_with_pythons_re(pattern: str, name: str):
    assert JavaPattern(pattern).matches(name) == (re.fullmatch(pattern, name, re.ASCII) is not None)


@given(name=st.text(max_size=20))
def test_a_quoted_name_matches_only_itself(name: str):
    quoted = JavaPattern("\\Q" + name.replace("\\E", "") + "\\E")

    assert quoted.matches(name.replace("\\E", ""))
    assert not quoted.matches(name + "x")


@pytest.mark.parametrize("pattern", ["(a+)+$", CATASTROPHE, "(a|aa)+", "([a-z]+)*1", "(.*a){12}b"])
def test_a_match_ends_within_the_time_limit(pattern: str):
    """It ends with a result or an error, even for the longest possible topic name."""
    compiled, start_s = JavaPattern(pattern), time.process_time()

    with suppress(SlowPatternError):
        assert not compiled.matches("a" * (NAME_MAX - 1) + "!")

    assert time.process_time() - start_s < 3 * patterns.MATCH_LIMIT_S


def test_the_error_names_the_pattern_the_name_and_the_remedy():
    with pytest.raises(SlowPatternError) as raised:
        JavaPattern(CATASTROPHE).matches("a" * 100 + "!")

    assert (
        str(raised.value)
        == f"'(a|a)*' cannot be matched against '{'a' * 60}...': that takes longer than 0.1 s"
    )
    assert "write it without a repetition inside a repetition" in raised.value.action


def test_a_pattern_that_timed_out_is_not_tried_again_within_the_window():
    compiled = JavaPattern(CATASTROPHE)
    with pytest.raises(SlowPatternError):
        compiled.matches("a" * 100 + "!")
    start_s = time.process_time()

    for _ in range(1000):
        with pytest.raises(SlowPatternError):
            compiled.matches("b")

    assert time.process_time() - start_s < 5 * patterns.MATCH_LIMIT_S


def test_a_pattern_that_timed_out_is_tried_again_in_a_new_window(monkeypatch: pytest.MonkeyPatch):
    """The topic with the slow name may have been deleted."""
    monkeypatch.setattr(patterns, "WINDOW_S", 0.0)
    compiled = JavaPattern(CATASTROPHE)
    with pytest.raises(SlowPatternError):
        compiled.matches("a" * 100 + "!")

    assert compiled.matches("aa")


def test_the_total_time_for_all_names_is_limited(monkeypatch: pytest.MonkeyPatch):
    """The limit applies even if no single name is slow."""
    monkeypatch.setattr(patterns, "WINDOW_LIMIT_S", 0.0)
    monkeypatch.setattr(patterns, "SLOW_MATCH_S", 0.0)

    with pytest.raises(SlowPatternError, match=r"with the names before it that takes longer than 0 s"):
        JavaPattern("[a]").matches("a")


def test_ten_thousand_names_take_less_than_a_second():
    pattern = JavaPattern(r"orders\..*|payments-\d+|(?!secret)[a-z]+(?:[.-][a-z0-9]+)*")
    names = [f"team-{number % 97}.orders-{number}.events" for number in range(10_000)]
    start_s = time.process_time()

    assert all(map(pattern.matches, names))
    assert time.process_time() - start_s < 1.0


def test_simple_patterns_do_not_import_the_regex_package():
    """The package takes 2 MiB in every process. The defaults of MM2 do not need it."""
    code = (
        "import sys; from mirrorflow_core.java.patterns import JavaPattern;"
        "JavaPattern(r'.*|mm2.*\\.internal|.*\\.replica|__.*|console-consumer-.*|orders\\..+').matches('x');"
        "assert 'regex' not in sys.modules; JavaPattern('(a)'); assert 'regex' in sys.modules"
    )

    assert 0 == subprocess.run([sys.executable, "-c", code], check=False).returncode


@pytest.mark.parametrize("pattern", [".*a.*b", "a|.+", "orders.*|pay.*|x", "a.b", "|a"])
@given(name=st.text(st.sampled_from("ab\n\r\u2028.x"), max_size=6))
def test_both_engines_agree(pattern: str, name: str):
    assert JavaPattern(pattern).matches(name) == JavaPattern(f"(?:{pattern})").matches(name)


def test_the_engine_without_a_time_limit_is_fast_in_its_worst_case():
    """The worst case is the largest number of repetitions and a name that almost matches."""
    slowest, start_s = JavaPattern("|".join([r".*a.*\.b"] * 100)), time.process_time()

    assert not slowest.matches("a" * NAME_MAX)
    assert time.process_time() - start_s < 1.0


def test_a_list_matches_as_its_joined_items():
    """As in MirrorUtils.compilePatternList, a group may span items, and flags apply to later items."""
    assert compile_patterns("topics", ("orders", "pay.*")).matches("payments")
    assert compile_patterns("topics", ("foo(a", "b)")).matches("foob")
    assert compile_patterns("topics", ("(?i)a", "b")).matches("B")
    assert not compile_patterns("topics", ("orders", "pay.*")).matches("xorders")
    assert not compile_patterns("topics", ()).matches("")


list_items = st.sampled_from(
    [
        "a",
        "a.b",
        r"a\.b",
        "a|b.",
        "b.*",
        "",
        "[ab]",
        "(?i)a",
        "(?i:b)",
        "(a",
        "b)",
        r"\Qa",
        "(a)",
        r"\1",
        "a.*b.*.*",
        "A",
    ]
)


@given(
    items=st.lists(list_items, min_size=1, max_size=4),
    names=st.lists(st.text("abA.\n", max_size=4), max_size=20),
)
def test_every_list_matches_as_its_joined_items(items: list[str], names: list[str]):
    try:
        joined = JavaPattern("|".join(items))
    except PatternSyntaxError:
        with pytest.raises(InvalidSettingError):
            compile_patterns("topics", tuple(items))
        return
    pattern = compile_patterns("topics", tuple(items))
    for name in names:
        assert joined.matches(name) == pattern.matches(name)


def test_a_list_of_names_with_one_expression_is_compiled_and_matched_fast():
    """The list has 1 MiB. Joined to one expression, it takes minutes, in which the process responds to no request."""
    names = [f"team-{number % 97}.orders-{number:06}.events" for number in range(36_000)]
    start_s = time.process_time()

    pattern = compile_patterns("topics", (*names, "pay[a-z]+"))

    assert pattern.matches(names[-1])
    assert pattern.matches("payments")
    assert not any(pattern.matches(f"team-{number % 97}.orders-{number:06}.other") for number in range(1_000))
    assert time.process_time() - start_s < 5.0


@pytest.mark.parametrize(
    "items",
    [
        [f"orders-{number}[ab]" for number in range(5_000)],
        [f"orders-{number}.*" for number in range(5_000)],
        ["(?i)a", *(f"orders-{number}" for number in range(7_000))],
        ["a" * 70_000 + "[b]"],
    ],
)
def test_more_expressions_than_can_be_compiled_in_time_are_refused(items: list[str]):
    with pytest.raises(
        InvalidSettingError, match=r"^topics: its expressions have \d+ characters, and at most 65536"
    ):
        compile_patterns("topics", tuple(items))


def test_the_slow_expression_is_found_behind_many_names():
    names = tuple(f"orders-{number}" for number in range(100))

    with pytest.raises(InvalidSettingError) as raised:
        compile_patterns("topics", (*names, "a[b]", CATASTROPHE)).matches("a" * 100 + "!")

    assert raised.value.problem.startswith(f"{CATASTROPHE!r} cannot be matched")


def test_the_error_names_the_slow_item_of_a_list():
    with pytest.raises(InvalidSettingError) as raised:
        compile_patterns("topics", ("orders", CATASTROPHE, "pay.*")).matches("a" * 100 + "!")

    assert raised.value.key == "topics"
    assert raised.value.problem.startswith(f"{CATASTROPHE!r} cannot be matched")


def test_a_list_that_timed_out_tries_its_items_once():
    """The slow item is determined once for all names of the window."""
    pattern = compile_patterns("topics", ("orders", CATASTROPHE, "pay.*"))
    start_s = time.process_time()

    for number in range(100):
        with pytest.raises(InvalidSettingError):
            pattern.matches("a" * 100 + f"-{number}")

    assert time.process_time() - start_s < 5 * patterns.MATCH_LIMIT_S


def test_the_error_names_the_invalid_item_of_a_list():
    for items, invalid in ((("fine", "b)"), "b)"), (("(?<n>a)", "(?<n>b)"), "(?<n>a)|(?<n>b)")):
        with pytest.raises(InvalidSettingError) as raised:
            compile_patterns("topics", items)
        assert raised.value.problem.startswith(f"{invalid!r} cannot be used")


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
def test_replacements_equal_those_of_java(regex: str, replacement: str, text: str, expected: str):
    """The expected values are the output of a Java Matcher."""
    pattern = JavaPattern(regex)
    match = pattern.find(text)

    assert match is not None
    assert Replacement(replacement, pattern).first(match) == expected


@pytest.mark.parametrize("text", ["$2", "$", "x\\", "${no}", "${1}"])
def test_a_replacement_that_java_refuses_is_refused_when_it_is_parsed(text: str):
    with pytest.raises(ValueError, match=r"group|backslash"):
        Replacement(text, JavaPattern("(.*)"))


@pytest.mark.parametrize("pattern", ["${TOPICS}", "${env:TOPICS}", "a|${T}.*", "${x"])
def test_an_unreplaced_placeholder_has_its_own_error(pattern: str) -> None:
    with pytest.raises(PatternSyntaxError, match=r"^nothing has replaced \$\{\w*:?\w+\}$"):
        JavaPattern(pattern)
    with pytest.raises(InvalidSettingError, match="; write the value that it stands for"):
        compile_patterns("topics", (pattern,))


@pytest.mark.parametrize(
    "pattern", ["a{2147483647}", "((a{1000}){1000}){1000}", "[a-z]{60000}" * 2, "(a{400}b){400,}"]
)
def test_a_repetition_that_no_name_can_have_is_refused(pattern: str) -> None:
    """Compiled, the first takes a minute and 3 GiB. Anyone who may validate a configuration can send it."""
    with pytest.raises(InvalidSettingError, match="its repetitions require more than 100000 characters"):
        compile_patterns("topics", (pattern,))


def test_long_lists_and_optional_repetitions_are_no_required_characters() -> None:
    names = tuple(f"topic-{number:06}" for number in range(10_000))

    assert compile_patterns("topics", (*names, "o{2}ps")).matches("oops")
    assert JavaPattern("a{1,2147483647}").matches("aaa")
    assert JavaPattern("(?:ab{10}){10}").matches(("a" + 10 * "b") * 10)
