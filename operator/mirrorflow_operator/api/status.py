"""The status of a MirrorFlow: what the operator says, and nobody else writes.

Counts and words only: no topic, no group, no secret; figures that move are metrics. Every list is bounded.
"""

from enum import Enum
from typing import Annotated

from pydantic import Field

from mirrorflow_operator.api.model import ApiModel, RunId, list_map

CONDITIONS_MAX = 16
MESSAGE_MAX = 1_024
Moment = Annotated[str, Field(max_length=40, json_schema_extra={"format": "date-time"})]
Word = Annotated[str, Field(max_length=64, pattern=r"^[A-Za-z]([A-Za-z0-9]*)$")]
Message = Annotated[str, Field(max_length=MESSAGE_MAX)]
Version = Annotated[str, Field(max_length=64)]
Image = Annotated[str, Field(max_length=512)]
ClusterId = Annotated[str, Field(max_length=64)]
Guarantee = Annotated[str, Field(max_length=64, pattern=r"^[a-z-]*$")]
Count = Annotated[int, Field(ge=0, json_schema_extra={"format": "int64"})]


class ConditionStatus(Enum):
    """Kubernetes' three answers."""

    TRUE = "True"
    FALSE = "False"
    UNKNOWN = "Unknown"


class Phase(Enum):
    """A connector at a glance; conditions say why."""

    PENDING = "Pending"
    RUNNING = "Running"
    PAUSED = "Paused"
    STOPPED = "Stopped"
    FAILED = "Failed"
    UNKNOWN = "Unknown"


class Lag(Enum):
    """How far the target is behind, roughly: figures that move would write the status all day."""

    NONE = "0"
    UNDER_A_SECOND = "<1s"
    UNDER_TEN_SECONDS = "<10s"
    UNDER_A_MINUTE = "<1m"
    UNDER_TEN_MINUTES = "<10m"
    MORE = "more"


class Condition(ApiModel):
    """One question and its answer (KEP-1623)."""

    type: Word = Field(description="The question.")
    status: ConditionStatus = Field(description="True, False or Unknown.")
    observed_generation: int = Field(0, ge=0, description="Of the spec that was looked at.")
    last_transition_time: Moment = Field(description="When status last changed.")
    reason: Word = Field(description="A word for programs.")
    message: Message = Field("", description="A sentence for people.")


class ConnectorStatus(ApiModel):
    """One connector's workload."""

    phase: Phase = Field(Phase.UNKNOWN, description="At a glance.")
    replicas: int = Field(0, ge=0, description="Pods that exist.")
    ready_replicas: int = Field(0, ge=0, description="Pods that are ready.")
    wanted_replicas: int | None = Field(
        None, ge=0, description="Pods that autoscale has decided on; absent without it."
    )
    selector: Annotated[str, Field(max_length=512)] = Field("", description="Of its pods, for autoscalers.")
    image: Image = Field("", description="What it runs.")


class ConnectorStatuses(ApiModel):
    """The workload of each connector."""

    source: ConnectorStatus | None = Field(None, description="Copies records.")
    checkpoint: ConnectorStatus | None = Field(None, description="Translates group offsets.")
    heartbeat: ConnectorStatus | None = Field(None, description="Emits heartbeats.")


class RunStatus(ApiModel):
    """The last run of an action."""

    run_id: RunId = Field("", description="Which run.")
    phase: Word | None = Field(None, description="Where it stands.")
    start_time: Moment | None = Field(None, description="When it began.")
    completion_time: Moment | None = Field(None, description="When it ended.")
    message: Message = Field("", description="What came of it.")


class RunPhase(Enum):
    """Where a Spark job stands."""

    PENDING = "Pending"
    RUNNING = "Running"
    PAUSED = "Paused"
    SUCCEEDED = "Succeeded"
    FAILED = "Failed"
    LOST = "Lost"  # it was deleted before it told what came of it


class Cost(ApiModel):
    """What a run has used, all executors together."""

    executor_seconds: Count = Field(0, description="Time of tasks on executors, in seconds.")
    bytes_read: Count = Field(0, description="From both clusters.")
    bytes_written: Count = Field(0, description="To the target.")


class SeedPartitions(ApiModel):
    """Partitions of a seed."""

    total: Count = Field(0, description="All.")
    done: Count = Field(0, description="Filled up to where their source ended when the seed began.")
    lost: Count = Field(
        0, description="With records that the source had lost before they were copied, or stopped."
    )


class SeedStatus(RunStatus):
    """The last seeding. Figures are of the driver's last word; while it runs they are written once a minute."""

    partitions: SeedPartitions | None = Field(None, description="How many are filled.")
    records: Count = Field(0, description="Records copied by the driver that runs, or ran last.")
    bytes: Count = Field(0, description="Bytes of these.")
    remaining_records: Count = Field(0, description="Offsets that are left.")
    gap_records: Count = Field(0, description="Offsets that the source had lost before they were copied.")
    records_per_second: Count = Field(0, description="How fast.")
    bytes_per_second: Count = Field(0, description="How fast, in bytes.")
    estimated_seconds: Count | None = Field(
        None, description="How long it will take from here, at this rate."
    )
    guarantee: Guarantee = Field("", description="exactly-once, or what holds instead.")
    cost: Cost | None = Field(None, description="What it has used.")


class Windows(ApiModel):
    """Windows of source offsets that were compared."""

    total: Count = Field(0, description="All that are compared.")
    equal: Count = Field(0, description="The same records in the same order.")
    reordered: Count = Field(0, description="The same records in another order.")
    different: Count = Field(0, description="Other records.")
    undecided: Count = Field(
        0, description="What could not be compared, for example because one side has deleted it."
    )


class VerifyStatus(RunStatus):
    """The last verification, asked for by runId or begun by the schedule (then runId is empty)."""

    ended_run_id: RunId = Field("", description="The last runId whose run has ended: it does not run again.")
    job: Annotated[str, Field(max_length=63)] = Field("", description="The Job; its driver's log says more.")
    verdict_time: Moment | None = Field(None, description="When a run last ended with a verdict.")
    windows: Windows | None = Field(None, description="How they compare.")
    source_records: Count = Field(0, description="Records read of the source.")
    target_records: Count = Field(0, description="Records read of the target.")
    differences: Count = Field(0, description="Records that differ, as far as they were counted.")
    cost: Cost | None = Field(None, description="What it has used.")


class ClusterIds(ApiModel):
    """Which clusters answered behind the addresses: another one there is not copied into."""

    source: ClusterId = Field("", description="The source's own id.")
    target: ClusterId = Field("", description="The target's own id.")


class Status(ApiModel):
    """The operator's word on a flow."""

    observed_generation: int = Field(0, ge=0, description="Of the spec that this status is about.")
    conditions: Annotated[
        tuple[Condition, ...], Field(max_length=CONDITIONS_MAX, json_schema_extra=list_map("type"))
    ] = Field((), description="The flow's conditions.")
    version: Version = Field("", description="The replicator's version, pinned at first use.")
    cluster_ids: ClusterIds | None = Field(None, description="Which clusters these are.")
    lag: Lag | None = Field(None, description="How far the target is behind.")
    connectors: ConnectorStatuses | None = Field(None, description="Each connector's workload.")
    seed: SeedStatus | None = Field(None, description="The last seeding.")
    verify: VerifyStatus | None = Field(None, description="The last verification.")
    restart: RunStatus | None = Field(None, description="The last restart.")
