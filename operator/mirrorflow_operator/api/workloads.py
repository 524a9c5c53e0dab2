"""Defines the fields of workloads: connectors with their pods and `config`. Spark jobs are in `spark_workloads`."""

import re
from enum import Enum
from typing import Annotated, Any, Literal

from pydantic import Field

from mirrorflow_operator.api.model import (
    LIST_MAX,
    LIST_SET,
    PROPERTIES_MAX,
    TEXT_MAX,
    ApiModel,
    DataKey,
    LabelName,
    ObjectName,
    Properties,
    Quantity,
    RunId,
    list_map,
)

# The operator's own volumes in pods of connectors and jobs.
RESERVED_VOLUMES = "^(config|tmp|output|event-log|(secret|config-map)-[0-9]+)$"
RESERVED_FOLDER = "/mnt/mirrorflow"
FIELD_PATH_PATTERN = (
    r"^(metadata\.(name|namespace|uid|(labels|annotations)\['[^']+'\])"
    r"|spec\.(nodeName|serviceAccountName)|status\.(hostIP|hostIPs|podIP|podIPs))$"
)
LabelValue = Annotated[str, Field(max_length=63, pattern=r"^([a-zA-Z0-9]([-._a-zA-Z0-9]*[a-zA-Z0-9])?)?$")]
Labels = Annotated[dict[LabelName, LabelValue], Field(max_length=PROPERTIES_MAX)]
Annotations = Annotated[
    dict[LabelName, Annotated[str, Field(max_length=TEXT_MAX)]], Field(max_length=PROPERTIES_MAX)
]
# Defined by Kubernetes; the API server checks the content.
Preserved = Annotated[
    dict[str, Any],
    Field(max_length=LIST_MAX, json_schema_extra={"x-kubernetes-preserve-unknown-fields": True}),
]
VOLUMES_MAX = 20
PosixId = Annotated[int, Field(ge=1, le=2**31 - 1, json_schema_extra={"format": "int64"})]
ImageName = Annotated[str, Field(max_length=512, pattern=r"^[A-Za-z0-9][A-Za-z0-9._/:@-]*$")]
INIT_CONTAINERS_MAX = 5
_Arguments = Annotated[tuple[Annotated[str, Field(max_length=TEXT_MAX)], ...], Field(max_length=LIST_MAX)]
# Set by fields of the resource; if `config` set one as well, one of the two values would silently win.
FIELD_OF_KEY = {
    "connector.class": "spec.connectors",
    "tasks.max": "tasks",
    "topics": "spec.topics.include",
    "topics.exclude": "spec.topics.exclude",
    "topics.blacklist": "spec.topics.exclude",
    "groups": "spec.groups.include",
    "groups.exclude": "spec.groups.exclude",
    "groups.blacklist": "spec.groups.exclude",
    "replication.policy.class": "spec.topics.naming.policy",
    "replication.policy.separator": "spec.topics.naming.separator",
    "replication.factor": "spec.topics.replicationFactor",
    "sync.topic.configs.enabled": "spec.topics.configs.sync",
    "config.properties.exclude": "spec.topics.configs.exclude",
    "mirrorflow.config.properties.exclude.by.topic": "spec.topics.configs.exceptions",
    "mirrorflow.sync.topic.configs.report.only": "spec.topics.configs.sync",
    "sync.topic.acls.enabled": "spec.topics.acls.sync",
    "mirrorflow.sync.topic.acls.report.only": "spec.topics.acls.sync",
    "sync.group.offsets.enabled": "spec.groups.syncOffsets",
    "offset-syncs.topic.location": "spec.offsetSyncs.location",
    "emit.heartbeats.enabled": "spec.heartbeats.emitTo",
    "source.consumer.isolation.level": "spec.isolationLevel",
    "mirrorflow.start.from": "spec.topics.startFrom",
    "mirrorflow.state": "spec.state",
    "mirrorflow.source.loss.policy": "spec.topics.onSourceLoss",
    "mirrorflow.bytes.per.second": "spec.limits.bytesPerSecond",
    "mirrorflow.takeover.from": "spec.takeOverFrom",
}
FIELD_OF_PREFIX = {
    "source.cluster.": "spec.source",
    "target.cluster.": "spec.target",
    "config.providers": "the secret fields of spec.source and spec.target",
}
# Keys of a connector's `config` that its worker reads: where offsets are stored, and how a process stops.
KEYS_OF_WORKER = (
    "offset.storage.",
    "config.storage.",
    "status.storage.",
    "group.id",
    "task.shutdown.graceful.timeout.ms",
)
# Security and addresses of one client or of all; CEL and Python use the same expression.
SECURITY = "^((source|target)[.])?((consumer|producer|admin)[.])?(override[.])?((security|ssl|sasl)[.]|bootstrap[.]servers)"
SECURITY_FIELDS = "tls, authentication and bootstrapServers of spec.source and spec.target"


class ObjectReference(ApiModel):
    """Reference to an object in the namespace of the flow."""

    name: ObjectName = Field(description="Name.")


class KeyReference(ApiModel):
    """Reference to one key of a Secret or ConfigMap."""

    name: ObjectName = Field(description="Name.")
    key: DataKey = Field(description="Key.")
    optional: bool = Field(False, description="Whether it may be missing.")


class FieldReference(ApiModel):
    """Reference to a field of the pod."""

    field_path: Annotated[str, Field(max_length=400, pattern=FIELD_PATH_PATTERN)] = Field(
        description="Path, for example metadata.name."
    )


class VariableSource(ApiModel):
    """Source of the value of an environment variable; exactly one field is set."""

    secret_key_ref: KeyReference | None = Field(
        None,
        description="Key of a Secret; changes take effect when the container restarts.",
    )
    config_map_key_ref: KeyReference | None = Field(None, description="Key of a ConfigMap.")
    field_ref: FieldReference | None = Field(None, description="Field of the pod.")


class CsiVolume(ApiModel):
    """Inline volume of a CSI driver, mounted read-only."""

    driver: LabelName = Field(description="Name of the driver.")
    volume_attributes: Annotated[
        dict[LabelName, Annotated[str, Field(max_length=TEXT_MAX)]], Field(max_length=20)
    ] = Field(
        default_factory=dict,
        description="Attributes for the driver, such as secretProviderClass.",
    )
    node_publish_secret_ref: ObjectReference | None = Field(
        None, description="Secret with the credentials of the driver."
    )


class SecretVolume(ApiModel):
    """Volume with the keys of a Secret as files."""

    secret_name: ObjectName = Field(description="Name of the Secret.")


class EmptyDirVolume(ApiModel):
    """Temporary directory that init containers and sidecars fill."""

    size_limit: Quantity = Field("64Mi", description="Maximum size in bytes.")


class Volume(ApiModel):
    """Volume of the pod; exactly one source is set. The connector's container mounts all of them read-only."""

    name: Annotated[str, Field(max_length=63, pattern=r"^[a-z0-9]([-a-z0-9]*[a-z0-9])?$")] = Field(
        description="Volume."
    )
    csi: CsiVolume | None = Field(None, description="Inline volume of a CSI driver.")
    secret: SecretVolume | None = Field(None, description="Keys of a Secret as files.")
    config_map: ObjectReference | None = Field(None, description="Keys of a ConfigMap as files.")
    empty_dir: EmptyDirVolume | None = Field(
        None, description="Directory that init containers and sidecars write."
    )


class VolumeMount(ApiModel):
    """Folder of the container in which a volume of the template is mounted, read-only."""

    name: Annotated[str, Field(max_length=63, pattern=r"^[a-z0-9]([-a-z0-9]*[a-z0-9])?$")] = Field(
        description="Volume."
    )
    mount_path: Annotated[
        str, Field(max_length=256, pattern=r"^/mnt/[A-Za-z0-9_.-]+(/[A-Za-z0-9_.-]+)*$")
    ] = Field(description="Path below /mnt.")


class LogLevel(Enum):
    """Minimum level of logged messages."""

    ERROR = "Error"
    WARN = "Warn"
    INFO = "Info"
    DEBUG = "Debug"
    TRACE = "Trace"


class LogFormat(Enum):
    """Format of a log line."""

    TEXT = "Text"
    JSON = "Json"


class Logging(ApiModel):
    """Log of the container."""

    level: LogLevel | None = Field(None, description="Minimum level. If absent, Info.")
    format: LogFormat | None = Field(
        None, description="Text, or Json with one object a line. If absent, Text."
    )


class EnvironmentVariable(ApiModel):
    """Environment variable of the container, with a plain value or a reference to one."""

    name: Annotated[str, Field(max_length=253, pattern=r"^[A-Za-z_][A-Za-z0-9_]*$")] = Field(
        description="Name."
    )
    value: Annotated[str, Field(max_length=TEXT_MAX)] = Field("", description="Value.")
    value_from: VariableSource | None = Field(None, description="Reference instead of a value.")


class Toleration(ApiModel):
    """A taint that the pod tolerates."""

    key: LabelName | None = Field(None, description="Key of the taint. If absent, all keys match.")
    operator: Literal["Exists", "Equal"] = Field("Equal", description="Exists (any value) or Equal.")
    value: LabelValue | None = Field(None, description="Value of the taint.")
    effect: Literal["NoSchedule", "PreferNoSchedule", "NoExecute"] | None = Field(
        None, description="Effect of the taint. If absent, all effects match."
    )
    toleration_seconds: int | None = Field(
        None,
        ge=0,
        le=86_400 * 365,
        description="Seconds for which NoExecute is tolerated.",
    )


class TopologySpread(ApiModel):
    """How the pods of a connector are spread; the selector is that of their own labels."""

    topology_key: LabelName = Field(description="Node label.")
    max_skew: int = Field(1, ge=1, le=1_000, description="Maximum difference in pods.")
    when_unsatisfiable: Literal["DoNotSchedule", "ScheduleAnyway"] = Field(
        "ScheduleAnyway",
        description="DoNotSchedule or ScheduleAnyway.",
    )


class HostAlias(ApiModel):
    """Host names that a pod resolves without DNS, for brokers whose advertised names the cluster's DNS does not have."""

    ip: Annotated[
        str, Field(max_length=45, pattern=r"^([0-9]{1,3}(\.[0-9]{1,3}){3}|[0-9a-fA-F:]*:[0-9a-fA-F:.]*)$")
    ] = Field(description="IP address.")
    hostnames: Annotated[
        tuple[Annotated[str, Field(max_length=253, pattern=r"^[a-z0-9]([-a-z0-9.]*[a-z0-9])?$")], ...],
        Field(min_length=1, max_length=LIST_MAX),
    ] = Field(description="Host names of the address.")


class PodSecurityContext(ApiModel):
    """User and group ids of the pod, for platforms and volumes that prescribe them. All other restrictions stay in force."""

    run_as_user: PosixId | None = Field(None, description="User id.")
    run_as_group: PosixId | None = Field(None, description="Group id.")
    fs_group: PosixId | None = Field(None, description="Group id of volumes.")
    supplemental_groups: Annotated[tuple[PosixId, ...], Field(max_length=LIST_MAX)] = Field(
        (), description="Further group ids."
    )


class ComputeAmounts(ApiModel):
    """CPU, memory and local storage."""

    cpu: Quantity | None = Field(None, description="Cores, such as 500m.")
    memory: Quantity | None = Field(None, description="Bytes, such as 256Mi.")
    ephemeral_storage: Quantity | None = Field(
        None,
        alias="ephemeral-storage",
        description="Bytes of local storage.",
    )


class Resources(ApiModel):
    """Compute resources that a container requests and may use."""

    requests: ComputeAmounts = Field(
        default_factory=ComputeAmounts, description="Minimum, used for scheduling."
    )
    limits: ComputeAmounts = Field(default_factory=ComputeAmounts, description="Maximum.")


class DnsOption(ApiModel):
    """Option of the resolver."""

    name: Annotated[str, Field(min_length=1, max_length=64)] = Field(description="Name, such as ndots.")
    value: Annotated[str, Field(max_length=64)] | None = Field(None, description="Value.")


class DnsConfig(ApiModel):
    """Additions to the DNS settings that the cluster gives the pod."""

    nameservers: Annotated[tuple[Annotated[str, Field(max_length=45)], ...], Field(max_length=3)] = Field(
        (), description="DNS servers.", json_schema_extra=LIST_SET
    )
    searches: Annotated[tuple[Annotated[str, Field(max_length=253)], ...], Field(max_length=32)] = Field(
        (), description="Search domains.", json_schema_extra=LIST_SET
    )
    options: Annotated[tuple[DnsOption, ...], Field(max_length=20)] = Field(
        (), description="Resolver options.", json_schema_extra=list_map("name")
    )


class InitVolumeMount(ApiModel):
    """Folder of an init container in which a volume of the template is mounted."""

    name: Annotated[str, Field(max_length=63, pattern=r"^[a-z0-9]([-a-z0-9]*[a-z0-9])?$")] = Field(
        description="Volume."
    )
    mount_path: Annotated[str, Field(max_length=256, pattern=r"^(/[A-Za-z0-9_.-]+)+$")] = Field(
        description="Path."
    )


class InitContainer(ApiModel):
    """Container that runs before the others, or a sidecar. It is unprivileged, and its root file system is read-only."""

    name: Annotated[str, Field(max_length=63, pattern=r"^[a-z0-9]([-a-z0-9]*[a-z0-9])?$")] = Field(
        description="Name."
    )
    image: ImageName = Field(description="Container image.")
    restart_policy: Literal["Always"] | None = Field(
        None, description="Always: a sidecar, which runs as long as the pod."
    )
    command: _Arguments = Field((), description="Entry point. If empty, that of the image.")
    args: _Arguments = Field((), description="Arguments. If command is empty too, those of the image.")
    env: tuple[EnvironmentVariable, ...] = Field(
        (),
        max_length=LIST_MAX,
        description="Environment variables.",
        json_schema_extra=list_map("name"),
    )
    resources: Resources = Field(default_factory=Resources, description="Compute resources.")
    volume_mounts: tuple[InitVolumeMount, ...] = Field(
        (),
        max_length=VOLUMES_MAX,
        description="Folders of volumes of the template; an emptyDir can be written.",
        json_schema_extra=list_map("mountPath"),
    )


class Template(ApiModel):
    """Fields of the pod that can be customized. No user id is set by default."""

    labels: Labels = Field(default_factory=dict, description="Additional labels.")
    annotations: Annotations = Field(default_factory=dict, description="Additional annotations.")
    node_selector: Labels = Field(default_factory=dict, description="Labels of the node.")
    tolerations: tuple[Toleration, ...] = Field((), max_length=LIST_MAX, description="Tolerated taints.")
    affinity: Preserved = Field(default_factory=dict, description="Affinity of the pod, as in Kubernetes.")
    topology_spread: tuple[TopologySpread, ...] = Field(
        (),
        max_length=10,
        description="Spread across nodes.",
        json_schema_extra=list_map("topologyKey"),
    )
    priority_class_name: ObjectName | None = Field(None, description="Name of the PriorityClass.")
    image_pull_secrets: tuple[ObjectName, ...] = Field(
        (),
        max_length=10,
        description="Secrets with which images are pulled.",
        json_schema_extra=LIST_SET,
    )
    host_aliases: tuple[HostAlias, ...] = Field(
        (),
        max_length=LIST_MAX,
        description="Host names resolved without DNS.",
        json_schema_extra=list_map("ip"),
    )
    dns_config: DnsConfig = Field(default_factory=DnsConfig, description="Additions to DNS settings.")
    security_context: PodSecurityContext = Field(
        default_factory=PodSecurityContext, description="User and group ids; not 0."
    )
    init_containers: tuple[InitContainer, ...] = Field(
        (),
        max_length=INIT_CONTAINERS_MAX,
        description="Unprivileged containers that run before the pod's own, in this order, and sidecars.",
        json_schema_extra=list_map("name"),
    )
    env: tuple[EnvironmentVariable, ...] = Field(
        (),
        max_length=LIST_MAX,
        description="Environment variables.",
        json_schema_extra=list_map("name"),
    )
    volumes: tuple[Volume, ...] = Field(
        (),
        max_length=VOLUMES_MAX,
        description="Additional volumes, each with one source.",
        json_schema_extra=list_map("name"),
    )
    volume_mounts: tuple[VolumeMount, ...] = Field(
        (),
        max_length=VOLUMES_MAX,
        description="Folders below /mnt where these volumes are mounted, read-only.",
        json_schema_extra=list_map("mountPath"),
    )
    logging: Logging = Field(default_factory=Logging, description="Log of the container.")
    termination_grace_period_seconds: int = Field(
        30,
        ge=1,
        le=3_600,
        description="Seconds that the pod has to stop.",
    )


class ServiceAccount(ApiModel):
    """The connector's own ServiceAccount; without annotations it uses the flow's."""

    annotations: Annotations = Field(
        default_factory=dict,
        description="Annotations of the ServiceAccount, for example the name of a cloud role.",
    )


class Connector(ApiModel):
    """Workload of one connector."""

    replicas: int = Field(
        1, ge=0, le=100, description="Number of pods. Several pods share the work of the connector."
    )
    image: ImageName | None = Field(
        None,
        description="Image to run instead of the operator's default.",
    )
    tasks: int = Field(1, ge=1, le=1_000, description="Number of task processes (tasks.max).")
    resources: Resources = Field(default_factory=Resources, description="Compute resources.")
    service_account: ServiceAccount = Field(
        default_factory=ServiceAccount, description="ServiceAccount of the connector."
    )
    template: Template = Field(default_factory=Template, description="Customized fields of the pod.")
    config: Properties = Field(
        default_factory=dict,
        description="Further MirrorMaker 2 properties of this connector. Properties that other fields set are "
        "refused.",
    )


class ConnectorKind(Enum):
    """Name of a connector. Connectors that share a pod use the pod of the first of them in this order."""

    SOURCE = "source"
    CHECKPOINT = "checkpoint"
    HEARTBEAT = "heartbeat"
    SCHEMAS = "schemas"

    @property
    def java_class(self) -> str:
        """Returns MM2's class without its package, which is also the connector's name in its process."""
        return f"Mirror{self.value.removesuffix('s').capitalize()}Connector"


# Connectors that may share a pod. A fourth template, and its rules, would make the CRD too large for `kubectl apply`.
COLOCATABLE = (ConnectorKind.SOURCE, ConnectorKind.CHECKPOINT, ConnectorKind.HEARTBEAT)


class SchemasConnector(ApiModel):
    """The pod of the schema connector; its template is that of the source connector."""

    image: ImageName | None = Field(
        None,
        description="Image to run instead of the operator's default.",
    )
    resources: Resources = Field(default_factory=Resources, description="Compute resources.")


class Connectors(ApiModel):
    """Workloads of the connectors of a flow."""

    source: Connector = Field(
        default_factory=Connector, description="Source connector, which copies records."
    )
    checkpoint: Connector = Field(
        default_factory=Connector,
        description="Checkpoint connector, which translates the offsets of consumer groups.",
    )
    heartbeat: Connector = Field(
        default_factory=Connector, description="Heartbeat connector, which emits heartbeats."
    )
    schemas: SchemasConnector = Field(
        default_factory=SchemasConnector,
        description="Schema connector, which copies schemas between registries, as one task in a pod of its own.",
    )
    colocate: tuple[ConnectorKind, ...] = Field(
        (),
        max_length=len(COLOCATABLE),
        description="Connectors that run in one pod. It is the pod of the first of them in the order source, "
        "checkpoint, heartbeat.",
        json_schema_extra=LIST_SET,
    )

    def named(self, kind: ConnectorKind) -> Connector:
        if kind is ConnectorKind.SCHEMAS:
            own = self.schemas
            return Connector(image=own.image, resources=own.resources, template=self.source.template)
        connector: Connector = getattr(self, kind.value)
        return connector

    def host(self, kind: ConnectorKind) -> ConnectorKind:
        """Returns the connector whose image, resources, ServiceAccount, template and worker *kind* uses."""
        if kind not in self.colocate:
            return kind
        return next(kind for kind in ConnectorKind if kind in self.colocate)


class RollingRestart(ApiModel):
    """Rolling restart of the connectors."""

    run_id: RunId = Field(
        "", description="Id of the restart. A new value restarts the connectors; if empty, none is restarted."
    )


def field_of(key: str) -> str | None:
    """Returns the field that sets *key*, or None."""
    if key in FIELD_OF_KEY:
        return FIELD_OF_KEY[key]
    for prefix, field in FIELD_OF_PREFIX.items():
        if key.startswith(prefix):
            return field
    return SECURITY_FIELDS if re.search(SECURITY, key) else None
