"""Defines the fields of the MirrorFlow resource, `mirrorflow.io/v1alpha1`: clusters, topics, groups, and the whole spec.

Logins are in `authentication`, pods and connectors in `workloads`, Spark jobs in `spark_workloads`, the status is in `status`. `rules` checks rules between
fields, and `load` parses a text to a MirrorFlow or to errors that name the field. `plan.properties` turns the
spec into properties. After a change, `make crds` generates the CRD. Nothing here reads a file, a clock or a Secret.
"""

from enum import Enum
from typing import Annotated, Any, Literal

from pydantic import ConfigDict, Field

from mirrorflow_operator.api.authentication import Authentication, RegistryAuthentication, Tls
from mirrorflow_operator.api.model import (
    LIST_MAX,
    LIST_SET,
    PATTERNS_MAX,
    Address,
    Alias,
    ApiModel,
    FlowId,
    ObjectName,
    Pattern,
    Properties,
    Quantity,
    list_map,
)
from mirrorflow_operator.api.spark_workloads import Archive, Restore, Seed, SparkSettings, Verify
from mirrorflow_operator.api.workloads import Connectors, RollingRestart

# Each has two lists; with more, the API server would refuse the rules on their entries as too costly.
EXCEPTIONS_MAX = 20
API_VERSION = "mirrorflow.io/v1alpha1"
KIND = "MirrorFlow"
# Names of child objects are the flow's name and a suffix; Kubernetes allows 63 characters in all.
NAME_MAX = 40
CONTEXT = r"^\.[a-zA-Z0-9._-]*$"
ContextName = Annotated[str, Field(max_length=100, pattern=CONTEXT)]


class ClusterSpec(ApiModel):
    """A Kafka cluster, as the flow connects to it."""

    alias: Alias = Field(
        description="Alias of the cluster in the names of topics and internal topics. Immutable."
    )
    bootstrap_servers: tuple[Address, ...] = Field(
        min_length=1,
        max_length=LIST_MAX,
        description="Addresses (host:port) of one or more brokers.",
        json_schema_extra=LIST_SET,
    )
    tls: Tls | None = Field(None, description="TLS settings. If absent, connections are not encrypted.")
    authentication: Authentication | None = Field(
        None, description="Authentication settings. If absent, the flow connects anonymously."
    )
    config: Properties = Field(
        default_factory=dict,
        description="Further Java client properties. The prefix consumer., producer. or admin. limits one to "
        "that client. Values may contain references. Security and bootstrap properties are "
        "refused.",
    )


class NamingPolicy(Enum):
    """How topics are named on the target."""

    PREFIX = "Prefix"  # MM2's DefaultReplicationPolicy
    IDENTITY = "Identity"  # MM2's IdentityReplicationPolicy


class InitialPosition(Enum):
    """Where a partition starts that has not been copied yet."""

    EARLIEST = "Earliest"
    LATEST = "Latest"
    TIMESTAMP = "Timestamp"


class OnSourceLoss(Enum):
    """What to do if source records were lost or overwritten before they were copied."""

    FAIL = "Fail"
    ALERT = "Alert"
    RESTART = "Restart"


class SyncMode(Enum):
    """What a synchronization does."""

    APPLY = "Apply"
    REPORT = "Report"
    OFF = "Off"


class Naming(ApiModel):
    """How topics are named on the target; immutable."""

    policy: NamingPolicy = Field(
        NamingPolicy.PREFIX, description="Prefix: <alias><separator><topic>. Identity: <topic>."
    )
    separator: Annotated[str, Field(min_length=1, max_length=10, pattern=r"^[a-zA-Z0-9._-]+$")] = Field(
        ".",
        description="Separator between alias and topic, and in the names of MirrorMaker 2's internal topics.",
    )


class StartFrom(ApiModel):
    """Where topics start that exist when the flow is first run; later ones are copied from their beginning."""

    position: InitialPosition = Field(InitialPosition.EARLIEST, description="Earliest, Latest or Timestamp.")
    timestamp: Annotated[str, Field(max_length=40)] | None = Field(
        None, description="Time (RFC 3339) from which records are copied, for position Timestamp."
    )


class TopicConfigException(ApiModel):
    """Topic settings that are not synchronized for some topics."""

    topics: tuple[Pattern, ...] = Field(
        min_length=1,
        max_length=EXCEPTIONS_MAX,
        description="Names or regexes of topics, matched against their names on the source.",
    )
    exclude: tuple[Pattern, ...] = Field(
        min_length=1,
        max_length=EXCEPTIONS_MAX,
        description="Regexes of settings that are not synchronized for these topics.",
    )


class ConfigSync(ApiModel):
    """Synchronization of topic settings."""

    sync: SyncMode = Field(SyncMode.APPLY, description="Apply the settings, Report differences, or Off.")
    exclude: tuple[Pattern, ...] = Field(
        (),
        max_length=LIST_MAX,
        description="Regexes of settings that are not synchronized, in addition to MirrorMaker 2's defaults.",
        json_schema_extra=LIST_SET,
    )
    exceptions: tuple[TopicConfigException, ...] = Field(
        (), max_length=EXCEPTIONS_MAX, description="Settings that are not synchronized for some topics."
    )


class TopicAclSync(ApiModel):
    """Synchronization of topic ACLs."""

    sync: SyncMode = Field(SyncMode.OFF, description="Apply the ACLs, Report differences, or Off.")


class Topics(ApiModel):
    """Selection of topics, and how they are copied."""

    include: tuple[Pattern, ...] = Field(
        (".*",),
        max_length=PATTERNS_MAX,
        description="Names or regexes of topics to copy, matched against the whole name. If absent, all "
        "topics.",
        json_schema_extra=LIST_SET,
    )
    exclude: tuple[Pattern, ...] = Field(
        (),
        max_length=PATTERNS_MAX,
        description="Names or regexes of topics to exclude. Takes precedence over include. Internal topics "
        "are always excluded.",
        json_schema_extra=LIST_SET,
    )
    naming: Naming = Field(
        default_factory=Naming, description="How topics are named on the target. Immutable."
    )
    start_from: StartFrom = Field(
        default_factory=StartFrom,
        description="Where topics start that exist when the flow is first run; later ones are copied from "
        "their beginning.",
    )
    on_source_loss: OnSourceLoss = Field(
        OnSourceLoss.FAIL,
        description="Policy for records that were lost before they were copied. Fail: stop the partition. "
        "Alert: continue at the next available record. Restart: copy the partition again.",
    )
    replication_factor: int = Field(
        -1,
        ge=-1,
        le=32_767,
        description="Replication factor of topics that the flow creates, including internal ones. -1: default "
        "of the target.",
    )
    configs: ConfigSync = Field(default_factory=ConfigSync, description="Synchronization of topic settings.")
    acls: TopicAclSync = Field(default_factory=TopicAclSync, description="Synchronization of topic ACLs.")


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


class SchemaRegistry(ApiModel):
    """A Confluent-compatible schema registry, as the flow connects to it."""

    url: Annotated[str, Field(max_length=2_048, pattern=r"^https?://[^\s@?]+$")] = Field(
        description="URL of the registry; several, separated by commas, are tried in turn."
    )
    tls: Tls | None = Field(
        None,
        description="TLS settings, for an https URL. If absent, the authorities of the system are trusted.",
    )
    authentication: RegistryAuthentication | None = Field(
        None, description="Authentication settings. If absent, the flow connects anonymously."
    )


class SchemaContext(ApiModel):
    """A context whose schemas are copied into a context of the target."""

    source: ContextName = Field(description="Context of the source; the default context is a dot.")
    target: ContextName = Field(description="Context of the target. Two contexts cannot share one.")


class Schemas(ApiModel):
    """Copies of schemas under the same ids, from one schema registry to another."""

    source: SchemaRegistry = Field(description="Registry of the source.")
    target: SchemaRegistry = Field(description="Registry of the target.")
    subjects: tuple[Pattern, ...] = Field(
        (".*",),
        min_length=1,
        max_length=PATTERNS_MAX,
        description="Names or regexes of subjects. Subjects that their schemas refer to are copied, too.",
        json_schema_extra=LIST_SET,
    )
    contexts: tuple[SchemaContext, ...] = Field(
        (),
        max_length=LIST_MAX,
        description="Contexts to copy. If empty, the default context is copied into the default context.",
        json_schema_extra=list_map("source"),
    )
    subject_prefix: Annotated[str, Field(max_length=100, pattern=r"^[a-zA-Z0-9._-]*$")] = Field(
        "", description="Text that precedes the names of copied subjects."
    )
    waiting_topics: tuple[Pattern, ...] = Field(
        (),
        max_length=PATTERNS_MAX,
        description="Names or regexes of topics of the source whose records are copied after their schemas. If empty, no "
        "record waits for its schema.",
        json_schema_extra=LIST_SET,
    )
    max_wait_seconds: int = Field(
        30,
        ge=1,
        le=86_400,
        description="Seconds after which records of waiting topics are copied although their schemas are missing.",
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
    schemas: Schemas | None = Field(None, description="Copies of schemas between schema registries.")
    limits: Limits = Field(default_factory=Limits, description="Limits of the flow.")
    version: Annotated[str, Field(max_length=64, pattern=r"^[a-zA-Z0-9._-]*$")] = Field(
        "",
        description="Version of the replicator. If empty, the version of the first start is pinned in the "
        "status. A minor version such as 0.1 follows the newest patch release that the operator offers.",
    )
    connectors: Connectors = Field(default_factory=Connectors, description="Workloads of the connectors.")
    internal_rest: InternalRest = Field(
        default_factory=InternalRest, description="REST requests between the pods of one connector."
    )
    seed: Seed | None = Field(None, description="Bulk copy to the target.")
    verify: Verify | None = Field(None, description="Comparison of the records on both clusters.")
    archive: Archive | None = Field(None, description="Archive of the topics in an object store.")
    restore: Restore | None = Field(None, description="Copy of an archive to the target.")
    spark: SparkSettings | None = Field(None, description="What all Spark jobs of the flow share.")
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
