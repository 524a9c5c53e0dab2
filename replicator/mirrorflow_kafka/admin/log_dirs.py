"""Reads the size of partition logs on disk (DescribeLogDirs, KIP-113). Needs Describe on the cluster."""

import asyncio

from kafka.protocol.admin import DescribeLogDirsRequest

from mirrorflow_core.partitions import TopicPartition
from mirrorflow_kafka.client.cluster import Cluster
from mirrorflow_kafka.client.error_codes import raise_for


async def log_sizes(cluster: Cluster) -> dict[TopicPartition, int]:
    """Return the log size of every partition in bytes, at its largest replica.

    Partitions that no broker reports are absent. Raises NotAuthorizedError, ClusterError.
    """
    nodes = list(cluster.metadata.brokers)
    answers = await asyncio.gather(
        *(cluster.call(DescribeLogDirsRequest(topics=None), node_id=node) for node in nodes)
    )
    sizes: dict[TopicPartition, int] = {}
    for answer in answers:
        # Before version 3 a refusal is an empty list without an error code.
        raise_for(
            getattr(answer, "error_code", 0) or 0,
            cluster=cluster.alias,
            request="DescribeLogDirs",
            subject="",
        )
        for folder in answer.results:
            for topic in folder.topics:
                for one in topic.partitions:
                    if not one.is_future_key:
                        key = TopicPartition(topic.name, one.partition_index)
                        sizes[key] = max(sizes.get(key, 0), one.partition_size)
    return sizes
