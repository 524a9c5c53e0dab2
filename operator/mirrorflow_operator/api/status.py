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
    seed: RunStatus | None = Field(None, description="The last seeding.")
    verify: RunStatus | None = Field(None, description="The last verification.")
    restart: RunStatus | None = Field(None, description="The last restart.")
