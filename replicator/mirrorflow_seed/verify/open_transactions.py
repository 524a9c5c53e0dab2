"""Describes transactions that stay open at the end of a partition: of which producer, from which offset, since when."""

import contextlib
from collections.abc import Iterable, Mapping
from datetime import UTC, datetime

from mirrorflow_core.errors import MirrorFlowError
from mirrorflow_core.partitions import TopicPartition
from mirrorflow_kafka.admin import admin
from mirrorflow_kafka.client.cluster import Cluster


async def describe_open_transactions(
    cluster: Cluster, stable_ends: Mapping[TopicPartition, int]
) -> dict[TopicPartition, str]:
    """Describes the transaction that is open at each partition's last stable offset (KIP-664).

    The producer is left out where a leader does not report it: before Kafka 2.8, or without Read on the topic.
    """
    responses: Mapping[TopicPartition, admin.ProducersResponse] = {}
    if stable_ends:
        with contextlib.suppress(MirrorFlowError):  # the offset is known without it
            responses = await admin.describe_producers(cluster, stable_ends)
    return {
        partition: _description(offset, responses[partition].producers if partition in responses else ())
        for partition, offset in stable_ends.items()
    }


def _description(offset: int, producers: Iterable[admin.ActiveProducer]) -> str:
    text = f"an open transaction from offset {offset} on"
    for producer in producers:
        if producer.current_txn_start_offset == offset:
            text += f", of producer {producer.producer_id} (epoch {producer.epoch})"
            if producer.last_timestamp >= 0:
                text += f", whose last record is of {_utc(producer.last_timestamp)}"
    return text


def _utc(timestamp_ms: int) -> str:
    try:
        return datetime.fromtimestamp(timestamp_ms // 1000, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
    except (OverflowError, OSError, ValueError):
        return f"timestamp {timestamp_ms}"  # producers choose timestamps freely
