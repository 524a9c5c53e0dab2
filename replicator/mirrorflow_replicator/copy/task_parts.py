"""The parts that a copy task is built from: clusters, identity, and what it shares with other tasks."""

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

from mirrorflow_core.exactly_once.identity import Identity
from mirrorflow_core.naming.transforms import RenameRule
from mirrorflow_core.partitions import TopicPartition
from mirrorflow_core.reports import KnownEnd
from mirrorflow_core.settings import SourceSettings
from mirrorflow_core.writer.flow_plan import TaskStart
from mirrorflow_kafka.client.cluster import Cluster
from mirrorflow_kafka.stores.decision_log import DecisionLog
from mirrorflow_kafka.stores.position_store import PositionStore
from mirrorflow_kafka.writer.flow_topics import FlowTopics
from mirrorflow_kafka.writer.producer_transactions import ProducerTransactions
from mirrorflow_replicator.config.plugins import make_naming
from mirrorflow_replicator.copy.offset_sync_writer import OffsetSyncWriter
from mirrorflow_replicator.copy.partition_copier import PartitionCopier


class EndStart(Protocol):
    """Ends a start of a task with a reason; the next one begins at the known ends, and elsewhere as the logs show."""

    def __call__(self, why: str, known_ends: Sequence[KnownEnd] = ()) -> None: ...


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskParts:
    """Everything that `CopyTask` gets when it is created, beside its settings."""

    source: Cluster
    target: Cluster
    identity: Identity
    log: DecisionLog
    positions: PositionStore
    route: Callable[[str], RenameRule]
    rack: str = ""
    errors: Counter[str]  # by reason
    syncs: OffsetSyncWriter | None = None
    fenced: "FencedStart | None" = (
        None  # the task is the only writer of its partitions; None: the first engine
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class FencedStart:
    """The start of a task that is the only writer of its partitions.

    *end* is called when the task cannot continue: what it wrote is found by its next start.
    """

    start: TaskStart
    transactions: ProducerTransactions
    earlier: Mapping[TopicPartition, PartitionCopier]  # of the starts before, for their counts
    stamped: set[str]  # target topics that are known to have LogAppendTime
    end: EndStart


def flow_topics(settings: SourceSettings) -> FlowTopics:
    """Returns the topics of the flow with *settings* on the target."""
    route = make_naming(settings).route
    return FlowTopics(
        source_alias=settings.source_alias,
        connector=settings.name,
        offsets=settings.offsets.topic,
        target_topic=lambda topic: route(topic).name,
    )
