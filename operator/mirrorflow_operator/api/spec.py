"""The types of the MirrorFlow resource, `mirrorflow.io/v1alpha1`: replication from one source to one target.

These types define each field, `validate` checks rules between fields, and `load` parses a text to a
MirrorFlow or to errors that name the field. Nothing here reads a file, a clock or a Secret.
"""

from enum import Enum
from typing import Annotated, Any, Literal

from pydantic import ConfigDict, Field

from mirrorflow_operator.api.cluster import ClusterSpec
from mirrorflow_operator.api.connectors import Connectors
from mirrorflow_operator.api.model import (
    LIST_SET,
    PATTERNS_MAX,
    ApiModel,
    FlowId,
    ObjectName,
    Pattern,
    Quantity,
)
from mirrorflow_operator.api.runs import RollingRestart, Seed, Verify
from mirrorflow_operator.api.topics import Topics


class Side(Enum):
    """The source or the target cluster."""

    SOURCE = "Source"
    TARGET = "Target"


class Groups(ApiModel):
    """Selection of consumer groups."""

    include: tuple[Pattern, ...] = Field(
        (".*",),
        max_length=PATTERNS_MAX,
        description="Names or regexes of consumer groups whose offsets are translated. If absent, all groups.",
        json_schema_extra=LIST_SET,
    )
    exclude: tuple[Pattern, ...] = Field(
        (),
        max_length=PATTERNS_MAX,
        description="Names or regexes of consumer groups to exclude, in addition to MirrorMaker 2's defaults. "
        "Takes precedence over include.",
        json_schema_extra=LIST_SET,
    )
    sync_offsets: bool = Field(
        True, description="Whether translated offsets are committed to the target's inactive groups."
    )


class OffsetSyncs(ApiModel):
    """MirrorMaker 2's offset-syncs topic."""

    location: Side = Field(
        Side.TARGET,
        description="Cluster that stores the topic. With Target, a flow needs only Read and Describe on its "
        "source. Immutable.",
    )


class Heartbeats(ApiModel):
    """MirrorMaker 2's heartbeats."""

    emit_to: tuple[Side, ...] = Field(
        (Side.TARGET, Side.SOURCE),
        max_length=2,
        description="Clusters to which heartbeats are written. If absent, both. The hop count "
        "(replicationHops) needs those on the source.",
        json_schema_extra=LIST_SET,
    )


API_VERSION = "mirrorflow.io/v1alpha1"
KIND = "MirrorFlow"
# Names of child objects are the flow's name and a suffix; Kubernetes allows 63 characters in all.
NAME_MAX = 40


class State(Enum):
    """Desired state of the flow."""

    RUNNING = "Running"
    PAUSED = "Paused"
    STOPPED = "Stopped"


class IsolationLevel(Enum):
    """Which records are copied."""

    READ_UNCOMMITTED = "ReadUncommitted"
    READ_COMMITTED = "ReadCommitted"


class Limits(ApiModel):
    """Limits of the flow."""

    bytes_per_second: Quantity | None = Field(
        None, description="Maximum number of bytes read per second, for example 50Mi."
    )


class RestTls(ApiModel):
    """Certificate of the internal REST server."""

    secret_name: ObjectName = Field(description="Name of a Secret of type kubernetes.io/tls.")


class InternalRest(ApiModel):
    """REST requests between the pods of one connector, used if it has several replicas."""

    tls: RestTls | None = Field(None, description="TLS settings. If absent, connections are not encrypted.")


class Spec(ApiModel):
    """Desired state, written only by users."""

    state: State = Field(
        State.RUNNING,
        description="Running, Paused (pods stay, and the lag is still reported) or Stopped (no pods run, and "
        "offsets can be altered).",
    )
    source: ClusterSpec = Field(description="Cluster from which records are copied.")
    target: ClusterSpec = Field(description="Cluster to which records are copied.")
    topics: Topics = Field(
        default_factory=Topics, description="Selection of topics, and how they are copied."
    )
    groups: Groups = Field(default_factory=Groups, description="Selection of consumer groups.")
    take_over_from: Annotated[tuple[FlowId, ...], Field(max_length=10, json_schema_extra=LIST_SET)] = Field(
        (),
        description="Ids of flows that this flow continues once they have stopped: the flow under its earlier "
        "name, or in another Kubernetes cluster. The id of a flow is status.flowId.",
    )
    isolation_level: IsolationLevel = Field(
        IsolationLevel.READ_UNCOMMITTED,
        description="ReadUncommitted or ReadCommitted; the latter skips records of aborted transactions.",
    )
    offset_syncs: OffsetSyncs = Field(
        default_factory=OffsetSyncs, description="MirrorMaker 2's offset-syncs topic."
    )
    heartbeats: Heartbeats = Field(default_factory=Heartbeats, description="MirrorMaker 2's heartbeats.")
    limits: Limits = Field(default_factory=Limits, description="Limits of the flow.")
    version: Annotated[str, Field(max_length=64, pattern=r"^[a-zA-Z0-9._-]*$")] = Field(
        "",
        description="Version of the replicator. If empty, the version of the first start is pinned in the "
        "status.",
    )
    connectors: Connectors = Field(default_factory=Connectors, description="Workloads of the connectors.")
    internal_rest: InternalRest = Field(
        default_factory=InternalRest, description="REST requests between the pods of one connector."
    )
    seed: Seed | None = Field(None, description="Bulk copy to the target.")
    verify: Verify | None = Field(None, description="Comparison of the records on both clusters.")
    restart: RollingRestart = Field(
        default_factory=RollingRestart, description="Rolling restart of the connectors."
    )


class FlowMetadata(ApiModel):
    """The part of Kubernetes' metadata that planning needs; the rest is ignored."""

    model_config = ConfigDict(extra="ignore")

    name: Annotated[str, Field(max_length=NAME_MAX, pattern=r"^[a-z0-9]([-a-z0-9]*[a-z0-9])?$")] = Field(
        description="Name of the flow."
    )
    namespace: Annotated[str, Field(max_length=63)] = Field("", description="Namespace of the flow.")


class MirrorFlow(ApiModel):
    """The whole resource."""

    api_version: Literal["mirrorflow.io/v1alpha1"] = Field(description=API_VERSION)
    kind: Literal["MirrorFlow"] = Field(description=KIND)
    metadata: FlowMetadata = Field(description="Name and namespace.")
    spec: Spec = Field(description="Desired state, written only by users.")
    status: dict[str, Any] = Field(
        default_factory=dict, description="Observed state, written by the operator; not read here."
    )
