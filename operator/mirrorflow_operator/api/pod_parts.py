"""Types of the parts of a pod template that are copied from Kubernetes: volumes, mounts, variables; and logging."""

from enum import Enum
from typing import Annotated

from pydantic import Field

from mirrorflow_operator.api.model import TEXT_MAX, ApiModel, DataKey, LabelName, ObjectName

# The operator's own volumes in pods of connectors and jobs.
RESERVED_VOLUMES = "^(config|tmp|output|(secret|config-map)-[0-9]+)$"
RESERVED_FOLDER = "/mnt/mirrorflow"
_FIELDS = (
    r"^(metadata\.(name|namespace|uid|(labels|annotations)\['[^']+'\])"
    r"|spec\.(nodeName|serviceAccountName)|status\.(hostIP|hostIPs|podIP|podIPs))$"
)


class ObjectReference(ApiModel):
    """Reference to an object in the namespace of the flow."""

    name: ObjectName = Field(description="Name of the object.")


class KeyReference(ApiModel):
    """Reference to one key of a Secret or ConfigMap."""

    name: ObjectName = Field(description="Name of the object.")
    key: DataKey = Field(description="Key in the object.")
    optional: bool = Field(False, description="Whether the pod starts without the object or the key.")


class FieldReference(ApiModel):
    """Reference to a field of the pod."""

    field_path: Annotated[str, Field(max_length=400, pattern=_FIELDS)] = Field(
        description="Path of the field, for example metadata.name or status.hostIP."
    )


class VariableSource(ApiModel):
    """Source of the value of an environment variable; exactly one field is set."""

    secret_key_ref: KeyReference | None = Field(
        None,
        description="Key of a Secret, read by the kubelet when the container starts. The value does not follow "
        "the Secret until then.",
    )
    config_map_key_ref: KeyReference | None = Field(
        None, description="Key of a ConfigMap, read by the kubelet when the container starts."
    )
    field_ref: FieldReference | None = Field(None, description="Field of the pod.")


class CsiVolume(ApiModel):
    """Inline volume of a CSI driver, mounted read-only."""

    driver: LabelName = Field(description="Name of the CSI driver, for example secrets-store.csi.k8s.io.")
    volume_attributes: Annotated[
        dict[LabelName, Annotated[str, Field(max_length=TEXT_MAX)]], Field(max_length=20)
    ] = Field(
        default_factory=dict,
        description="Attributes for the driver, for example secretProviderClass with the name of one.",
    )
    node_publish_secret_ref: ObjectReference | None = Field(
        None, description="Secret with the credentials of the driver."
    )


class SecretVolume(ApiModel):
    """Volume with the keys of a Secret as files."""

    secret_name: ObjectName = Field(description="Name of the Secret.")


class Volume(ApiModel):
    """Volume of the pod; exactly one of csi, secret and configMap is set. All are mounted read-only."""

    name: Annotated[str, Field(max_length=63, pattern=r"^[a-z0-9]([-a-z0-9]*[a-z0-9])?$")] = Field(
        description="Name of the volume."
    )
    csi: CsiVolume | None = Field(None, description="Inline volume of a CSI driver.")
    secret: SecretVolume | None = Field(None, description="Keys of a Secret as files.")
    config_map: ObjectReference | None = Field(None, description="Keys of a ConfigMap as files.")


class VolumeMount(ApiModel):
    """Folder of the container in which a volume of the template is mounted, read-only."""

    name: Annotated[str, Field(max_length=63, pattern=r"^[a-z0-9]([-a-z0-9]*[a-z0-9])?$")] = Field(
        description="Name of the volume."
    )
    mount_path: Annotated[
        str, Field(max_length=256, pattern=r"^/mnt/[A-Za-z0-9_.-]+(/[A-Za-z0-9_.-]+)*$")
    ] = Field(description="Path of the folder, below /mnt.")


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

    level: LogLevel | None = Field(None, description="Minimum level of messages. If absent, Info.")
    format: LogFormat | None = Field(
        None, description="Text, or Json with one object per line. If absent, Text."
    )
