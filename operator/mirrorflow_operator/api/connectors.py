"""Types of each connector's workload: replicas, resources and further properties.

`template` has the part of the pod that users may change.
"""

from enum import Enum
from typing import Annotated

from pydantic import Field

from mirrorflow_operator.api.model import LIST_SET, ApiModel, Properties
from mirrorflow_operator.api.quantity import Quantity
from mirrorflow_operator.api.template import Annotations, Template

ImageName = Annotated[str, Field(max_length=512, pattern=r"^[A-Za-z0-9][A-Za-z0-9._/:@-]*$")]


class ComputeAmounts(ApiModel):
    """CPU and memory."""

    cpu: Quantity | None = Field(None, description="CPU in cores, for example 500m.")
    memory: Quantity | None = Field(None, description="Memory in bytes, for example 256Mi.")


class Resources(ApiModel):
    """CPU and memory that a container requests and may use."""

    requests: ComputeAmounts = Field(
        default_factory=ComputeAmounts, description="Minimum resources, used for scheduling."
    )
    limits: ComputeAmounts = Field(default_factory=ComputeAmounts, description="Maximum resources.")


class ServiceAccount(ApiModel):
    """The connector's own ServiceAccount; without annotations it uses the flow's."""

    annotations: Annotations = Field(
        default_factory=dict,
        description="Annotations of the ServiceAccount, for example the name of a cloud role.",
    )


class Autoscale(ApiModel):
    """Settings of the autoscaler that the operator had until 0.1; existing resources may still have them."""

    min_replicas: int = Field(1, ge=1, le=100, description="Ignored.")
    max_replicas: int = Field(ge=1, le=100, description="Ignored.")
    lag_seconds_max: int = Field(60, ge=1, le=86_400, description="Ignored.")


class Connector(ApiModel):
    """Workload of one connector."""

    replicas: int = Field(
        1, ge=0, le=100, description="Number of pods. Several pods share the work of the connector."
    )
    autoscale: Autoscale | None = Field(
        None,
        description="Deprecated and ignored. Use a HorizontalPodAutoscaler or KEDA with the scale subresource.",
    )
    image: ImageName | None = Field(
        None,
        description="Container image to run instead of the operator's default, for example to test a build.",
    )
    tasks: int = Field(1, ge=1, le=1_000, description="Number of task processes (tasks.max).")
    resources: Resources = Field(default_factory=Resources, description="Compute resources of the container.")
    service_account: ServiceAccount = Field(
        default_factory=ServiceAccount, description="ServiceAccount of the connector."
    )
    template: Template = Field(
        default_factory=Template, description="Fields of the pod that can be customized."
    )
    config: Properties = Field(
        default_factory=dict,
        description="Further MirrorMaker 2 properties of this connector. Properties that other fields set are "
        "refused.",
    )


class ConnectorName(Enum):
    """Name of a connector. Connectors that share a pod use the pod of the first of them in this order."""

    SOURCE = "source"
    CHECKPOINT = "checkpoint"
    HEARTBEAT = "heartbeat"


class Connectors(ApiModel):
    """Workloads of the three connectors of a flow."""

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
    colocate: tuple[ConnectorName, ...] = Field(
        (),
        max_length=len(ConnectorName),
        description="Connectors that run in one pod. It is the pod of the first of them in the order source, "
        "checkpoint, heartbeat.",
        json_schema_extra=LIST_SET,
    )

    def named(self, name: ConnectorName) -> Connector:
        """Returns the spec of one connector."""
        match name:
            case ConnectorName.SOURCE:
                return self.source
            case ConnectorName.CHECKPOINT:
                return self.checkpoint
            case ConnectorName.HEARTBEAT:
                return self.heartbeat

    def host(self, name: ConnectorName) -> ConnectorName:
        """Returns the connector whose image, resources, ServiceAccount, template and worker *name* uses."""
        if name not in self.colocate:
            return name
        return next(one for one in ConnectorName if one in self.colocate)
