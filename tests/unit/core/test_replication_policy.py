"""Topic names of both policies: the cases of ReplicationPolicyTest and MirrorClientTest, and edge cases."""

import pytest

from mirrorflow_core.replication_policy import DefaultPolicy, IdentityPolicy, ReplicationPolicy, make_policy
from mirrorflow_core.settings import PolicyKind, PolicySettings

DEFAULT = DefaultPolicy()
UNDERSCORE = DefaultPolicy("_", "_")
IDENTITY = IdentityPolicy(source_alias="A")


@pytest.mark.parametrize(
    ("policy", "topic", "source", "upstream", "original"),
    [
        (DEFAULT, "topic1", None, None, "topic1"),
        (DEFAULT, "A.topic1", "A", "topic1", "topic1"),
        (DEFAULT, "B.A.topic1", "B", "A.topic1", "topic1"),
        (DEFAULT, "orders.v1", "orders", "v1", "v1"),
        (DEFAULT, "topic1.", None, None, "topic1."),
        (DEFAULT, "A..b", "A", ".b", "b"),
        (DEFAULT, "A_topic1", None, None, "A_topic1"),
        (UNDERSCORE, "A_topic1", "A", "topic1", "topic1"),
        (UNDERSCORE, "A.topic1", None, None, "A.topic1"),
        (DefaultPolicy("__", "__"), "A__topic_1", "A", "topic_1", "topic_1"),
        (IDENTITY, "topic1", "A", "topic1", "topic1"),
        (IDENTITY, "B.topic1", "A", "B.topic1", "B.topic1"),
        (IDENTITY, "heartbeats", None, None, "heartbeats"),
        (IDENTITY, "B.heartbeats", "B", "heartbeats", "heartbeats"),
        (IdentityPolicy(source_alias=""), "topic1", None, "topic1", "topic1"),
    ],
)
def test_the_origin_of_a_topic_is_derived_from_its_name(
    policy: ReplicationPolicy, topic: str, source: str | None, upstream: str | None, original: str
):
    """As in topicSource, upstreamTopic and originalTopic. As in Java, a local `orders.v1` counts as remote."""
    assert (source, upstream, original) == (
        policy.topic_source(topic),
        policy.upstream_topic(topic),
        policy.original_topic(topic),
    )


@pytest.mark.parametrize(
    ("policy", "topic", "expected"),
    [
        (DEFAULT, "topic1", "A.topic1"),
        (DEFAULT, "B.topic1", "A.B.topic1"),
        (UNDERSCORE, "topic1", "A_topic1"),
        (IDENTITY, "topic1", "topic1"),
        (IDENTITY, "heartbeats", "A.heartbeats"),
        (IDENTITY, "my-heartbeats", "A.my-heartbeats"),
    ],
)
def test_the_remote_topic_name_follows_the_policy(policy: ReplicationPolicy, topic: str, expected: str):
    """As in formatRemoteTopic. The identity policy renames heartbeats topics, which would otherwise collide."""
    assert expected == policy.remote_topic("A", topic)


@pytest.mark.parametrize(
    ("policy", "topic", "expected"),
    [
        (DEFAULT, "__consumer_offsets", True),
        (DEFAULT, ".hiddentopic", True),
        (DEFAULT, "mm2-offsets.CLUSTER.internal", True),
        (DEFAULT, "mm2-offset-syncs.B.internal", True),
        (DEFAULT, "mm2-identity.A.internal", True),
        (DEFAULT, "A.checkpoints.internal", True),
        (DEFAULT, "mm2-offsets-CLUSTER-internal", False),
        (DEFAULT, "mm2-offsets_CLUSTER_internal", False),
        (DEFAULT, "orders.internal", False),
        (DEFAULT, "orders-internal", False),
        (DEFAULT, "A.mm2.internal", False),
        (DEFAULT, "heartbeats", False),
        (UNDERSCORE, "mm2-offsets_CLUSTER_internal", True),
        (UNDERSCORE, "A_checkpoints_internal", True),
        (UNDERSCORE, "A.checkpoints.internal", False),
        (DefaultPolicy("_", "."), "A.checkpoints.internal", True),
        (IDENTITY, "mm2-configs.A.internal", True),
    ],
)
def test_internal_topics_are_those_of_kafka_4(policy: ReplicationPolicy, topic: str, expected: bool):  # noqa: FBT001
    """Since KIP-1074, a user's topic may end in `.internal`."""
    assert expected == policy.is_internal_topic(topic)


@pytest.mark.parametrize(
    ("topic", "expected"),
    [
        ("heartbeats", True),
        ("A.heartbeats", True),
        ("B.A.heartbeats", True),
        ("my-heartbeats", False),
        ("heartbeats.x", False),
    ],
)
def test_heartbeats_topics_of_any_cluster_are_recognised(topic: str, expected: bool):  # noqa: FBT001
    """Both policies compare the original name with `heartbeats`."""
    assert (expected, expected) == (DEFAULT.is_heartbeats_topic(topic), IDENTITY.is_heartbeats_topic(topic))


@pytest.mark.parametrize(
    ("settings", "checkpoints", "syncs"),
    [
        (PolicySettings(), "A.checkpoints.internal", "mm2-offset-syncs.A.internal"),
        (PolicySettings(separator="_"), "A_checkpoints_internal", "mm2-offset-syncs_A_internal"),
        (
            PolicySettings(separator="_", internal_separator_enabled=False),
            "A.checkpoints.internal",
            "mm2-offset-syncs.A.internal",
        ),
        (
            PolicySettings(kind=PolicyKind.IDENTITY, source_alias="A"),
            "A.checkpoints.internal",
            "mm2-offset-syncs.A.internal",
        ),
    ],
)
def test_names_of_internal_topics_follow_the_separator(
    settings: PolicySettings, checkpoints: str, syncs: str
):
    """They do so unless the setting of KIP-949 is off. The heartbeats topic never does."""
    policy = make_policy(settings)

    assert (checkpoints, syncs, "heartbeats") == (
        policy.checkpoints_topic("A"),
        policy.offset_syncs_topic("A"),
        policy.heartbeats_topic(),
    )
