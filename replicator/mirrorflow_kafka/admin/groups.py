"""Lists consumer groups, reads their committed offsets, and commits offsets for groups without members.

Requests are sent to the group's coordinator, and again if it has moved (`Cluster.call`). An error concerns
one group; callers continue with the others. `mirrorflow_core.offsets.checkpoints` decides what to commit and when.
"""

import asyncio
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, Final, NamedTuple

from mirrorflow_core.errors import ClusterError, UnreachableError
from mirrorflow_core.offsets.checkpoints import Group
from mirrorflow_core.offsets.offset_translation import Committed
from mirrorflow_core.partitions import TopicPartition
from mirrorflow_core.wire.error_codes import (
    COORDINATOR_MOVED,
    FENCED_INSTANCE_ID,
    FENCED_MEMBER_EPOCH,
    GROUP_AUTHORIZATION_FAILED,
    GROUP_ID_NOT_FOUND,
    ILLEGAL_GENERATION,
    REBALANCE_IN_PROGRESS,
    STALE_MEMBER_EPOCH,
    UNKNOWN_MEMBER_ID,
)
from mirrorflow_kafka.client.cluster import Cluster, chunks

GROUP_COORDINATOR: Final = 0  # FindCoordinator's key type
# Error codes with which a coordinator refuses a commit by a non-member while the group has members (KIP-98,
# KIP-848).
MEMBERS_PRESENT: Final = frozenset(
    {
        ILLEGAL_GENERATION,
        UNKNOWN_MEMBER_ID,
        REBALANCE_IN_PROGRESS,
        FENCED_INSTANCE_ID,
        FENCED_MEMBER_EPOCH,
        STALE_MEMBER_EPOCH,
    }
)
_UNKNOWN_MEMBER = "mirrorflow-permission-probe"
_OLD_HEARTBEAT = 2  # the last version without instance ids; Kafka 4 still supports it
_ALL_TOPICS_SINCE = 2  # OffsetFetch
_TOPIC_NAMES_UNTIL = 9  # OffsetFetch and OffsetCommit: version 10 replaces topic names with topic ids
_MANY_GROUPS_SINCE = 8  # OffsetFetch (KIP-709)
_COMMIT_FROM = 2  # the oldest version that Kafka 4 supports
# A lost commit is retried only within this time. A later retry could overwrite the commit of a consumer that
# joined and left in between.
COMMIT_TIMEOUT_S = 5.0
# Timeout of one request about one group. A moved coordinator is found within a few seconds; a group without a
# coordinator must not block the other groups for Java's default of one minute.
GROUP_TIMEOUT_S = 15.0
# Requests about groups in flight at once: a coordinator answers one request of a connection at a time, in
# about a millisecond.
GROUPS_AT_ONCE = 32
GROUPS_PER_REQUEST_MAX = 100  # a broker builds the response of all of them before it serves the next request
# A coordinator appends each commit to __consumer_offsets as one batch, of 1 MiB at most by default (max.message.bytes, or
# offsets.topic.segment.bytes if that is less). Members commit their own partitions; here one request would have all of them.
COMMIT_BYTES_MAX = 256 << 10
_COMMIT_OVERHEAD_BYTES = 100  # of a record: its fields beside the texts, and more than they take


class GroupListing(NamedTuple):
    """Groups by name. *problem*: why a broker did not list its own; None: each did."""

    groups: dict[str, Group]
    problem: ClusterError | None = None


async def list_groups(cluster: Cluster) -> dict[str, Group]:
    """Returns all groups this client may describe, by name.

    Raises ClusterError if any broker does not respond, because its groups would be missing.
    """
    listing = await list_reachable_groups(cluster)
    if listing.problem is not None:
        raise listing.problem
    return listing.groups


async def list_reachable_groups(cluster: Cluster) -> GroupListing:
    """As `list_groups`, without the groups of brokers that do not respond.

    Brokers before Kafka 2.6 return no state, those before 4.0 no type. Raises ClusterError if no broker responds.
    """
    await cluster.refresh(())
    nodes = sorted(cluster.metadata.brokers)
    results = await asyncio.gather(*(_list_of(cluster, node_id) for node_id in nodes), return_exceptions=True)
    groups: dict[str, Group] = {}
    problems: list[ClusterError] = []
    for result in results:
        if isinstance(result, ClusterError):
            problems.append(result)
        elif isinstance(result, BaseException):
            raise result
        else:
            groups |= result
    if problems and len(problems) == len(nodes):
        raise problems[0]
    return GroupListing(groups, problems[0] if problems else None)


async def _list_of(cluster: Cluster, node_id: int) -> dict[str, Group]:
    from kafka.protocol.admin.groups import ListGroupsRequest  # noqa: PLC0415 groups follow the first record

    request = ListGroupsRequest(states_filter=[], types_filter=[])
    response = await cluster.call(request, node_id=node_id, timeout_s=GROUP_TIMEOUT_S)
    cluster.raise_for(response.error_code, "ListGroups")
    return {
        group.group_id: Group(
            name=group.group_id,
            protocol_type=group.protocol_type,
            state=group.group_state or "",
            type=group.group_type or "",
        )
        for group in response.groups
    }


async def describe_group(cluster: Cluster, group: str) -> Group:
    """Returns a classic group with its state ("Dead" if unknown), for brokers whose ListGroups has none. Raises ClusterError."""
    from kafka.protocol.admin.groups import DescribeGroupsRequest  # noqa: PLC0415 as in `_list_of`

    request = DescribeGroupsRequest(groups=[group], include_authorized_operations=False)
    response = await cluster.call(request, coordinator=(GROUP_COORDINATOR, group), timeout_s=GROUP_TIMEOUT_S)
    described = response.groups[0]
    if described.error_code == GROUP_ID_NOT_FOUND:
        return Group(name=group, state="Dead")
    cluster.raise_for(described.error_code, "DescribeGroups", group)
    return Group(name=group, protocol_type=described.protocol_type, state=described.group_state)


async def may_describe(cluster: Cluster, group: str) -> bool:
    """Returns whether this client has DESCRIBE on *group*, which need not exist. Raises ClusterError.

    The request goes to any broker: brokers check the ACL before they check whether they coordinate the group.
    FindCoordinator is avoided because it could create `__consumer_offsets`.
    """
    from kafka.protocol.admin.groups import DescribeGroupsRequest  # noqa: PLC0415 as in `_list_of`

    request = DescribeGroupsRequest(groups=[group], include_authorized_operations=False)
    response = await _call_any_broker(cluster, request)
    return bool(response.groups[0].error_code != GROUP_AUTHORIZATION_FAILED)


async def may_read(cluster: Cluster, group: str) -> bool:
    """As `may_describe`, for READ on *group*, by the heartbeat of an unknown member."""
    from kafka.protocol.consumer.group import HeartbeatRequest  # noqa: PLC0415 as in `_list_of`

    request = HeartbeatRequest(
        group_id=group,
        generation_id=-1,
        member_id=_UNKNOWN_MEMBER,
        group_instance_id=None,
        max_version=_OLD_HEARTBEAT,
    )
    response = await _call_any_broker(cluster, request)
    return bool(response.error_code != GROUP_AUTHORIZATION_FAILED)


async def _call_any_broker(cluster: Cluster, request: Any) -> Any:
    connection = await cluster.connection(min(cluster.metadata.brokers))
    return await connection.call(request, timeout_s=GROUP_TIMEOUT_S)


async def fetch_offsets(cluster: Cluster, group: str) -> dict[TopicPartition, Committed]:
    """Returns all committed offsets of *group* on topics this client may describe; empty for an unknown group.

    While an offset is committed in an open transaction, the previous one is returned, as by Java's admin
    client. Raises NotAuthorizedError, BrokerError, UnreachableError.
    """
    request = _fetch_request([group], min_version=_ALL_TOPICS_SINCE)
    response = await cluster.call(request, coordinator=(GROUP_COORDINATOR, group), timeout_s=GROUP_TIMEOUT_S)
    fetched = response.groups[0] if response.groups else response  # version 8 and later: a list (KIP-709)
    if fetched.error_code == GROUP_ID_NOT_FOUND:
        return {}
    cluster.raise_for(fetched.error_code or 0, "OffsetFetch", group)
    return _committed_offsets(fetched)


async def fetch_offsets_of(
    cluster: Cluster, names: Iterable[str]
) -> dict[str, dict[TopicPartition, Committed] | ClusterError]:
    """Returns for each group what `fetch_offsets` returns or raises, with one request for many groups of a coordinator.

    Brokers before Kafka 3.0 are sent one request for each group.
    """
    return await _OffsetsOfGroups(cluster).fetch(names)


class _OffsetsOfGroups:
    """One call of `fetch_offsets_of`."""

    def __init__(self, cluster: Cluster) -> None:
        self._cluster = cluster
        self._limit = asyncio.Semaphore(GROUPS_AT_ONCE)
        self._results: dict[str, dict[TopicPartition, Committed] | ClusterError] = {}
        self._by_node: dict[int, list[str]] = {}
        self._silent: dict[int, UnreachableError] = {}  # coordinators that did not answer

    async def fetch(self, names: Iterable[str]) -> dict[str, dict[TopicPartition, Committed] | ClusterError]:
        await asyncio.gather(*map(self._locate, names))
        several = [
            (node_id, part)
            for node_id, of_node in self._by_node.items()
            for part in chunks(of_node, GROUPS_PER_REQUEST_MAX)
            if len(part) > 1
        ]
        await asyncio.gather(*(self._fetch_many(node_id, part) for node_id, part in several))
        # Groups that have moved or were refused, and all groups of brokers that take one at a time.
        left = [
            (node_id, name)
            for node_id, of_node in self._by_node.items()
            for name in of_node
            if name not in self._results
        ]
        await asyncio.gather(*(self._fetch_one(node_id, name) for node_id, name in left))
        return self._results

    async def _locate(self, name: str) -> None:
        async with self._limit:
            try:
                node_id = await self._cluster.coordinator((GROUP_COORDINATOR, name))
                self._by_node.setdefault(node_id, []).append(name)
            except ClusterError as error:
                self._results[name] = error

    async def _fetch_many(self, node_id: int, names: Sequence[str]) -> None:
        async with self._limit:
            try:
                request = _fetch_request(names, min_version=_MANY_GROUPS_SINCE)
                response = await self._cluster.call(request, node_id=node_id, timeout_s=GROUP_TIMEOUT_S)
            except UnreachableError as error:
                self._silent[node_id] = error
            except ClusterError:
                return
            else:
                self._results.update(
                    (group.group_id, _committed_offsets(group))
                    for group in response.groups
                    if not group.error_code
                )

    async def _fetch_one(self, node_id: int, name: str) -> None:
        async with self._limit:
            try:
                # If the group has moved from a broker that is gone, its new coordinator answers.
                key = (GROUP_COORDINATOR, name)
                if node_id in self._silent and node_id == await self._cluster.coordinator(key, anew=True):
                    self._results[name] = self._silent[node_id]
                else:
                    self._results[name] = await fetch_offsets(self._cluster, name)
            except ClusterError as error:
                self._results[name] = error


def _fetch_request(names: Sequence[str], *, min_version: int) -> Any:
    from kafka.protocol.consumer.group import OffsetFetchRequest  # noqa: PLC0415 as in `_list_of`

    group_class = OffsetFetchRequest.OffsetFetchRequestGroup
    return OffsetFetchRequest(
        group_id=names[0],
        topics=None,
        groups=[group_class(group_id=name, member_id=None, member_epoch=-1, topics=None) for name in names],
        require_stable=False,
        min_version=min_version,
        max_version=_TOPIC_NAMES_UNTIL,
    )


def _committed_offsets(fetched: Any) -> dict[TopicPartition, Committed]:
    return {
        TopicPartition(topic.name, partition.partition_index): Committed(
            offset=partition.committed_offset, metadata=partition.metadata or ""
        )
        for topic in fetched.topics or ()
        for partition in topic.partitions
        if not partition.error_code and partition.committed_offset >= 0
    }


async def commit_offsets(
    cluster: Cluster, group: str, offsets: Mapping[TopicPartition, Committed]
) -> dict[TopicPartition, int]:
    """Commits *offsets* for *group*, which must have no members; returns error codes, 0 for success.

    A missing group is created. If the group has members, the coordinator refuses (MEMBERS_PRESENT). Many offsets are
    committed in parts; after such a refusal the later parts are not sent, and have no code. Raises NotAuthorizedError
    for the group, UnreachableError.
    """
    codes: dict[TopicPartition, int] = {}
    for part in _parts(group, offsets):
        codes |= await _commit(cluster, group, part)
        if MEMBERS_PRESENT & set(codes.values()):
            break
    return codes


def _parts(
    group: str, offsets: Mapping[TopicPartition, Committed]
) -> Iterator[dict[TopicPartition, Committed]]:
    part: dict[TopicPartition, Committed] = {}
    bytes_left = COMMIT_BYTES_MAX
    for partition, committed in offsets.items():
        texts = (group, partition.topic, committed.metadata)
        size_bytes = _COMMIT_OVERHEAD_BYTES + sum(len(text.encode()) for text in texts)
        if part and size_bytes > bytes_left:
            yield part
            part, bytes_left = {}, COMMIT_BYTES_MAX
        part[partition] = committed
        bytes_left -= size_bytes
    if part:
        yield part


async def _commit(
    cluster: Cluster, group: str, offsets: Mapping[TopicPartition, Committed]
) -> dict[TopicPartition, int]:
    from kafka.protocol.consumer.group import OffsetCommitRequest  # noqa: PLC0415 as in `_list_of`

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
    response = await cluster.call(
        request,
        coordinator=(GROUP_COORDINATOR, group),
        timeout_s=COMMIT_TIMEOUT_S,
        codes_of=lambda response: _codes(response).values(),
    )
    codes = _codes(response)
    for code in {*codes.values()} & ({GROUP_AUTHORIZATION_FAILED} | COORDINATOR_MOVED):
        cluster.raise_for(code, "OffsetCommit", group)
    return codes


def _codes(response: Any) -> dict[TopicPartition, int]:
    return {
        TopicPartition(topic.name, partition.partition_index): int(partition.error_code)
        for topic in response.topics
        for partition in topic.partitions
    }
