"""The workload of each connector: how many, how large, with which further properties.

The part of its pod that may be changed is `template`'s.
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

    cpu: Quantity | None = Field(None, description="In cores, for example 500m.")
    memory: Quantity | None = Field(None, description="In bytes, for example 256Mi.")


class Resources(ApiModel):
    """What a pod asks for and may use."""

    requests: ComputeAmounts = Field(default_factory=ComputeAmounts, description="What it is scheduled by.")
    limits: ComputeAmounts = Field(default_factory=ComputeAmounts, description="What it may not exceed.")


class ServiceAccount(ApiModel):
    """The connector's own ServiceAccount; without annotations it shares the flow's."""

    annotations: Annotations = Field(default_factory=dict, description="For example a cloud role.")


class Autoscale(ApiModel):
    """Between how many pods the operator chooses, by the connector's lag."""

    min_replicas: int = Field(1, ge=1, le=100, description="Pods that are there without lag.")
    max_replicas: int = Field(ge=1, le=100, description="Pods that are there at most.")
    lag_seconds_max: int = Field(60, ge=1, le=86_400, description="The lag above which pods are added.")


class Connector(ApiModel):
    """One connector's workload."""

    replicas: int = Field(1, ge=0, le=100, description="Pods; more than one share the connector's work.")
    autoscale: Autoscale | None = Field(
        None, description="Of the source connector: the operator chooses the number of pods, by the lag."
    )
    image: ImageName | None = Field(
        None, description="Run instead of the operator's own replicator, for example to try a build."
    )
    tasks: int = Field(1, ge=1, le=1_000, description="Processes that copy (tasks.max).")
    resources: Resources = Field(default_factory=Resources, description="Of the container.")
    service_account: ServiceAccount = Field(
        default_factory=ServiceAccount, description="Its own ServiceAccount."
    )
    template: Template = Field(
        default_factory=Template, description="The part of the pod that may be changed."
    )
    config: Properties = Field(
        default_factory=dict,
        description="Further MM2 properties of this connector; keys that other fields set are refused.",
    )


class ConnectorName(Enum):
    """The connectors as the resource calls them; where several share a pod, it is the first one's of these."""

    SOURCE = "source"
    CHECKPOINT = "checkpoint"
    HEARTBEAT = "heartbeat"


class Connectors(ApiModel):
    """The three connectors of a flow."""

    source: Connector = Field(default_factory=Connector, description="Copies records.")
    checkpoint: Connector = Field(default_factory=Connector, description="Translates group offsets.")
    heartbeat: Connector = Field(default_factory=Connector, description="Emits heartbeats.")
    colocate: tuple[ConnectorName, ...] = Field(
        (),
        max_length=len(ConnectorName),
        description="Connectors that share one pod: that of the first among them of source, checkpoint and heartbeat.",
        json_schema_extra=LIST_SET,
    )

    def named(self, name: ConnectorName) -> Connector:
        """What is said of one of them."""
        match name:
            case ConnectorName.SOURCE:
                return self.source
            case ConnectorName.CHECKPOINT:
                return self.checkpoint
            case ConnectorName.HEARTBEAT:
                return self.heartbeat

    def host(self, name: ConnectorName) -> ConnectorName:
        """The connector whose image, resources, ServiceAccount, template and worker are those of the pod of *name*."""
        if name not in self.colocate:
            return name
        return next(one for one in ConnectorName if one in self.colocate)
