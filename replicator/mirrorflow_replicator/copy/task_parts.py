"""The parts that a copy task is built from: clusters, identity, and what it shares with other tasks."""

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass

from mirrorflow_core.exactly_once.identity import Identity
from mirrorflow_core.naming.transforms import RenameRule
from mirrorflow_kafka.client.cluster import Cluster
from mirrorflow_kafka.stores.decision_log import DecisionLog
from mirrorflow_kafka.stores.position_store import PositionStore
from mirrorflow_replicator.copy.offset_sync_writer import OffsetSyncWriter


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
    own: Identity | None = None  # the producer of a task with own transactions; None: *identity*
