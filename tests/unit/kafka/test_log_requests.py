"""Requests about partition logs: an unresponsive leader does not delay the others."""

import asyncio
from types import SimpleNamespace
from typing import Any

from mirrorflow_core.partitions import TopicPartition
from mirrorflow_core.wire.error_codes import NETWORK_EXCEPTION
from mirrorflow_kafka.admin import admin
from mirrorflow_kafka.admin.log_requests import LATEST
from mirrorflow_kafka.client.metadata import Metadata, PartitionMetadata, TopicMetadata

UNRESPONSIVE, RESPONSIVE = TopicPartition("orders", 0), TopicPartition("orders", 1)
END = 7


class Connection:
    muted_until_s = 0.0

    def __init__(self, *, is_unresponsive: bool) -> None:
        self._is_silent = is_unresponsive

    async def call(self, request: Any, **_options: float) -> Any:
        if self._is_silent:
            await asyncio.Event().wait()
        parts = [
            SimpleNamespace(
                partition_index=partition.partition_index,
                error_code=0,
                offset=END,
                timestamp=-1,
                leader_epoch=3,
            )
            for topic in request.topics
            for partition in topic.partitions
        ]
        return SimpleNamespace(topics=[SimpleNamespace(name="orders", partitions=parts)])


class Leaders:
    """A cluster in which broker 0 leads partition 0 and does not respond."""

    alias = "west"
    metadata = Metadata(
        cluster_id="",
        controller_id=0,
        brokers={},
        topics={
            "orders": TopicMetadata(
                name="orders",
                partitions={
                    number: PartitionMetadata(
                        leader=number, leader_epoch=3, replicas=(number,), isr=(number,)
                    )
                    for number in (0, 1)
                },
            )
        },
    )

    def leader(self, topic: str, partition: int) -> int | None:
        return self.metadata.leader(topic, partition)

    async def connection(self, node_id: int, **_options: str) -> Connection:
        return Connection(is_unresponsive=node_id == UNRESPONSIVE.partition)

    async def refresh(self, _topics: Any) -> None:
        """The metadata is up to date."""


def test_an_unresponsive_leader_has_an_error_and_the_others_have_offsets():
    cluster: Any = Leaders()

    offsets = asyncio.run(admin.list_offsets(cluster, [UNRESPONSIVE, RESPONSIVE], LATEST, timeout_s=0.01))

    assert offsets[UNRESPONSIVE].error == NETWORK_EXCEPTION
    assert (offsets[RESPONSIVE].error, offsets[RESPONSIVE].offset) == (0, END)
