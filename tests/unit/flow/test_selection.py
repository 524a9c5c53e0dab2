"""Which topics are copied: Kafka's MirrorSourceConnectorTest, its cycles, and Java's expressions."""

import pytest

from mirrorflow_replicator.errors import InvalidSettingError
from mirrorflow_replicator.flow.patterns import compile_patterns
from mirrorflow_replicator.flow.policy import DefaultPolicy, IdentityPolicy, ReplicationPolicy
from mirrorflow_replicator.flow.selection import TopicSelection

DEFAULT = DefaultPolicy()
IDENTITY = IdentityPolicy("source")


def selection(
    include: str = ".*", exclude: str = "", policy: ReplicationPolicy = DEFAULT, *, heartbeats: bool = True
) -> TopicSelection:
    return TopicSelection(
        include=tuple(filter(None, include.split(","))),
        exclude=tuple(filter(None, exclude.split(","))),
        policy=policy,
        source_alias="source",
        target_alias="target",
        heartbeats=heartbeats,
    )


@pytest.mark.parametrize(
    ("policy", "topic", "expected"),
    [
        (DEFAULT, "topic1", True),
        (DEFAULT, "target.topic1", False),
        (DEFAULT, "target.source.topic1", False),
        (DEFAULT, "source.target.topic1", False),
        (DEFAULT, "other.target.topic1", False),
        (DEFAULT, "other.topic1", True),
        (DEFAULT, "orders.v1", True),
        (DEFAULT, "source.topic1", False),
        (DEFAULT, "other.source.topic1", False),
        (DEFAULT, "target_topic1", True),
        (DefaultPolicy("_", "_"), "target_topic1", False),
        (DefaultPolicy("_", "_"), "target.topic1", True),
        (IDENTITY, "topic1", True),
        (IDENTITY, "target.topic1", True),
        (IDENTITY, "source.topic1", True),
        (IDENTITY, "target.heartbeats", False),
        (IDENTITY, "other.heartbeats", True),
    ],
)
def test_nothing_goes_in_circles(policy: ReplicationPolicy, topic: str, expected: bool):  # noqa: FBT001
    """testNoCycles, testIdentityReplication, and the rule of 4.4 for the source's own alias."""
    assert expected == selection(policy=policy).selects(topic)


@pytest.mark.parametrize(
    ("include", "heartbeats", "topic", "expected"),
    [
        ("topic.*", True, "heartbeats", True),
        ("topic.*", True, "other.heartbeats", True),
        ("topic.*", True, "target.heartbeats", False),
        ("topic.*", False, "heartbeats", False),
        (".*", False, "heartbeats", True),
    ],
)
def test_heartbeats_pass_the_filter_unless_switched_off(
    include: str,
    heartbeats: bool,  # noqa: FBT001
    topic: str,
    expected: bool,  # noqa: FBT001
):
    """testReplicatesHeartbeatsByDefault, ...DespiteFilter, testDoesNotReplicateHeartbeats (KIP-1089)."""
    assert expected == selection(include, heartbeats=heartbeats).selects(topic)


@pytest.mark.parametrize(
    ("include", "exclude", "topic", "why"),
    [
        (".*", "", "orders", "`topics` matches it"),
        ("orders", "", "orders-2", "`topics` does not match it"),
        ("", "", "orders", "`topics` does not match it"),
        (".*", "ord.*", "orders", "`topics.exclude` matches it"),
        (".*", "", "__consumer_offsets", "it is an internal topic"),
        (".*", "", "target.orders", "it came from the target, target"),
        (".*", "", "source.orders", "its name says that it was copied from the source, source, before"),
        ("x", "", "heartbeats", "it holds heartbeats"),
    ],
)
def test_every_decision_has_a_reason(include: str, exclude: str, topic: str, why: str):
    """What `mirrorflow plan` prints."""
    assert why == selection(include, exclude).why(topic)


def test_default_excludes_of_kafka_4():
    """`mm2.*.internal`, `.*.replica`, `__.*`; a user's `orders.internal` is copied."""
    chosen = selection(".*", "mm2.*\\.internal,.*\\.replica,__.*")

    assert [chosen.selects(topic) for topic in ("orders.internal", "x.replica")] == [True, False]


@pytest.mark.parametrize(
    "policy", [DEFAULT, DefaultPolicy("_", "_"), IdentityPolicy("source", DefaultPolicy("-", "-"))]
)
@pytest.mark.parametrize("part", ["identity", "offsets", "configs", "status"])
def test_books_of_a_flow_are_never_copied(policy: ReplicationPolicy, part: str):
    """Their names have dots whatever the separator, and no list of excludes is needed: a copy under the same name
    would be another flow's positions."""
    books = selection(".*", "mine", policy)

    assert "it is an internal topic" == books.why(f"mm2-{part}.other.internal")
    assert books.selects(f"mm2-{part}.other.internally")


def test_books_of_a_flow_pass_no_filter():
    """A filter of the user's own that admits everything admits them as little."""
    chosen = TopicSelection(
        include=(), exclude=(), policy=DefaultPolicy("_", "_"), source_alias="source", target_alias="target",
        heartbeats=False, admits=lambda _: True,
    )  # fmt: skip

    assert [chosen.selects(topic) for topic in ("yes", "mm2-identity.a.internal")] == [True, False]


def test_own_separator_leaves_other_names_with_dots_to_the_excludes():
    """As Java since 4.0: only names with the separator are internal by themselves."""
    chosen = selection(".*", "", DefaultPolicy("_", "_"))
    topics = ("mm2-offset-syncs_b_internal", "mm2-offset-syncs.b.internal", "mm2-mine.internal")

    assert [chosen.selects(topic) for topic in topics] == [False, True, True]


def test_own_filter_decides_instead_of_the_lists():
    """But internal topics and cycles stay out."""
    chosen = TopicSelection(
        include=(), exclude=(), policy=DEFAULT, source_alias="source", target_alias="target", heartbeats=False,
        admits=lambda topic: topic != "no",
    )  # fmt: skip

    assert [chosen.selects(topic) for topic in ("yes", "no", "target.yes")] == [True, False, False]


@pytest.mark.parametrize(
    ("patterns", "matching", "other"),
    [
        (("orders", "pay.*"), "payments", "xorders"),
        (("a|bc",), "bc", "ac"),
        (("foo(a", "b)"), "foob", "b"),
        (("\\Qa.b\\E.*",), "a.bc", "axb"),
        (("\\Qa.b",), "a.b", "axb"),
        (("[\\p{Alpha}_]+\\p{Digit}",), "ab_1", "a-1"),
        (("\\P{Upper}+",), "abc", "aBc"),
        (("\\pL+",), "abc", "ab1"),
        (("(?<n>a)\\k<n>",), "aa", "ab"),
        (("a++b",), "aab", "aa"),
        (("(?>a+)b",), "ab", "a"),
        (("(?i)orders",), "ORDERS", "OTHER"),
        (("x(?i:y)",), "xY", "XY"),
        (("(?!secret).*",), "orders", "secret-1"),
        (("\\w+\\z",), "abc", "a-c"),
        (("[a||b~~c]+",), "a|b~", "d"),
        (("[]a]+",), "]a", "b"),
        (("\\x61\\u0062\\x{63}",), "abc", "abd"),
        (("\\d+",), "12", "١٢"),
    ],
)
def test_java_s_expressions_match_whole_names(patterns: tuple[str, ...], matching: str, other: str):
    """One expression of all items, as MirrorUtils.compilePatternList builds it."""
    compiled = compile_patterns("topics", patterns)
    assert compiled is not None

    assert compiled.fullmatch(matching)
    assert not compiled.fullmatch(other)


@pytest.mark.parametrize(
    "pattern",
    [
        "(", "*a", "[a", "[a-c[x-z]]", "[a-z&&[^b]]", "\\G", "\\X", "\\p{IsGreek}", "a(?i)b", "(?x)a", "(?P<n>a)", "(?#x)",
        "[\\P{Alpha}]", "[\\k<n>]", "\\0101",
    ],
)  # fmt: skip
def test_what_cannot_be_translated_is_named(pattern: str):
    """The key and the item; never a silent other meaning."""
    with pytest.raises(InvalidSettingError) as raised:
        compile_patterns("topics", ("fine", pattern))
    assert raised.value.key == "topics"
    assert repr(pattern) in str(raised.value)
