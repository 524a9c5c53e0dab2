"""Which topics are copied: Kafka's MirrorSourceConnectorTest, its cycles, and Java's expressions."""

import pytest

from mirrorflow_core.errors import InvalidSettingError
from mirrorflow_core.java.patterns import compile_patterns, meant_by_glob
from mirrorflow_core.replication_policy import DefaultPolicy, IdentityPolicy, ReplicationPolicy
from mirrorflow_core.settings import TransformKind, TransformSettings
from mirrorflow_core.topics.topic_selection import TopicSelection
from mirrorflow_core.transforms import TopicTransforms, Transforms

DEFAULT = DefaultPolicy()
IDENTITY = IdentityPolicy(source_alias="source")


def selection(
    include: str = ".*", exclude: str = "", policy: ReplicationPolicy = DEFAULT, *, heartbeats: bool = True
) -> TopicSelection:
    return TopicSelection(
        include=tuple(filter(None, include.split(","))),
        exclude=tuple(filter(None, exclude.split(","))),
        naming=TopicTransforms(policy, "source"),
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
    ("pattern", "meant"),
    [
        ("orders*", "orders.*"),
        ("orders-*", "orders-.*"),
        ("a*b.c*", "a.*b.c.*"),
        ("orders.*", ""),
        (r"orders\.*", ""),
        ("(ab)*", ""),
        ("[ab]*c", ""),
        ("orders", ""),
        ("*orders", ""),
        (".*", ""),
    ],
)
def test_a_shells_pattern_is_recognised(pattern: str, meant: str):
    """Only where its * follows a character of a name; everything else is an expression."""
    assert meant == meant_by_glob(pattern)


def test_an_expression_that_selects_nothing_and_looks_like_a_shells_pattern_gets_a_hint():
    found = selection("order-*").nothing_selected(["order-eu", "orders"])

    assert found.endswith("`topics` has order-*: is order-.* meant?")


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
    "policy", [DEFAULT, DefaultPolicy("_", "_"), IdentityPolicy("-", "-", source_alias="source")]
)
@pytest.mark.parametrize("part", ["identity", "claims", "offset-map", "offsets", "configs", "status"])
def test_books_of_a_flow_are_never_copied(policy: ReplicationPolicy, part: str):
    """Their names have dots whatever the separator, and no list of excludes is needed: a copy under the same name
    would be another flow's positions."""
    books = selection(".*", "mine", policy)

    assert "it is an internal topic" == books.why(f"mm2-{part}.other.internal")
    assert books.selects(f"mm2-{part}.other.internally")


def test_books_of_a_flow_pass_no_filter():
    """A filter of the user's own that admits everything admits them as little."""
    chosen = TopicSelection(
        include=(), exclude=(), naming=TopicTransforms(DefaultPolicy("_", "_"), "source"), target_alias="target",
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
        include=(), exclude=(), naming=TopicTransforms(DEFAULT, "source"), target_alias="target", heartbeats=False,
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
    ],
)
def test_java_s_expressions_match_whole_names(patterns: tuple[str, ...], matching: str, other: str):
    """One expression of all items, as MirrorUtils.compilePatternList builds it."""
    compiled = compile_patterns("topics", patterns)
    assert compiled is not None

    assert compiled.matches(matching)
    assert not compiled.matches(other)


@pytest.mark.parametrize("pattern", ["(", "*a", "[a", "(?P<n>a)", "\\y"])
def test_what_is_no_expression_of_java_is_named(pattern: str):
    """The key and the item; never a silent other meaning."""
    with pytest.raises(InvalidSettingError) as raised:
        compile_patterns("topics", ("fine", pattern))
    assert raised.value.key == "topics"
    assert repr(pattern) in str(raised.value)


def test_an_expression_that_takes_too_long_is_an_error_of_its_setting():
    """It names the key, the item, the topic and the cure."""
    with pytest.raises(InvalidSettingError) as raised:
        selection("orders,(a|a)*").selects("a" * 50 + "-1")

    assert str(raised.value) == (
        f"topics: '(a|a)*' cannot be matched against '{'a' * 50}-1': that takes longer than 0.1 s; "
        "write it without a repetition inside a repetition: a+ instead of (a+)+, [ab]* instead of (a|b)*."
    )


@pytest.mark.parametrize(
    ("include", "exclude", "topics", "said"),
    [
        ("oders", "", ["orders", "heartbeats"], "`topics` has oders: is orders meant?"),
        ("oders", "", ["orders", "heartbeats"], "Of 1 topics 1 are not, as `topics` does not match it."),
        ("orders", "or.*", ["orders"], "`topics.exclude` matches it"),
        ("else", "", ["orders"], "There may be others, if Describe on them is not granted."),
        (".*", "", ["target.orders", "target.events"], "2 are not, as it came from the target, target"),
        (
            "orders",
            "",
            ["heartbeats", "mm2-offset-syncs.target.internal"],
            "it has none, or Describe on them",
        ),
        ("orders", "", [], "it has none, or Describe on them is not granted."),
    ],
)
def test_where_nothing_is_selected_the_sentence_says_why(
    include: str, exclude: str, topics: list[str], said: str
):
    found = selection(include, exclude).nothing_selected(topics)

    assert found.startswith("No topic of source is selected")
    assert said in found


@pytest.mark.parametrize("topics", [["orders"], ["orders", "heartbeats", "events"]])
def test_one_topic_is_enough(topics: list[str]):
    assert not selection("orders").nothing_selected(topics)


def test_a_topic_that_is_only_named_like_heartbeats_counts_where_it_is_asked_for():
    assert not selection("orders.heartbeats").nothing_selected(["orders.heartbeats", "heartbeats"])
    assert selection("orders").nothing_selected(["orders.heartbeats", "heartbeats"])


def test_the_sentence_is_short_with_many_topics():
    found = selection("oders").nothing_selected([f"orders-{number}" for number in range(5_000)])

    assert len(found) < 300


def test_the_prefix_is_what_the_policy_adds():
    assert ("source.", "") == (selection().prefix, selection(policy=IDENTITY).prefix)


def test_a_topic_is_copied_if_it_is_selected_and_can_have_a_copy():
    into_internal = TransformSettings(
        key="transforms.r", kind=TransformKind.RENAME, regex=".*bad", replacement="mm2-offsets.A.internal"
    )
    chosen = TopicSelection(
        include=("good", "bad"),
        exclude=(),
        target_alias="target",
        heartbeats=False,
        naming=TopicTransforms(DEFAULT, "source", Transforms([into_internal])),
    )

    assert ["good"] == [topic for topic in ("good", "bad", "other") if chosen.copies(topic)]


def test_selections_are_equal_if_they_select_and_name_alike():
    """So that an operator sees whether a changed spec needs a new check."""
    assert selection("orders.*") == selection("orders.*")
    assert hash(selection("orders.*")) == hash(selection("orders.*"))
    assert selection("orders.*") != selection("orders")
    assert selection() != selection(policy=IDENTITY)


def test_a_topic_that_can_never_be_copied_is_named_with_the_reason():
    """`topics` names it, so nothing else would say that it never comes; an expression may match something one day."""
    chosen = selection("__schemas,mm2-x.internal,target.orders,payments,users,heartbeats,or.*ers", "users")

    assert chosen.never_copied == (
        "`topics` has __schemas, which is never copied: it is an internal topic.",
        "`topics` has mm2-x.internal, which is never copied: it is an internal topic.",
        "`topics` has target.orders, which is never copied: it came from the target, target.",
        "`topics` has users, which is never copied: `topics.exclude` matches it.",
    )


def test_topics_that_begin_with_the_source_s_own_alias_are_named():
    """MM2 up to 4.3 copies them; internal topics, heartbeats and what the filter leaves out say nothing."""
    topics = ["source.orders", "source.payments", "users", "source.heartbeats", "source.checkpoints.internal"]

    assert (
        selection()
        .of_own_alias(topics)
        .startswith(
            "Topics whose names begin with the source's own alias are taken for copies that came back, and not copied: "
            "source.orders and 1 more. MM2 up to Kafka 4.3 copies them as source.source.orders;"
        )
    )
    assert selection("users").of_own_alias(topics) == ""
    assert selection(policy=IDENTITY).of_own_alias(topics) == ""
