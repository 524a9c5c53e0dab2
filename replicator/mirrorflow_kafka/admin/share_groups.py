"""Reads and sets the start offsets of share groups (KIP-932); brokers offer it from Kafka 4.1 on.

Requests are sent to the group's coordinator, and again if it has moved (`Cluster.call`). `mirrorflow_core.offsets.share_offsets`
decides what to set.
"""

from collections.abc import Mapping
from typing import Any

from mirrorflow_core.offsets.share_offsets import ShareStart
from mirrorflow_core.partitions import TopicPartition
from mirrorflow_core.wire.error_codes import (
    GROUP_ID_NOT_FOUND,
    TOPIC_AUTHORIZATION_FAILED,
    UNKNOWN_TOPIC_ID,
    UNKNOWN_TOPIC_OR_PARTITION,
)
from mirrorflow_kafka.admin.groups import COMMIT_TIMEOUT_S, GROUP_COORDINATOR, GROUP_TIMEOUT_S
from mirrorflow_kafka.client.cluster import Cluster

_NO_TOPIC = frozenset({UNKNOWN_TOPIC_OR_PARTITION, UNKNOWN_TOPIC_ID, TOPIC_AUTHORIZATION_FAILED})


async def fetch_start_offsets(cluster: Cluster, group: str) -> dict[TopicPartition, ShareStart]:
    """Returns the start offsets of *group* on topics this client may describe; empty for an unknown group.

    Partitions that have none yet are left out: `share.auto.offset.reset` decides there. So are those of a topic that was deleted or
    may not be described: the group's other topics continue. Raises NotAuthorizedError, BrokerError, UnreachableError,
    UnsupportedBrokerError.
    """
    from mirrorflow_kafka.admin.share_messages import (  # noqa: PLC0415 groups follow the first record
        DescribeShareGroupOffsetsRequest,
    )

    group_class = DescribeShareGroupOffsetsRequest.DescribeShareGroupOffsetsRequestGroup
    request = DescribeShareGroupOffsetsRequest(groups=[group_class(group_id=group, topics=None)])
    response = await cluster.call(request, coordinator=(GROUP_COORDINATOR, group), timeout_s=GROUP_TIMEOUT_S)
    described = response.groups[0]
    if described.error_code == GROUP_ID_NOT_FOUND:
        return {}
    cluster.raise_for(described.error_code, "DescribeShareGroupOffsets", group)
    starts = {}
    for topic in described.topics:
        for partition in topic.partitions:
            key = TopicPartition(topic.topic_name, partition.partition_index)
            if partition.error_code in _NO_TOPIC:
                continue
            cluster.raise_for(partition.error_code, "DescribeShareGroupOffsets", f"{group}, {key}")
            if partition.start_offset >= 0:
                lag = getattr(partition, "lag", -1)
                starts[key] = ShareStart(offset=partition.start_offset, lag_records=lag if lag >= 0 else None)
    return starts


async def set_start_offsets(
    cluster: Cluster, group: str, offsets: Mapping[TopicPartition, int]
) -> dict[TopicPartition, int]:
    """Sets start *offsets* of *group*, which must have no members; returns error codes, 0 for success.

    A missing group is created. Raises BrokerError (NON_EMPTY_GROUP if it has members, GROUP_ID_NOT_FOUND if it is of another
    kind), NotAuthorizedError for the group, UnreachableError, UnsupportedBrokerError.
    """
    from mirrorflow_kafka.admin.share_messages import (  # noqa: PLC0415 groups follow the first record
        AlterShareGroupOffsetsRequest,
    )

    topic_class = AlterShareGroupOffsetsRequest.AlterShareGroupOffsetsRequestTopic
    by_topic: dict[str, list[Any]] = {}
    for partition, offset in offsets.items():
        by_topic.setdefault(partition.topic, []).append(
            topic_class.AlterShareGroupOffsetsRequestPartition(
                partition_index=partition.partition, start_offset=offset
            )
        )
    request = AlterShareGroupOffsetsRequest(
        group_id=group,
        topics=[topic_class(topic_name=name, partitions=parts) for name, parts in by_topic.items()],
    )
    response = await cluster.call(request, coordinator=(GROUP_COORDINATOR, group), timeout_s=COMMIT_TIMEOUT_S)
    cluster.raise_for(response.error_code, "AlterShareGroupOffsets", group)
    return {
        TopicPartition(topic.topic_name, partition.partition_index): partition.error_code
        for topic in response.responses
        for partition in topic.partitions
    }
