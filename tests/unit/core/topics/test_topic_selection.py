"""Topics are selected as in MirrorSourceConnectorTest, without cycles, and by Java regular expressions."""

import difflib
from collections.abc import Collection

import pytest

from mirrorflow_core.errors import InvalidSettingError
from mirrorflow_core.java.patterns import compile_patterns, meant_by_glob
from mirrorflow_core.replication_policy import DefaultPolicy, IdentityPolicy, ReplicationPolicy
from mirrorflow_core.settings import TransformKind, TransformSettings
from mirrorflow_core.topics import topic_selection
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
def test_cycles_are_not_copied(policy: ReplicationPolicy, topic: str, expected: bool):  # noqa: FBT001
    """These are testNoCycles, testIdentityReplication, and the rule of Kafka 4.4 for the source's own alias."""
    assert expected == selection(policy=policy).selects(topic)


@pytest.mark.parametrize(
    ("pattern", "expected"),
    [
        ("orders*", "orders.*"),
        ("orders-*", "orders-.*"),
        ("a*b.c*", "a.*b.c.*"),
        ("orders.*", None),
        (r"orders\.*", None),
        ("(ab)*", None),
        ("[ab]*c", None),
        ("orders", None),
        ("*orders", None),
        (".*", None),
    ],
)
def test_a_glob_pattern_is_recognised(pattern: str, expected: str | None):
    """A pattern is a glob if its * follows a character of a name. All others are regular expressions."""
    assert expected == meant_by_glob(pattern)


def test_a_glob_pattern_that_selects_nothing_gets_a_hint():
    message = selection("order-*").nothing_selected(["order-eu", "orders"])

    assert message is not None
    assert message.endswith("`topics` has order-*: is order-.* meant?")


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
    """These are testReplicatesHeartbeatsByDefault, ...DespiteFilter, and testDoesNotReplicateHeartbeats (KIP-1089)."""
    assert expected == selection(include, heartbeats=heartbeats).selects(topic)


@pytest.mark.parametrize(
    ("include", "exclude", "topic", "reason"),
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
def test_every_decision_has_a_reason(include: str, exclude: str, topic: str, reason: str):
    """`mirrorflow plan` prints the reason."""
    assert reason == selection(include, exclude).why(topic)


def test_default_excludes_of_kafka_4():
    """They are `mm2.*.internal`, `.*.replica` and `__.*`. A user's `orders.internal` is copied."""
    chosen = selection(".*", "mm2.*\\.internal,.*\\.replica,__.*")

    assert [chosen.selects(topic) for topic in ("orders.internal", "x.replica")] == [True, False]


@pytest.mark.parametrize(
    "policy", [DEFAULT, DefaultPolicy("_", "_"), IdentityPolicy("-", "-", source_alias="source")]
)
@pytest.mark.parametrize("part", ["identity", "claims", "offset-map", "offsets", "configs", "status"])
def test_internal_topics_of_a_flow_are_never_copied(policy: ReplicationPolicy, part: str):
    """Their names contain dots with any separator, and need no excludes.

    A copy with the same name would be read as positions of a different flow.
    """
    chosen = selection(".*", "mine", policy)

    assert "it is an internal topic" == chosen.why(f"mm2-{part}.other.internal")
    assert chosen.selects(f"mm2-{part}.other.internally")


def test_a_custom_filter_cannot_admit_internal_topics_of_a_flow():
    chosen = TopicSelection(
        include=(), exclude=(), naming=TopicTransforms(DefaultPolicy("_", "_"), "source"), target_alias="target",
        heartbeats=False, admits=lambda _: True,
    )  # fmt: skip

    assert [chosen.selects(topic) for topic in ("yes", "mm2-identity.a.internal")] == [True, False]


def test_with_a_custom_separator_only_names_with_it_are_internal():
    """As in Java since 4.0, internal topics with dots in their names then need an exclude."""
    chosen = selection(".*", "", DefaultPolicy("_", "_"))
    topics = ("mm2-offset-syncs_b_internal", "mm2-offset-syncs.b.internal", "mm2-mine.internal")

    assert [chosen.selects(topic) for topic in topics] == [False, True, True]


def test_a_custom_filter_replaces_the_lists():
    """Internal topics and cycles are still not copied."""
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
def test_java_expressions_match_whole_names(patterns: tuple[str, ...], matching: str, other: str):
    """All items are joined into one expression, as in MirrorUtils.compilePatternList."""
    compiled = compile_patterns("topics", patterns)
    assert compiled is not None

    assert compiled.matches(matching)
    assert not compiled.matches(other)


@pytest.mark.parametrize("pattern", ["(", "*a", "[a", "(?P<n>a)", "\\y"])
def test_an_invalid_java_expression_is_an_error_of_its_setting(pattern: str):
    """The error names the key and the item."""
    with pytest.raises(InvalidSettingError) as raised:
        compile_patterns("topics", ("fine", pattern))
    assert raised.value.key == "topics"
    assert repr(pattern) in str(raised.value)


def test_an_expression_that_takes_too_long_is_an_error_of_its_setting():
    """The error names the key, the item, the topic and the remedy."""
    with pytest.raises(InvalidSettingError) as raised:
        selection("orders,(a|a)*").selects("a" * 50 + "-1")

    assert str(raised.value) == (
        f"topics: '(a|a)*' cannot be matched against '{'a' * 50}-1': that takes longer than 0.1 s; "
        "write it without a repetition inside a repetition: a+ instead of (a+)+, [ab]* instead of (a|b)*."
    )


@pytest.mark.parametrize(
    ("include", "exclude", "topics", "expected"),
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
def test_a_selection_without_topics_is_explained(
    include: str, exclude: str, topics: list[str], expected: str
):
    message = selection(include, exclude).nothing_selected(topics)

    assert message is not None
    assert message.startswith("No topic of source is selected")
    assert expected in message


@pytest.mark.parametrize("topics", [["orders"], ["orders", "heartbeats", "events"]])
def test_a_selection_with_one_topic_is_not_reported_as_empty(topics: list[str]):
    assert selection("orders").nothing_selected(topics) is None


def test_a_topic_named_like_heartbeats_counts_if_it_is_selected_by_name():
    assert selection("orders.heartbeats").nothing_selected(["orders.heartbeats", "heartbeats"]) is None
    assert selection("orders").nothing_selected(["orders.heartbeats", "heartbeats"])


def test_the_message_is_short_with_many_topics():
    message = selection("oders").nothing_selected([f"orders-{number}" for number in range(5_000)])

    assert message is not None
    assert len(message) < 300


def test_the_prefix_is_that_of_the_policy():
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


def test_selections_with_equal_settings_are_equal():
    """The operator compares selections to decide whether a changed spec needs a new check."""
    assert selection("orders.*") == selection("orders.*")
    assert hash(selection("orders.*")) == hash(selection("orders.*"))
    assert selection("orders.*") != selection("orders")
    assert selection() != selection(policy=IDENTITY)


def test_a_topic_that_can_never_be_copied_is_reported_with_the_reason():
    """This applies to topics that `topics` names; an expression may match other topics later."""
    chosen = selection("__schemas,mm2-x.internal,target.orders,payments,users,heartbeats,or.*ers", "users")

    assert chosen.never_copied == (
        "`topics` has __schemas, which is never copied: it is an internal topic.",
        "`topics` has mm2-x.internal, which is never copied: it is an internal topic.",
        "`topics` has target.orders, which is never copied: it came from the target, target.",
        "`topics` has users, which is never copied: `topics.exclude` matches it.",
    )


def test_topics_that_begin_with_the_source_alias_are_reported():
    """MM2 up to 4.3 copies them. Internal topics, heartbeats and filtered topics are not reported."""
    topics = ["source.orders", "source.payments", "users", "source.heartbeats", "source.checkpoints.internal"]

    assert str(selection().of_own_alias(topics)).startswith(
        "Topics whose names begin with the source's own alias are taken for copies that came back, and not copied: "
        "source.orders and 1 more. MM2 up to Kafka 4.3 copies them as source.source.orders;"
    )
    assert selection("users").of_own_alias(topics) is None
    assert selection(policy=IDENTITY).of_own_alias(topics) is None


def test_the_hint_for_a_long_list_compares_few_of_its_names(monkeypatch: pytest.MonkeyPatch) -> None:
    """It is computed at each listing, and the process sends no response meanwhile."""
    compared: list[int] = []

    def count(_: str, topics: Collection[str], **__: object) -> list[str]:
        compared.append(len(topics))
        return []

    monkeypatch.setattr(difflib, "get_close_matches", count)
    missing = selection(",".join(f"missing-{number}" for number in range(1_000)))

    assert missing.nothing_selected([f"topic-{number}" for number in range(1_000)])
    assert sum(compared) == topic_selection.COMPARED_MAX
    compared.clear()
    assert missing.nothing_selected([f"topic-{number}" for number in range(60_000)])
    assert compared == [60_000]
