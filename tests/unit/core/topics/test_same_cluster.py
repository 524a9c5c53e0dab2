"""A flow within one cluster may copy to other topic names, but never copies its own copies."""

import pytest

from mirrorflow_core.replication_policy import DefaultPolicy, IdentityPolicy, ReplicationPolicy
from mirrorflow_core.settings import TransformKind, TransformSettings
from mirrorflow_core.topics.same_cluster import same_cluster_refusal
from mirrorflow_core.topics.topic_selection import TopicSelection
from mirrorflow_core.transforms import TopicTransforms, Transforms


def refusal(
    policy: ReplicationPolicy, *topics: str, include: str = ".*", rename: tuple[str, str] | None = None
) -> str:
    transforms: tuple[TransformSettings, ...] = ()
    if rename is not None:
        regex, replacement = rename
        transforms = (
            TransformSettings(
                key="transforms.r", kind=TransformKind.RENAME, regex=regex, replacement=replacement
            ),
        )
    selection = TopicSelection(
        include=(include,),
        exclude=(),
        naming=TopicTransforms(policy, "east", Transforms(transforms)),
        target_alias="west",
        heartbeats=True,
    )
    error = same_cluster_refusal(
        selection, source_alias="east", target_alias="west", cluster_id="K1", topics=topics
    )
    return "" if error is None else str(error)


def test_unchanged_names_are_refused_even_without_a_topic() -> None:
    message = refusal(IdentityPolicy(source_alias="east"))

    assert message.startswith("east and west are one cluster (K1): each topic would be copied onto itself")
    assert "policy Prefix" in message


def test_the_error_names_a_topic_that_would_be_copied_onto_itself() -> None:
    assert "topic orders would be copied onto itself" in refusal(
        IdentityPolicy(source_alias="east"), "orders"
    )


@pytest.mark.parametrize("topics", [(), ("orders",), ("orders", "east.orders", "west.orders")])
def test_prefixes_prevent_loops(topics: tuple[str, ...]) -> None:
    assert not refusal(DefaultPolicy(), *topics)


def test_a_renamed_copy_that_is_not_selected_is_allowed() -> None:
    assert not refusal(
        IdentityPolicy(source_alias="east"), "orders", include="orders", rename=("(.*)", "copy-$1")
    )


def test_a_renamed_copy_that_is_selected_again_is_refused() -> None:
    message = refusal(IdentityPolicy(source_alias="east"), "orders", rename=("(.*)", "copy-$1"))

    assert "topic orders would be copied to copy-orders, and that again" in message
