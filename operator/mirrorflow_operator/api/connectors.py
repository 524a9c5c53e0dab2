"""The workload of each connector: how many, how large, with which further properties.

The part of its pod that may be changed is `template`'s.
"""

from typing import Annotated

from pydantic import Field

from mirrorflow_operator.api.model import ApiModel, Properties
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


class Connectors(ApiModel):
    """The three connectors of a flow."""

    source: Connector = Field(default_factory=Connector, description="Copies records.")
    checkpoint: Connector = Field(default_factory=Connector, description="Translates group offsets.")
    heartbeat: Connector = Field(default_factory=Connector, description="Emits heartbeats.")
