"""Requests stay below what readers of Kafka 4.4 accept: a million elements of an array, and 10,000 tagged fields.

Requests about many topics, partitions or ACLs are sent in parts. A fetch and a produce request have at most the
partitions of a task that one broker leads; their bytes are written by hand, with empty sections of tagged fields.
"""

import asyncio
from collections.abc import Awaitable, Callable, Iterator
from typing import Any

import pytest

from mirrorflow_core.offsets.offset_translation import Committed
from mirrorflow_core.partitions import TopicPartition
from mirrorflow_core.topics.topic_acls import AclBinding
from mirrorflow_core.topics.topic_configs import ConfigChange
from mirrorflow_kafka.admin import admin, groups
from mirrorflow_kafka.admin.leader_rounds import PARTITIONS_MAX
from mirrorflow_kafka.client.cluster import METADATA_TOPICS_MAX
from mirrorflow_kafka.client.repeatable_requests import REPETITIONS

# Limits of AbstractRequest's readers in Kafka 4.4.
ELEMENTS_MAX, TAGGED_FIELDS_MAX = 1_000_000, 10_000
# More than any part has, but few enough to be created quickly.
MANY = 20_000
NAMES = [f"topic-{number}" for number in range(MANY)]
ACL = AclBinding(
    resource_type=2,
    resource_name="t",
    pattern_type=3,
    principal="User:u",
    host="*",
    operation=3,
    permission_type=3,
)


class SentError(Exception):
    """The request was sent, so the rest of the caller need not run."""


class RecordingCluster:
    """Keeps the first request and fails it."""

    alias = "west"

    def __init__(self) -> None:
        self.request: Any = None

    async def call(self, request: Any, **_: Any) -> Any:
        self.request = request
        raise SentError


CALLS: dict[str, Callable[[Any], Awaitable[object]]] = {
    "CreateTopics": lambda cluster: admin.create_topics(
        cluster, [admin.NewTopic(name=name, partitions=1) for name in NAMES], validate_only=True
    ),
    "CreatePartitions": lambda cluster: admin.create_partitions(cluster, dict.fromkeys(NAMES, 2)),
    "Metadata": lambda cluster: admin.topic_operations(cluster, NAMES),
    "DescribeConfigs": lambda cluster: admin.describe_topic_configs(cluster, NAMES),
    "IncrementalAlterConfigs": lambda cluster: admin.alter_topic_configs(
        cluster, {name: [ConfigChange(name="retention.ms", value="1")] for name in NAMES}
    ),
    "CreateAcls": lambda cluster: admin.create_acls(cluster, [ACL] * MANY),
    "DeleteAcls": lambda cluster: admin.delete_acls(cluster, [ACL] * MANY),
    "OffsetCommit": lambda cluster: groups.commit_offsets(
        cluster, "g", {TopicPartition(name, 0): Committed(offset=1, metadata="") for name in NAMES}
    ),
}


def lengths(fields: object) -> Iterator[int]:
    """Yields the length of every array in the fields of a request."""
    if isinstance(fields, list):
        yield len(fields)
    for part in fields.values() if isinstance(fields, dict) else fields if isinstance(fields, list) else ():
        yield from lengths(part)


@pytest.mark.parametrize("name", CALLS)
def test_a_large_request_is_sent_in_parts(name: str):
    cluster = RecordingCluster()

    with pytest.raises(SentError):
        asyncio.run(_awaited(CALLS[name](cluster)))

    assert cluster.request.name == f"{name}Request"
    assert 1 < max(lengths(cluster.request.to_dict())) < MANY
    assert len(cluster.request.tags or ()) < TAGGED_FIELDS_MAX


async def _awaited(call: Awaitable[object]) -> None:
    await call


def test_each_part_is_below_the_array_limit_of_brokers():
    assert max(METADATA_TOPICS_MAX, PARTITIONS_MAX, MANY) < ELEMENTS_MAX
    assert CALLS.keys() <= REPETITIONS.keys()
