"""Defines the fields of a MirrorFlow's status, which only the operator writes.

The status has counts and states, but no topics, groups or secrets; values that change all the time are
metrics. Every list is bounded.
"""

from collections.abc import Mapping
from enum import Enum
from typing import Annotated, Any

from pydantic import Field, ValidationError

from mirrorflow_operator.api.model import ApiModel, RunId, list_map

CONDITIONS_MAX = 16
MESSAGE_MAX = 1_024
Timestamp = Annotated[str, Field(max_length=40, json_schema_extra={"format": "date-time"})]
PascalCase = Annotated[str, Field(max_length=64, pattern=r"^[A-Za-z]([A-Za-z0-9]*)$")]
Message = Annotated[str, Field(max_length=MESSAGE_MAX)]
Version = Annotated[str, Field(max_length=64)]
Image = Annotated[str, Field(max_length=512)]
ClusterId = Annotated[str, Field(max_length=64)]
Guarantee = Annotated[str, Field(max_length=64, pattern=r"^[a-z-]*$")]
Count = Annotated[int, Field(ge=0, json_schema_extra={"format": "int64"})]


class ConditionStatus(Enum):
    """Status of a condition, as in Kubernetes."""

    TRUE = "True"
    FALSE = "False"
    UNKNOWN = "Unknown"


class Phase(Enum):
    """Phase of a connector; conditions have the reasons."""

    PENDING = "Pending"
    RUNNING = "Running"
    PAUSED = "Paused"
    STOPPED = "Stopped"
    FAILED = "Failed"
    UNKNOWN = "Unknown"


class Lag(Enum):
    """How far the target is behind, as a range: an exact value would cause constant status updates."""

    NONE = "0"
    UNDER_A_SECOND = "<1s"
    UNDER_TEN_SECONDS = "<10s"
    UNDER_A_MINUTE = "<1m"
    UNDER_TEN_MINUTES = "<10m"
    MORE = "more"


class Condition(ApiModel):
    """One condition (KEP-1623)."""

    type: PascalCase = Field(description="Type of the condition.")
    status: ConditionStatus = Field(description="Status of the condition: True, False or Unknown.")
    observed_generation: int = Field(
        0, ge=0, description="Generation of the spec on which the condition is based."
    )
    last_transition_time: Timestamp = Field(description="Time at which status last changed.")
    reason: PascalCase = Field(description="Machine-readable reason.")
    message: Message = Field("", description="Human-readable message.")


class ConnectorStatus(ApiModel):
    """Observed workload of one connector."""

    phase: Phase = Field(Phase.UNKNOWN, description="Phase of the connector.")
    replicas: int = Field(0, ge=0, description="Number of pods that exist.")
    ready_replicas: int = Field(0, ge=0, description="Number of pods that are ready.")
    selector: Annotated[str, Field(max_length=512)] = Field(
        "", description="Label selector of the pods, for autoscalers."
    )
    image: Image = Field("", description="Container image of the pods.")


class ConnectorStatuses(ApiModel):
    """Observed workloads of the connectors."""

    source: ConnectorStatus | None = Field(None, description="Source connector.")
    checkpoint: ConnectorStatus | None = Field(None, description="Checkpoint connector.")
    heartbeat: ConnectorStatus | None = Field(None, description="Heartbeat connector.")
    schemas: ConnectorStatus | None = Field(None, description="Schema connector.")


class RunStatus(ApiModel):
    """Last run of an action."""

    run_id: RunId = Field("", description="Id of the run.")
    phase: PascalCase | None = Field(None, description="Phase of the run.")
    start_time: Timestamp | None = Field(None, description="Time at which the run started.")
    completion_time: Timestamp | None = Field(None, description="Time at which the run ended.")
    message: Message = Field("", description="Result of the run.")


class RunPhase(Enum):
    """Phase of a Spark job."""

    PENDING = "Pending"
    RUNNING = "Running"
    PAUSED = "Paused"
    SUCCEEDED = "Succeeded"
    FAILED = "Failed"
    LOST = "Lost"  # the Job was deleted before it reported its result


class RunCost(ApiModel):
    """Resources that all executors of a run have used together."""

    executor_seconds: Count = Field(0, description="Total time of the tasks on executors, in seconds.")
    bytes_read: Count = Field(0, description="Bytes read from both clusters.")
    bytes_written: Count = Field(0, description="Bytes written to the target.")


class SeedPartitions(ApiModel):
    """Partitions of a seed."""

    total: Count = Field(0, description="Number of partitions.")
    done: Count = Field(
        0, description="Partitions copied up to the end that the source had when the seed started."
    )
    lost: Count = Field(
        0, description="Partitions that stopped, or whose source lost records before they were copied."
    )


class SeedDriver(ApiModel):
    """Driver whose progress was added last."""

    uid: Annotated[str, Field(max_length=64)] = Field("", description="UID of the pod.")
    creation_time: Timestamp = Field(description="Creation time of the pod.")
    earlier_records: Count = Field(0, description="Records that earlier drivers copied.")
    earlier_bytes: Count = Field(0, description="Bytes that earlier drivers copied.")


class SeedStatus(RunStatus):
    """Last seed. Counts include all its drivers, and are updated once a minute while it runs."""

    partitions: SeedPartitions | None = Field(None, description="Progress by partitions.")
    wave: Count | None = Field(
        None,
        description="Number of the wave that runs or ran last; each copies what came during the one before.",
    )
    driver: SeedDriver | None = Field(None, description="Driver that is running, or ran last.")
    records: Count = Field(0, description="Records that all drivers of the run copied.")
    bytes: Count = Field(0, description="Bytes that all drivers of the run copied.")
    remaining_records: Count = Field(0, description="Number of offsets still to be copied.")
    gap_records: Count = Field(
        0, description="Number of offsets that the source lost before they were copied."
    )
    records_per_second: Count = Field(0, description="Records copied per second.")
    bytes_per_second: Count = Field(0, description="Bytes copied per second.")
    estimated_seconds: Count | None = Field(
        None, description="Estimated remaining time in seconds, at the current rate."
    )
    guarantee: Guarantee = Field("", description="Delivery guarantee, for example exactly-once.")
    cost: RunCost | None = Field(None, description="Resources that the run has used.")


class WindowCounts(ApiModel):
    """Windows of source offsets that were compared."""

    total: Count = Field(0, description="Number of windows compared.")
    equal: Count = Field(0, description="Windows with the same records in the same order.")
    reordered: Count = Field(0, description="Windows with the same records in a different order.")
    different: Count = Field(0, description="Windows with different records.")
    undecided: Count = Field(
        0, description="Windows that could not be compared, for example because one side had deleted records."
    )


class VerifyStatus(RunStatus):
    """Last verification; runId is empty if the schedule started it."""

    ended_run_id: RunId = Field("", description="Last runId whose run has ended; it does not run again.")
    job: Annotated[str, Field(max_length=63)] = Field(
        "", description="Name of the Job; the log of its driver has details."
    )
    verdict_time: Timestamp | None = Field(None, description="Time at which a run last ended with a verdict.")
    windows: WindowCounts | None = Field(None, description="Results by window.")
    source_records: Count = Field(0, description="Records read from the source.")
    target_records: Count = Field(0, description="Records read from the target.")
    differences: Count = Field(0, description="Number of different records, as far as they were counted.")
    cost: RunCost | None = Field(None, description="Resources that the run has used.")


class ArchiveStatus(RunStatus):
    """Last export into the archive; runId is empty."""

    job: Annotated[str, Field(max_length=63)] = Field(
        "", description="Name of the Job; the log of its driver has details."
    )
    commit: Count = Field(0, description="Number of the archive's last commit.")
    records: Count = Field(0, description="Records in the archive.")
    success_time: Timestamp | None = Field(
        None, description="Time at which all that was new was last found to be archived."
    )
    next_time: Timestamp | None = Field(None, description="Time of the next scheduled export.")


class RestoreStatus(RunStatus):
    """Last restore. Counts are those of its last driver, and are updated once a minute while it runs."""

    partitions: SeedPartitions | None = Field(None, description="Progress by partitions.")
    records: Count = Field(0, description="Records that the driver has restored.")
    bytes: Count = Field(0, description="Bytes that the driver has restored.")


class ClusterIds(ApiModel):
    """Cluster ids that the brokers reported; a flow does not copy to or from a different cluster."""

    source: ClusterId = Field("", description="Id of the source cluster.")
    target: ClusterId = Field("", description="Id of the target cluster.")


class Status(ApiModel):
    """Observed state, reported by the operator."""

    observed_generation: int = Field(
        0, ge=0, description="Generation of the spec that this status describes."
    )
    conditions: Annotated[
        tuple[Condition, ...], Field(max_length=CONDITIONS_MAX, json_schema_extra=list_map("type"))
    ] = Field((), description="Conditions of the flow.")
    version: Version = Field("", description="Version of the replicator, pinned at the first start.")
    flow_id: Annotated[str, Field(max_length=256)] = Field(
        "",
        description="Id under which the flow claims the alias of its source on the target, pinned at the first "
        "start.",
    )
    cluster_ids: ClusterIds | None = Field(None, description="Cluster ids of the source and the target.")
    lag: Lag | None = Field(None, description="How far the target is behind the source.")
    connectors: ConnectorStatuses | None = Field(None, description="Workloads of the connectors.")
    seed: SeedStatus | None = Field(None, description="Last seed.")
    verify: VerifyStatus | None = Field(None, description="Last verification.")
    archive: ArchiveStatus | None = Field(None, description="Last export into the archive.")
    restore: RestoreStatus | None = Field(None, description="Last restore.")
    restart: RunStatus | None = Field(None, description="Last restart.")


def parse_status(document: Any) -> Status:
    """Parses *document* into a Status; fields of another release or another writer are ignored one by one.

    An unreadable field must not cost the others, because the pinned version is among them.
    """
    if not isinstance(document, Mapping):
        return Status()
    fields: dict[str, Any] = {}
    for name, field in Status.model_fields.items():
        alias = field.alias or name
        if alias in document:
            fields |= _field(name, alias, document[alias])
    return Status(**fields)


def _field(name: str, alias: str, value: Any) -> dict[str, Any]:
    if name == "conditions":
        return {name: parse_conditions(value)}
    try:
        part = Status.model_validate({alias: value}, extra="ignore")
    except ValidationError:
        return {}
    return {name: getattr(part, name)}


def parse_conditions(value: Any) -> tuple[Condition, ...]:
    """Returns the readable conditions of a status, of each type the last one."""
    rows = value if isinstance(value, list) else []
    conditions = {
        condition.type: condition for condition in (_condition(row) for row in rows) if condition is not None
    }
    return tuple(conditions.values())


def _condition(row: Any) -> Condition | None:
    try:
        return Condition.model_validate(row, extra="ignore")
    except ValidationError:
        return None
