"""The parts that a session of a task is built from: clusters, its start, and what it shares with other sessions."""

from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import field
from typing import TYPE_CHECKING

from mirrorflow_core.copying.partition import PartitionCopier
from mirrorflow_core.light_dataclasses import dataclass
from mirrorflow_core.partitions import TopicPartition
from mirrorflow_core.settings import SourceSettings
from mirrorflow_core.transforms import RenameRule
from mirrorflow_core.writer.flow_plan import SessionStart
from mirrorflow_kafka.client.cluster import Cluster
from mirrorflow_kafka.stores.compacted_topic import TopicState
from mirrorflow_kafka.stores.position_store import PositionStore
from mirrorflow_kafka.writer.flow_topics import FlowTopics
from mirrorflow_kafka.writer.producer_transactions import ProducerTransactions
from mirrorflow_replicator.config.plugins import make_naming
from mirrorflow_replicator.copy.offset_sync_writer import OffsetSyncWriter

if TYPE_CHECKING:
    from mirrorflow_replicator.copy.schema_wait import SchemaWait


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskParts:
    """Everything that `TaskSession` gets when it is created, beside its settings."""

    source: Cluster
    target: Cluster
    positions: PositionStore  # where no other writer can be fenced
    route: Callable[[str], RenameRule]
    rack: str = ""
    errors: Counter[str]  # by reason
    syncs: OffsetSyncWriter | None = None
    schemas: "SchemaWait | None" = None  # None: no record waits for its schema
    session: "SessionParts"


@dataclass(slots=True, kw_only=True)
class KnownSchemas:
    """What the sessions of a task know of schemas: ids that no record waits for, and whether registries answer."""

    ids: set[int] = field(default_factory=set)
    problem: str | None = None  # why no record waits; None: the registries answer
    unasked_until_s: float = 0.0  # monotonic clock; while there is a problem

    def note_response(self) -> None:
        """Notes that the registries answer."""
        self.problem = None

    def note_no_response(self, problem: str, unasked_until_s: float) -> None:
        """Notes why the registries do not answer, and until when no record waits for them."""
        self.problem, self.unasked_until_s = problem, unasked_until_s


@dataclass(frozen=True, slots=True, kw_only=True)
class SessionParts:
    """What one session of the task gets. *end* is called when it cannot continue: the next one finds what it wrote."""

    start: SessionStart
    transactions: ProducerTransactions
    earlier: Mapping[TopicPartition, PartitionCopier]  # of the sessions before, for their counts
    log_append_time_topics: set[str]  # target topics that are known to have LogAppendTime
    known_schemas: KnownSchemas
    end: Callable[[str], None]  # takes the reason
    offsets_topic: TopicState | None = None  # before the positions of `start` were stored


def flow_topics(settings: SourceSettings) -> FlowTopics:
    """Returns the topics of the flow with *settings* on the target."""
    route = make_naming(settings).route
    return FlowTopics(
        source_alias=settings.source_alias,
        connector=settings.name,
        offsets=settings.offsets.topic,
        target_topic=lambda topic: route(topic).name,
    )
