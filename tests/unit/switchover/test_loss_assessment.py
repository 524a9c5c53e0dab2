"""What an unplanned switchover knows of its loss, from the target alone."""

import asyncio
from types import SimpleNamespace
from typing import Any

import pytest

from mirrorflow_core.switchover.loss import LossAssessment
from mirrorflow_core.wire.error_codes import UNKNOWN_TOPIC_OR_PARTITION
from mirrorflow_kafka.admin import admin
from mirrorflow_kafka.client.metadata import TopicMetadata
from mirrorflow_replicator.switchover import loss_assessment
from mirrorflow_replicator.switchover.loss_assessment import CopiedPartitions, FlowProgress, assess_loss

OFFSETS = "mm2-offsets.east.internal"


class Target:
    """A cluster with a topic that is called as one of the flow, and without the offsets topic of that."""

    def __init__(self) -> None:
        self.metadata = SimpleNamespace(topics={"orders": TopicMetadata(name="orders")})

    async def refresh(self, topics: list[str]) -> None:
        for topic in topics:
            self.metadata.topics[topic] = TopicMetadata(name=topic, error=UNKNOWN_TOPIC_OR_PARTITION)


def test_a_flow_that_has_never_run_has_copied_nothing(monkeypatch: pytest.MonkeyPatch):
    """A read of its positions waits for their topic. It would be repeated without end."""
    everything: Any = SimpleNamespace(selects=lambda _: True, is_heartbeats_topic=lambda _: False)
    for name in ("make_selection", "make_replication_policy"):
        monkeypatch.setattr(loss_assessment, name, lambda _: everything)

    async def list_topics(target: Target) -> object:
        return dict(target.metadata.topics)

    monkeypatch.setattr(admin, "list_topics", list_topics)
    settings: Any = SimpleNamespace(offsets=SimpleNamespace(topic=OFFSETS))
    target: Any = Target()

    loss = asyncio.run(assess_loss(CopiedPartitions(settings, target), None, FlowProgress()))

    assert LossAssessment(partitions=()) == loss
