"""Consumer groups of a cluster: which there are, where they stand, and moving one that has no members.

A group's coordinator is asked, and asked again where it has moved (`Cluster.call`). Errors are of one group each; who asks
about many goes on with the others. What a group may be given, and when, is `flow.groups`' and `flow.checkpoints`'.
"""

import asyncio
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Final

from kafka.protocol.admin import DescribeGroupsRequest, ListGroupsRequest
from kafka.protocol.consumer import HeartbeatRequest, OffsetCommitRequest, OffsetFetchRequest

from mirrorflow_replicator.flow.groups import Group
from mirrorflow_replicator.flow.partitions import TopicPartition
from mirrorflow_replicator.kafka.cluster import Cluster
from mirrorflow_replicator.kafka.codes import COORDINATOR_MOVED, GROUP_AUTHORIZATION_FAILED, raise_for

GROUP_COORDINATOR: Final = 0  # FindCoordinator's key type
GROUP_ID_NOT_FOUND: Final = 69
# What a coordinator answers to a commit from outside while the group has members (KIP-98's and KIP-848's words for it).
MEMBERS_PRESENT: Final = frozenset({22, 25, 27, 82, 110, 113})
_NOBODY = "mirrorflow-asks-whether-it-may"
_OLD_HEARTBEAT = 2  # the last version without instance ids, which Kafka 4 still takes
_ALL_TOPICS_SINCE = 2  # OffsetFetch
_TOPIC_NAMES_UNTIL = 9  # OffsetFetch and OffsetCommit: version 10 has topic ids instead of names
_COMMIT_FROM = 2  # the last version of before that Kafka 4 takes
# A commit that was lost on the way is sent again within this time only: later it could undo what a consumer, which came
# and went in between, has committed.
COMMIT_TIMEOUT_S = 5.0
# Of one question about one group: a coordinator that has moved is found again in a few seconds, and one group whose
# coordinator is gone must not hold up the others for Java's whole minute.
ASK_TIMEOUT_S = 15.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Committed:
    """What a group has committed for a partition."""

    offset: int
    metadata: str = ""


async def list_groups(cluster: Cluster) -> dict[str, Group]:
    """Every group that we may describe, by name. Raises ClusterError if one broker does not answer: its groups would lack.

    Brokers before Kafka 2.6 tell no state, those before 4.0 no type.
    """
    await cluster.refresh(())
    request = ListGroupsRequest(states_filter=[], types_filter=[])
    answers = await asyncio.gather(
        *(
            cluster.call(request, node_id=node_id, timeout_s=ASK_TIMEOUT_S)
            for node_id in sorted(cluster.metadata.brokers)
        )
    )
    found = {}
    for answer in answers:
        raise_for(answer.error_code, cluster=cluster.alias, request="ListGroups")
        for one in answer.groups:
            found[one.group_id] = Group(
                name=one.group_id,
                protocol_type=one.protocol_type,
                state=one.group_state or "",
                type=one.group_type or "",
            )
    return found


async def describe_group(cluster: Cluster, group: str) -> Group:
    """A classic group with its state, for brokers whose lists have none; "Dead" if it is unknown. Raises ClusterError."""
    request = DescribeGroupsRequest(groups=[group], include_authorized_operations=False)
    answer = (
        await cluster.call(request, coordinator=(GROUP_COORDINATOR, group), timeout_s=ASK_TIMEOUT_S)
    ).groups[0]
    if answer.error_code == GROUP_ID_NOT_FOUND:
        return Group(name=group, state="Dead")
    raise_for(answer.error_code, cluster=cluster.alias, request="DescribeGroups", subject=group)
    return Group(name=group, protocol_type=answer.protocol_type, state=answer.group_state)


async def may_describe(cluster: Cluster, group: str) -> bool:
    """Whether we have DESCRIBE on *group*, which need not exist. Raises ClusterError.

    Any broker looks at the ACL first, and only then finds that it does not coordinate the group. Looking for the
    coordinator could create the topic of all groups.
    """
    request = DescribeGroupsRequest(groups=[group], include_authorized_operations=False)
    answer = await _ask_anyone(cluster, request)
    return bool(answer.groups[0].error_code != GROUP_AUTHORIZATION_FAILED)


async def may_read(cluster: Cluster, group: str) -> bool:
    """Whether we have READ on *group*, as `may_describe`: by the heartbeat of a member that nobody knows."""
    request = HeartbeatRequest(
        group_id=group,
        generation_id=-1,
        member_id=_NOBODY,
        group_instance_id=None,
        max_version=_OLD_HEARTBEAT,
    )
    answer = await _ask_anyone(cluster, request)
    return bool(answer.error_code != GROUP_AUTHORIZATION_FAILED)


async def _ask_anyone(cluster: Cluster, request: Any) -> Any:
    connection = await cluster.connection(min(cluster.metadata.brokers))
    return await connection.call(request, timeout_s=ASK_TIMEOUT_S)


async def fetch_offsets(cluster: Cluster, group: str) -> dict[TopicPartition, Committed]:
    """All that *group* has committed, of topics that we may describe; nothing for a group that is not there.

    Of an offset that is committed in an open transaction the one before is told, as by Java's admin client.
    Raises NotAuthorizedError, BrokerError, UnreachableError.
    """
    group_class = OffsetFetchRequest.OffsetFetchRequestGroup
    request = OffsetFetchRequest(
        group_id=group,
        topics=None,
        groups=[group_class(group_id=group, member_id=None, member_epoch=-1, topics=None)],
        require_stable=False,
        min_version=_ALL_TOPICS_SINCE,
        max_version=_TOPIC_NAMES_UNTIL,
    )
    whole = await cluster.call(request, coordinator=(GROUP_COORDINATOR, group), timeout_s=ASK_TIMEOUT_S)
    answer = whole.groups[0] if whole.groups else whole  # version 8 and later: a list (KIP-709)
    if answer.error_code == GROUP_ID_NOT_FOUND:
        return {}
    raise_for(answer.error_code or 0, cluster=cluster.alias, request="OffsetFetch", subject=group)
    return {
        TopicPartition(topic.name, one.partition_index): Committed(
            offset=one.committed_offset, metadata=one.metadata or ""
        )
        for topic in answer.topics or ()
        for one in topic.partitions
        if not one.error_code and one.committed_offset >= 0
    }


async def commit_offsets(
    cluster: Cluster, group: str, offsets: Mapping[TopicPartition, Committed]
) -> dict[TopicPartition, int]:
    """Put *group*, which has no members, to *offsets*; an error code for each partition, 0 for done.

    A group that is not there comes into being. With members the coordinator refuses (MEMBERS_PRESENT). Raises
    NotAuthorizedError for the group, UnreachableError.
    """
    topic_class = OffsetCommitRequest.OffsetCommitRequestTopic
    by_topic: dict[str, list[Any]] = {}
    for partition, committed in offsets.items():
        by_topic.setdefault(partition.topic, []).append(
            topic_class.OffsetCommitRequestPartition(
                partition_index=partition.partition,
                committed_offset=committed.offset,
                committed_leader_epoch=-1,
                committed_metadata=committed.metadata,
            )
        )
    request = OffsetCommitRequest(
        group_id=group,
        generation_id_or_member_epoch=-1,
        member_id="",
        group_instance_id=None,
        retention_time_ms=-1,
        topics=[topic_class(name=name, partitions=parts) for name, parts in by_topic.items()],
        min_version=_COMMIT_FROM,
        max_version=_TOPIC_NAMES_UNTIL,
    )
    answer = await cluster.call(
        request,
        coordinator=(GROUP_COORDINATOR, group),
        timeout_s=COMMIT_TIMEOUT_S,
        codes_of=_partition_codes,
    )
    found = {
        TopicPartition(topic.name, one.partition_index): int(one.error_code)
        for topic in answer.topics
        for one in topic.partitions
    }
    for code in {*found.values()} & ({GROUP_AUTHORIZATION_FAILED} | COORDINATOR_MOVED):
        raise_for(code, cluster=cluster.alias, request="OffsetCommit", subject=group)
    return found


def _partition_codes(answer: Any) -> Iterable[int]:
    return {one.error_code for topic in answer.topics for one in topic.partitions}
